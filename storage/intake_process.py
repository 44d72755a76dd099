"""Taking files in, in a process of its own.

    python -m duemq.storage.intake_process

The job is a JSON object in a line on standard input (storage/child.py): `limits` (see `AdoptLimits`) and `files`, each
with `source`, `target`, `shard`, `offset`, `window`, `rows`, `size`, `sha256`, `link`, and `refused`: why this source
may not be read, or null. For each file, in order, one line of JSON: `about` and `checksum` of what is there now, or the
`reason` why it is not, and whether that is `final`.

A job with `inspect`, the path of a file, has that file validated: its line says what is in it, or the `reason` why it
cannot be adopted, with `row` and `column` where one is at fault.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from duemq.model.errors import BadDelayFile, DuemqError, Unavailable
from duemq.model.fault import Fault, no_fault
from duemq.storage.adopted_file import checksum_of
from duemq.storage.child import job_of_parent
from duemq.storage.intake import Intake, inspect, kept, take_in
from duemq.storage.intake_rules import AdoptLimits

Answer = dict[str, Any]


def intake(job: Mapping[str, Any], tell: Callable[[Answer], None], fault: Fault = no_fault) -> None:
    """Do a job, and tell of each file."""
    limits = AdoptLimits(**(job["limits"] | {"topics": tuple(job["limits"]["topics"])}))
    if "inspect" in job:
        tell(_inspected(Path(job["inspect"]), limits))
    for file in job.get("files", ()):
        tell(_answer(file, limits, fault))


def _inspected(source: Path, limits: AdoptLimits) -> Answer:
    try:
        return asdict(inspect(source, limits))
    except BadDelayFile as error:
        return {"reason": str(error), "row": error.row, "column": error.column}


def _answer(file: Mapping[str, Any], limits: AdoptLimits, fault: Fault) -> Answer:
    source, target = Path(file["source"]), Path(file["target"])
    try:
        # A crash may have come between the taking in and the flush of the store that would have known of it.
        found = kept(target, file["window"], file["sha256"], limits)
        if found is None:
            if file["refused"] is not None:
                return {"reason": file["refused"], "final": True}
            found = take_in(source, target, file["window"], limits, link=file["link"], fault=fault)
        if (wrong := _not_as_said(file, found)) is not None:
            target.unlink(missing_ok=True)
            return {"reason": wrong, "final": True}
        about = found.about(file["shard"], file["offset"])
        return {"about": asdict(about), "checksum": checksum_of(target, file["offset"])}
    except BadDelayFile as error:
        return {"reason": str(error), "final": source.exists()}
    except Unavailable as error:
        return {"reason": str(error), "final": False}


def _not_as_said(file: Mapping[str, Any], found: Intake) -> str | None:
    """How a file differs from what its command says of it; a file that was exchanged meanwhile is not adopted."""
    for name in ("sha256", "size", "rows"):
        if (has := getattr(found, name)) != file[name]:
            return f"{file['source']} has {name} {has}, its command says {file[name]}"
    return None


def _print(answer: Answer) -> None:
    print(orjson.dumps(answer).decode(), flush=True)


def main() -> int:
    try:
        intake(job_of_parent(), _print)
    except DuemqError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
