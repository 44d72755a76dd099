"""A node is killed at every step of sealing, rewriting and loading three windows, and of joining files, and goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from duemq.delay.core.limits import CycleLimits
from duemq.delay.tiering.tiering_policy import TieringPolicy
from duemq.model.messages.key import due_of
from duemq.model.messages.message import CANCEL, Change, Draft
from duemq.model.timing import WINDOW_MS, window_of
from duemq.storage.delay_files.catalog import FOLDER
from duemq.storage.keyspace import LOADING
from tests.support.shard.shard_world import START, Killed, SimNode, World

pytestmark = pytest.mark.anyio

COUNT = 6
STEPS = {
    "seal": ["checkpoint", "written", "committed", "committed", "committed", "flushed"],
    "rewrite": ["listed", "rewritten", "replaced", "replaced", "replaced", "settled", "removed"],
    "empty": ["listed", "rewritten", "replaced", "replaced", "replaced", "settled", "removed"],
    "join": ["joined", "replaced", "settled", "removed"],
    "load": ["begun", "sst", "ingested", "loaded", "loaded", "loaded", "unlinked"],
}


async def settle(node: SimNode) -> None:
    """All commands applied, all that is due delivered."""
    while await node.world.tick(node) == 0 or node.world.oracle.applied < len(node.world.oracle.commands):
        pass


async def prepare(node: SimNode, work: str, base: int) -> None:
    """Three windows from `base` on that are to be sealed, rewritten, dropped or loaded."""
    world = node.world
    windows = [base + number * WINDOW_MS for number in range(3)]
    await world.produce([Draft("one", b"%d" % n, window + n) for window in windows for n in range(COUNT)])
    await settle(node)
    if work != "seal":
        while await node.delay_files.step():
            pass
    if work == "join":
        await world.produce([Draft("one", b"more %d" % n, window + n) for window in windows for n in range(COUNT)])
        await settle(node)
        assert await node.delay_files.step(), "each window has two sealed files"
        pending = [key for key in world.oracle.pending if window_of(due_of(key)) in windows]
        await world.produce([Change(CANCEL, key, 0) for key in pending[::3]])
        await settle(node)
    if work in ("rewrite", "empty"):
        pending = [key for key in world.oracle.pending if window_of(due_of(key)) in windows]
        share = 1 if work == "empty" else 2
        await world.produce([Change(CANCEL, key, 0) for number, key in enumerate(pending) if number % share == 0])
        await settle(node)
    elif work == "load":
        world.now = windows[-1] - world.delay_files.ahead_ms


@pytest.mark.parametrize("work", STEPS)
async def test_a_kill_at_any_step_leaves_each_message_in_one_place(work: str, tmp_path: Path) -> None:
    world = World(
        tmp_path, CycleLimits(dead_letter_topic="dlq"), {"one": 1, "dlq": 1},
        delay_files=TieringPolicy(rows=COUNT, quiet_ms=0, rewrite_rows=1, join_files=2, join_ms=0),
    )  # fmt: skip
    await world.start(1)
    (node,) = world.nodes
    await node.promote()
    try:
        for number in range(len(STEPS[work]) + 1):
            steps: list[str] = []

            def step(name: str, steps: list[str] = steps, last: int = number) -> None:
                steps.append(name)
                if len(steps) > last:
                    raise Killed(name)

            base = (START // WINDOW_MS + 10 * (number + 1)) * WINDOW_MS
            await prepare(node, work, base)
            node.delay_files.failpoint = step
            if number < len(STEPS[work]):
                with pytest.raises(Killed):
                    await node.delay_files.step()
                node.kill()
                await node.promote()
                world.check(node)
            else:
                await node.delay_files.step()
                node.delay_files.failpoint = lambda name: None
            assert steps == STEPS[work][: number + 1]
            while await node.delay_files.step():
                pass
            world.check(node)
            there = {str(path.relative_to(node.path)) for path in (node.path / FOLDER).rglob("*") if path.is_file()}
            assert there == set(node.store.delay_files.names()), "nothing is missing, and nothing left over"
            assert not list(node.store.each(LOADING))
            await settle(node)
        world.now += 100 * WINDOW_MS
        while world.oracle.pending:
            while node.replica.reach(world.now) < world.now:
                await node.delay_files.step()
            await settle(node)
    finally:
        world.close()
