"""How many messages a machine delivers per second: a given or a measured number."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from duemq.pipeline.errors import BadInput

MEASURED: Final = 10_000.0  # docs/explain/benchmarks.md, Steady


class Capacity(NamedTuple):
    """`source`: the origin of the figure, for a sentence."""

    per_second: float
    source: str


def capacity_of(text: str | None) -> Capacity:
    """The capacity given as a number, or in a file from `duemq bench steady --json FILE`; None means the capacity in
    docs/explain/benchmarks.md. Raises BadInput."""
    if text is None:
        return Capacity(MEASURED, "the steady figure of docs/explain/benchmarks.md, two cores")
    try:
        rate = float(text.replace(",", "").replace("_", ""))
    except ValueError:
        return _of_report(Path(text))
    if not math.isfinite(rate) or rate <= 0:
        raise BadInput(f"capacity: {text} is no number of messages per second")
    return Capacity(rate, "as given")


def _of_report(path: Path) -> Capacity:
    """The highest rate at which messages were accepted and delivered in a steady scenario that had no fault."""
    try:
        scenarios = orjson.loads(path.read_bytes())["scenarios"]
        rates = [
            float(scenario["figures"]["rate"]["median"])
            for scenario in scenarios
            if scenario["name"] == "steady" and scenario["sound"]
        ]
    except OSError as error:
        raise BadInput(f"capacity: {path} is neither a number nor a file that can be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"capacity: {path} is not a report of `duemq bench --json`") from error
    if not rates or not max(rates) > 0:
        raise BadInput(f"capacity: {path} has no sound `steady` scenario: make one with `duemq bench steady --json`")
    return Capacity(max(rates), f"measured: {path.name}")
