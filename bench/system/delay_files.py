"""Delay files as they can be seen from outside: how many there are, and whether some are being sealed or loaded."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Work = Literal["seal", "load"]

_LOOK_EVERY_S = 0.02


@dataclass(frozen=True, slots=True)
class DelayFileCounts:
    """What a data folder shows at one moment. `work`: what is being done to windows."""

    files: int
    work: frozenset[Work]


@dataclass(frozen=True, slots=True)
class Span:
    """When some work was seen to begin and to have ended, epoch ms."""

    began_ms: float
    ended_ms: float

    @property
    def seconds(self) -> float:
        return (self.ended_ms - self.began_ms) / 1000


def look(folder: Path | None) -> DelayFileCounts:
    """Nothing is known of a folder that is not ours. Files that vanish meanwhile are not seen."""
    shards = [] if folder is None else list((folder / "shards").glob("*"))
    work: set[Work] = set()
    files = 0
    for shard in shards:
        if shard.name.endswith(".sealing"):  # the checkpoint that is sealed from; its delay files are links
            work.add("seal")
            continue
        for path in (shard / "far").rglob("*"):
            if path.suffix == ".parquet":
                files += 1
            elif path.name.startswith(("load-", "work-")):  # of a load, or of rewriting a file
                work.add("load")
    return DelayFileCounts(files, frozenset(work))


def watch(folder: Path, work: Work, within_s: float, meanwhile: Callable[[], None]) -> Span | None:
    """Wait for such work to begin and to end, looking 50 times a second; None if it did not within that time."""
    began_ms: float | None = None
    give_up_at, last = time.monotonic() + within_s, 0.0
    while time.monotonic() < give_up_at:
        at_work = work in look(folder).work
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
