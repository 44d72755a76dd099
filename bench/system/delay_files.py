"""Delay files, as seen from outside: their number, and whether windows are being sealed or loaded."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Work = Literal["seal", "load"]

_LOOK_EVERY_S = 0.02


@dataclass(frozen=True, slots=True)
class DelayFileCounts:
    """The state of a data folder at one moment. `work`: the current work on windows."""

    files: int
    work: frozenset[Work]


@dataclass(frozen=True, slots=True)
class Span:
    """When some work was seen to begin and to end, epoch ms."""

    began_ms: float
    ended_ms: float

    @property
    def seconds(self) -> float:
        return (self.ended_ms - self.began_ms) / 1000


def counts(folder: Path | None) -> DelayFileCounts:
    """The current state of a folder; empty for a foreign one. Files that vanish during the scan are skipped."""
    shards = [] if folder is None else list((folder / "shards").glob("*"))
    work: set[Work] = set()
    files = 0
    for shard in shards:
        if shard.name.endswith(".sealing"):  # the checkpoint that is being sealed; the delay files in it are only links
            work.add("seal")
            continue
        for path in (shard / "far").rglob("*"):
            if path.suffix == ".parquet":
                files += 1
            elif path.name.startswith(("load-", "work-")):  # from a load, or from a file being rewritten
                work.add("load")
    return DelayFileCounts(files, frozenset(work))


def watch(folder: Path, work: Work, within_s: float, meanwhile: Callable[[], None]) -> Span | None:
    """Wait until work of this kind has begun and ended; check 50 times a second. Returns None after `within_s`."""
    began_ms: float | None = None
    give_up_at, last = time.monotonic() + within_s, 0.0
    while time.monotonic() < give_up_at:
        at_work = work in counts(folder).work
        now = time.time_ns() / 1e6
        if at_work and began_ms is None:
            began_ms = now
        elif began_ms is not None and not at_work:
            return Span(began_ms, now)
        if time.monotonic() - last > 0.25:
            meanwhile()
            last = time.monotonic()
        time.sleep(_LOOK_EVERY_S)
    return None
