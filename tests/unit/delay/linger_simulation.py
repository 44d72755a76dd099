"""What policies of lingering would have made of recorded arrivals: lateness, and cycles per second.

A record holds the due times (ms) of one steady stream and what each of its cycles took, by how much it had to do. The
simulation lets one shard work through the due times: a cycle takes what is due when it starts, as long as a cycle of
that size took, and one that was drawn from the record beside that. `python -m tests.unit.delay.linger_simulation`
prints the table of ADR 39.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

SAMPLES = Path(__file__).parents[2] / "samples" / "linger"

Policy = Callable[[float, float, int], float]
"""When the next cycle may start: of the start and the end of the last one (ms), and how many messages it had."""


@dataclass(frozen=True)
class Record:
    """`dues`: ms since the first, sorted. `fixed_ms`, `each_ms`: what a cycle takes, and more for each message that is
    due. `noise_ms`: what the cycles took beyond that."""

    dues: npt.NDArray[np.float64]
    fixed_ms: float
    each_ms: float
    noise_ms: npt.NDArray[np.float64]

    @staticmethod
    def load(name: str) -> Record:
        """Read the sample of this name: `dues` and, per cycle, `counts` and `durations_ms`."""
        with np.load(SAMPLES / f"{name}.npz") as sample:
            dues, counts, durations = sample["dues"].astype(float), sample["counts"], sample["durations_ms"]
        usual = durations < np.percentile(durations, 90)
        (each_ms, fixed_ms) = np.polyfit(counts[usual], durations[usual], 1)
        noise = durations - fixed_ms - each_ms * counts
        return Record(np.sort(dues - dues.min()), float(fixed_ms), float(each_ms), noise)


class Result(NamedTuple):
    """Lateness in ms; `busy`: the share of the time that cycles took."""

    p50: float
    p99: float
    cycles_per_s: float
    busy: float


def simulate(record: Record, policy: Policy, seed: int = 1) -> Result:
    """Let one shard work through a record."""
    noise = np.random.default_rng(seed).choice(record.noise_ms, len(record.dues))
    dues, done, now, cycles, busy = record.dues, 0, 0.0, 0, 0.0
    lateness: list[npt.NDArray[np.float64]] = []
    while done < len(dues):
        start = max(now, float(dues[done]))
        stop = int(np.searchsorted(dues, start, "right"))
        spent = max(record.fixed_ms + record.each_ms * (stop - done) + float(noise[cycles]), 0.1)
        lateness.append(start + spent - dues[done:stop])
        now = policy(start, start + spent, stop - done)
        done, cycles, busy = stop, cycles + 1, busy + spent
    total, seconds = np.concatenate(lateness), dues[-1] / 1000
    p50, p99 = np.percentile(total, (50, 99))
    return Result(float(p50), float(p99), cycles / seconds, busy / seconds / 1000)
