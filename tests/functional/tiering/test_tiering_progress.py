"""Commands about sealed messages go on, however much has to be read for one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from duemq.delay.core.command_batch import CommandBatch
from duemq.delay.core.limits import CycleLimits
from duemq.delay.replica import prefetch
from duemq.delay.shard.master import Master
from duemq.delay.tiering.tiering_policy import TieringPolicy
from duemq.model.errors import DuemqError
from duemq.model.messages.key import make_key
from duemq.model.messages.message import CANCEL, MOVE, Change, Draft
from duemq.model.timing import WINDOW_MS
from duemq.storage.delay_files import sealed_file
from duemq.storage.rocksdb import Memory
from tests.support.shard.seeds import SEEDS
from tests.support.shard.shard_world import START, World
from tests.support.shard.tiering_schedule import TieringSchedule

MEMORY = Memory(8 << 20, 8 << 20)
FIRST = (START // WINDOW_MS + 5) * WINDOW_MS
BUSY = FIRST + WINDOW_MS + 1_000  # a ms in which more messages are due than a row group holds


def tiny_groups(patch: pytest.MonkeyPatch) -> None:
    """Four rows stand for 4,096, and each cycle reads one row group, or as little as it may."""
    patch.setattr(sealed_file, "ROWS_PER_GROUP", 4)
    patch.setattr(prefetch, "_MAX_BYTES", 1)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "change",
    [Change(CANCEL, make_key(FIRST + 5, 0, 0), 0), Change(MOVE, make_key(FIRST + 5, 0, 0), BUSY + 5_000)],
    ids=["cancel", "move"],
)
async def test_a_command_that_needs_more_than_a_cycle_reads_is_applied(
    change: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that was moved may lie under either of two keys, and both are read for one command."""
    tiny_groups(monkeypatch)
    cycle_limits = CycleLimits(max_commands=1_000, max_messages=1_000, dead_letter_topic="dlq")
    world = World(
        tmp_path, cycle_limits, {"one": 1, "dlq": 1}, delay_files=TieringPolicy(rows=40, quiet_ms=0, rewrite_rows=1)
    )
    await world.start(1)
    (node,) = world.nodes
    await node.promote()
    await world.produce([Draft("one", b"moved", FIRST + 5)])
    await world.produce([Draft("one", b"beside it", FIRST + n) for n in range(50)])
    await world.tick(node)
    await world.produce([Change(MOVE, make_key(FIRST + 5, 0, 0), BUSY)])
    await world.produce([Draft("one", b"busy", BUSY) for _ in range(400)])
    await world.tick(node)
    world.now += 20_000
    while await node.delay_files.step():
        pass
    assert len(node.store.delay_files.windows()) == 2
    await world.produce([change, Draft("one", b"behind it", world.now + 10)])
    while await world.tick(node) == 0:
        pass
    assert node.replica.entry.applied == len(world.oracle.commands)
    world.check(node)
    world.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_random_schedule_with_tiny_row_groups(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_groups(monkeypatch)
    bounded(monkeypatch)
    asyncio.run(TieringSchedule(seed, tmp_path, MEMORY).run())


def first_command_not_read(patch: pytest.MonkeyPatch) -> None:
    """A command that cannot be read whole waits for the next cycle, though it is the first of this one."""
    before = CommandBatch.before

    def before_unread(self: CommandBatch, offset: int) -> CommandBatch:
        return before(self, offset - (offset - 1 == self.commands[0].offset))

    patch.setattr(CommandBatch, "before", before_unread)


def bounded(patch: pytest.MonkeyPatch) -> None:
    """A shard that stands still fails in the end."""
    tick, left = Master.tick, iter(range(3_000))

    async def tick_and_count(self: Master) -> float:
        assert next(left, None) is not None, "the schedule does not end"
        return await tick(self)

    patch.setattr(Master, "tick", tick_and_count)


@pytest.mark.parametrize("mutant", [first_command_not_read], ids=lambda mutant: mutant.__name__)
def test_every_mutant_is_found_out(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tiny_groups(monkeypatch)
    bounded(monkeypatch)
    mutant(monkeypatch)
    for seed in range(40):
        try:
            asyncio.run(TieringSchedule(seed, tmp_path / str(seed), MEMORY).run())
        except (AssertionError, DuemqError):
            return
    raise AssertionError("40 schedules found nothing wrong")
