"""A `duemq` whose clock can be set and which can be made to kill itself, for tests of whole processes.

TEST_CLOCK=FILE        the wall clock is wrong by as many ms as the file says
TEST_DIE_AT=STEP:N     kill -9 of itself at a step of the N-th cycle
TEST_HANG=FILE         while there is this file: cycles hang (it says "shard"), or the event loop does ("loop")
TEST_ROOM=FILE         while there is this file: a copy of a replica finds as many bytes of room as the file says
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from duemq.bus.base import wall_clock
from duemq.cli.wiring import parts
from duemq.delay.core.disk_watermarks import Watermarks
from duemq.delay.maintenance import Maintenance
from duemq.delay.shard.master import Master
from duemq.model.disk_use import DiskUse
from duemq.model.failpoint import Failpoint

CLOCK, DIE_AT, HANG, ROOM = "TEST_CLOCK", "TEST_DIE_AT", "TEST_HANG", "TEST_ROOM"

_ROOT = str(Path(__file__).parents[3])
PROGRAM = (
    sys.executable, "-P", "-c",
    f"import sys; sys.path.append({_ROOT!r}); from tests.support.node.hooks import install; install(); "
    "from duemq.cli.main import main; sys.exit(main())",
)  # fmt: skip
"""What to run in place of `duemq`."""

_LOOK_EVERY_S = 0.05


def install() -> None:
    """Let this process obey the variables of its environment."""
    if path := os.environ.get(CLOCK):
        parts.WALL_CLOCK = wrong_clock(Path(path))
    if die_at := os.environ.get(DIE_AT):
        parts.FAILPOINT = deadly(die_at)
    if hang := os.environ.get(HANG):
        hang_cycles(Path(hang))
    if room := os.environ.get(ROOM):
        fill_disk(Path(room))


def wrong_clock(path: Path) -> Callable[[], int]:
    """The wall clock, wrong by as many ms as the file says; right while there is none."""
    looked_at, offset = -1.0, 0

    def clock() -> int:
        nonlocal looked_at, offset
        if time.monotonic() - looked_at > _LOOK_EVERY_S:
            looked_at = time.monotonic()
            offset = int(path.read_text() or 0) if path.exists() else 0
        return wall_clock() + offset

    return clock


def deadly(die_at: str) -> Failpoint:
    """Kill this process, as SIGKILL does, at a step of its N-th cycle: STEP:N."""
    step, _, number = die_at.partition(":")
    left = int(number)

    def failpoint(at: str) -> None:
        nonlocal left
        if at == step:
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return failpoint


def hang_cycles(path: Path) -> None:
    """Let cycles begin, and not end, while there is the file."""
    tick = Master.tick

    def mode() -> str:
        return path.read_text() if path.exists() else ""

    async def hanging(self: Master) -> float:
        while what := mode():
            if what == "loop":
                time.sleep(0.1)  # noqa: ASYNC251  # it is to block
            else:
                await asyncio.sleep(0.1)
        return await tick(self)

    setattr(Master, "tick", hanging)  # noqa: B010  # not a method of its own


def fill_disk(path: Path) -> None:
    """Let the disk seem half full, and have no more room than the file says above what must stay free."""
    least, require_room = Watermarks().min_free_bytes, Maintenance.require_room

    def measured(folder: Path) -> DiskUse:
        return DiskUse(least, least + int(path.read_text()))

    def require_there(self: Maintenance, byte_count: int) -> None:
        measure = self._measure
        self._measure = measured if path.exists() else measure
        try:
            require_room(self, byte_count)
        finally:
            self._measure = measure

    setattr(Maintenance, "require_room", require_there)  # noqa: B010  # not a method of its own
