"""Forgetting what ended: whole windows, and nothing that is still held."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from duemq.delay.core.limits import CycleLimits
from duemq.delay.replica import retention
from duemq.delay.replica.retention import horizon_for, purge_before
from duemq.model.log.ledger import Answer
from duemq.model.messages.key import make_key
from duemq.model.messages.message import CANCEL, MOVE, Change, Draft
from duemq.model.messages.names import Name
from duemq.model.timing import WINDOW_MS, window_of
from duemq.storage.keyspace import APPLIED, CURSOR, ENDED, MOVED, NAME, NAME_DUE, ROW, U64
from duemq.storage.shard.store import ShardStore
from tests.support.shard.shard_world import START, World

BASE = window_of(START)
FIRST, SECOND, DELAY_FILE = BASE + 10, BASE + WINDOW_MS + 10, BASE + 9 * WINDOW_MS
F = b"f" * 16


def forget(store: ShardStore, cutoff_ms: int) -> int:
    """All parts at once."""
    horizon = horizon_for(store.position.entry.cursor, cutoff_ms, {})
    for _ in purge_before(store, horizon, 0):
        pass
    return horizon


def draft(due: int, name: bytes) -> Draft:
    return Draft("orders", b"payload", due, name=Name(name), fingerprint=F)


async def history(folder: Path) -> World:
    """Messages of two windows that ended in every way, and some that are still held under first keys of the first."""
    world = World(folder, CycleLimits(dead_letter_topic="dlq"), {"orders": 1, "dlq": 1}, now=BASE)
    await world.start(1)
    await world.nodes[0].promote()
    await world.produce([
        draft(FIRST, b"delivered"), draft(FIRST, b"cancelled"), draft(FIRST, b"moved on"), draft(FIRST, b"moved far"),
        draft(FIRST, b"expired")._replace(expires=FIRST - 1), draft(SECOND, b"second"), draft(DELAY_FILE, b"far"),
    ])  # fmt: skip
    await world.produce([
        Change(CANCEL, make_key(FIRST, 1, 0), 0), Change(MOVE, make_key(FIRST, 2, 0), SECOND),
        Change(MOVE, make_key(FIRST, 3, 0), DELAY_FILE),
    ])  # fmt: skip
    for world.now in (BASE, FIRST + 1, SECOND + 1):
        while await world.tick(world.nodes[0]) == 0:
            pass
    return world


def left(store: ShardStore) -> tuple[set[bytes], int, int, int]:
    """Names that are taken, and how many rows, ends and moves there are."""
    rows, ended, moved = (sum(1 for _ in store.each(kind)) for kind in (ROW, ENDED, MOVED))
    return {name for name, _ in store.each(NAME)}, rows, ended, moved


@pytest.mark.parametrize("part", [1, 5_000])
def test_windows_are_forgotten_one_after_the_other(part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_PART", part)

    async def run() -> None:
        world = await history(tmp_path)
        node = world.nodes[0]
        everything = {b"delivered", b"cancelled", b"moved on", b"moved far", b"expired", b"second", b"far"}
        assert left(node.store) == (everything, 5, 2, 2)
        assert forget(node.store, BASE + WINDOW_MS - 1) == BASE
        assert left(node.store) == (everything, 5, 2, 2)

        assert forget(node.store, BASE + WINDOW_MS) == BASE + WINDOW_MS
        assert left(node.store) == ({b"moved on", b"moved far", b"second", b"far"}, 4, 0, 2)

        assert forget(node.store, DELAY_FILE * 2) == BASE + WINDOW_MS, "never past the cursor"
        world.now = DELAY_FILE + 1
        while await world.tick(node) == 0:
            pass
        assert forget(node.store, BASE + 2 * WINDOW_MS) == BASE + 2 * WINDOW_MS
        assert left(node.store) == ({b"moved far", b"far"}, 2, 0, 1)
        assert forget(node.store, DELAY_FILE * 2) == DELAY_FILE

        # A name that was forgotten is free again.
        del world.oracle.names[b"delivered"]
        await world.produce([draft(DELAY_FILE + 5, b"delivered")])
        world.now += 10
        await world.tick(node)
        assert world.oracle.messages[make_key(DELAY_FILE + 5, 10, 0)].state == "delivered"
        world.close()

    asyncio.run(run())


def test_a_shard_at_rest_forgets_its_last_window_and_what_was_cancelled_early(tmp_path: Path) -> None:
    async def run() -> None:
        cycle_limits = CycleLimits(dead_letter_topic="dlq", retention_ms=WINDOW_MS)
        world = World(tmp_path, cycle_limits, {"orders": 1, "dlq": 1}, now=BASE)
        await world.start(1)
        (node,) = world.nodes
        await node.promote()
        await world.produce(
            [draft(FIRST, b"delivered"), draft(DELAY_FILE, b"cancelled"), draft(2 * DELAY_FILE - BASE, b"held")]
        )
        entries: list[tuple[int, int, int]] = []
        for world.now in range(BASE, BASE + 15 * WINDOW_MS, WINDOW_MS // 3):
            while await world.tick(node) == 0:
                pass
            entry = node.replica.entry
            if entry.number not in [number for number, _, _ in entries]:
                horizons = (entry.horizon - BASE) // WINDOW_MS, (entry.end_horizon - BASE) // WINDOW_MS
                entries.append((entry.number, *horizons))
            if world.now == BASE + 5 * WINDOW_MS:
                await world.produce([Change(CANCEL, make_key(DELAY_FILE, 1, 0), 0)])
            for _ in purge_before(node.store, entry.horizon, entry.end_horizon):
                pass
        # What was delivered in the first window is forgotten two windows on. What was cancelled in the sixth is, too,
        # long before it was due. In between only the cancel is committed.
        assert [tuple(horizons) for _, *horizons in entries if horizons[0] > 0] == [(1, -1), (1, 4), (6, 6)]
        assert left(node.store) == ({b"held"}, 1, 0, 0)
        assert node.replica.recount() == node.replica.entry.pending == 1
        world.close()

    asyncio.run(run())


def test_history_counts_from_the_end_of_a_message(tmp_path: Path) -> None:
    """After an outage, and for times long past: what ended just now is known for as long as anything else."""

    async def run() -> None:
        cycle_limits = CycleLimits(dead_letter_topic="dlq", retention_ms=4 * WINDOW_MS)
        world = World(tmp_path, cycle_limits, {"orders": 1, "dlq": 1}, now=BASE)
        await world.start(1)
        (node,) = world.nodes
        await node.promote()
        await world.produce([draft(FIRST, b"overdue"), draft(FIRST, b"overdue too")])
        await world.tick(node)
        world.now = BASE + 100 * WINDOW_MS  # nothing ran for two days
        await world.produce([draft(5, b"long past"), draft(SECOND, b"past"), Change(CANCEL, make_key(FIRST, 1, 0), 0)])
        while await world.tick(node) == 0:
            pass
        messages = world.oracle.messages
        assert [one.state for one in messages.values()] == ["delivered", "cancelled", "delivered", "delivered"]

        async def repeat() -> list[Answer]:
            """The answers to each name again, and to cancels of all."""
            first = len(world.oracle.commands)
            names = ((FIRST, b"overdue"), (FIRST, b"overdue too"), (5, b"long past"), (SECOND, b"past"))
            await world.produce([draft(*one) for one in names])
            await world.produce([Change(CANCEL, key, 0) for key in list(messages)[:4]])
            while await world.tick(node) == 0:
                pass
            for _ in purge_before(node.store, node.replica.entry.horizon, node.replica.entry.end_horizon):
                pass
            return [world.oracle.answers[offset] for offset in range(first, first + 8)]

        late, cancelled = Answer.DELIVERED, Answer.CANCELLED_BEFORE
        for _ in range(12):
            assert await repeat() == [Answer.DUPLICATE] * 4 + [late, cancelled, late, late]
            world.now += WINDOW_MS // 3
        world.now = BASE + 106 * WINDOW_MS
        await repeat()  # says that they are forgotten, and drops them
        assert await repeat() == [Answer.ACCEPTED] * 4 + [Answer.UNKNOWN] * 4
        world.close()

    asyncio.run(run())


@pytest.mark.parametrize(("short", "windows"), [(False, 1), (True, 3)])
def test_less_is_known_while_a_disk_is_short_of_space(short: bool, windows: int, tmp_path: Path) -> None:
    async def run() -> None:
        cycle_limits = CycleLimits(dead_letter_topic="dlq", retention_ms=3 * WINDOW_MS, min_retention_ms=WINDOW_MS // 3)
        world = World(tmp_path, cycle_limits, {"orders": 1, "dlq": 1}, now=BASE)
        await world.start(1)
        (node,) = world.nodes
        await node.promote()
        for number in range(4):
            await world.produce([draft(world.now, b"%d" % number)])
            await world.tick(node)
            world.now += WINDOW_MS
        world.short = short
        await world.tick(node)
        assert node.replica.entry.horizon == BASE + windows * WINDOW_MS
        world.close()

    asyncio.run(run())


def test_times_of_delivery_are_kept_as_long_as_their_messages(tmp_path: Path) -> None:
    async def run() -> None:
        world = await history(tmp_path)
        node = world.nodes[0]
        forget(node.store, BASE + WINDOW_MS)
        assert node.store.delivered_at(make_key(SECOND, 5, 0), 5) == SECOND + 1
        assert len(list(node.store.each(CURSOR))) == 1
        assert len(list(node.store.each(APPLIED))) == 1
        assert {row[8:] for row, _ in node.store.each(NAME_DUE)} == {b"moved on", b"moved far", b"second", b"far"}
        node.store.flush()
        node.kill()
        await node.promote()
        assert node.replica.recount() == node.replica.entry.pending == 2
        world.close()

    asyncio.run(run())


def test_times_of_delivery_stay_right_where_commands_are_rare(tmp_path: Path) -> None:
    async def run() -> None:
        world = World(tmp_path, CycleLimits(dead_letter_topic="dlq"), {"orders": 1, "dlq": 1}, now=BASE)
        await world.start(1)
        (node,) = world.nodes
        await node.promote()
        await world.produce([draft(SECOND, b"second"), draft(DELAY_FILE, b"far")])
        for world.now in (BASE, SECOND, DELAY_FILE):
            await world.tick(node)
        world.now += 5_000
        await world.produce([draft(DELAY_FILE + WINDOW_MS, b"later")])
        await world.tick(node)
        assert forget(node.store, DELAY_FILE) == DELAY_FILE
        assert [applied for applied, _ in node.store.each(APPLIED)] == [U64.pack(2), U64.pack(3)]
        assert node.store.delivered_at(make_key(DELAY_FILE, 1, 0), 1) == DELAY_FILE, "not when the next command came"
        world.close()

    asyncio.run(run())


def test_a_clock_that_goes_back_shortens_no_history(tmp_path: Path) -> None:
    """A window is kept by the latest end in it, also where an earlier one came after."""

    async def run() -> None:
        cycle_limits = CycleLimits(dead_letter_topic="dlq", retention_ms=4 * WINDOW_MS)
        world = World(tmp_path, cycle_limits, {"orders": 1, "dlq": 1}, now=BASE + 10 * WINDOW_MS)
        await world.start(1)
        (node,) = world.nodes
        await node.promote()
        await world.produce([draft(FIRST, b"first")])
        await world.tick(node)
        world.now -= 3 * WINDOW_MS
        await world.produce([draft(FIRST + 1, b"second")])
        await world.tick(node)
        assert node.store.last_ends == {BASE: BASE + 10 * WINDOW_MS}
        node.store.flush()
        node.kill()
        await node.promote()
        assert node.store.last_ends == {BASE: BASE + 10 * WINDOW_MS}
        for world.now in range(BASE + 11 * WINDOW_MS, BASE + 14 * WINDOW_MS, WINDOW_MS):
            await world.produce([draft(FIRST, b"first")])
            await world.tick(node)
            assert node.replica.entry.horizon == BASE
        world.now = BASE + 15 * WINDOW_MS
        await world.tick(node)
        assert node.replica.entry.horizon > BASE
        world.close()

    asyncio.run(run())


def test_times_of_delivery_stay_right_where_the_clock_went_back(tmp_path: Path) -> None:
    async def run() -> None:
        world = World(tmp_path, CycleLimits(dead_letter_topic="dlq"), {"orders": 1, "dlq": 1}, now=BASE)
        await world.start(1)
        (node,) = world.nodes
        await node.promote()
        await world.produce([draft(SECOND, b"second")])
        for world.now in (BASE, SECOND):
            await world.tick(node)
        world.now = SECOND - 1_000  # before the window
        await world.produce([draft(DELAY_FILE, b"far")])
        await world.tick(node)
        assert forget(node.store, BASE + WINDOW_MS) == BASE + WINDOW_MS
        assert node.store.delivered_at(make_key(SECOND, 0, 0), 0) == SECOND
        world.close()

    asyncio.run(run())


def test_what_is_due_goes_out_though_its_place_is_later_than_a_clock_that_went_back(tmp_path: Path) -> None:
    async def run() -> None:
        world = World(tmp_path, CycleLimits(dead_letter_topic="dlq"), {"orders": 1, "dlq": 1}, now=SECOND)
        await world.start(1)
        (node,) = world.nodes
        await node.promote()
        await world.produce([draft(SECOND, b"second")])
        await world.tick(node)
        world.now = BASE + WINDOW_MS - 40  # the cursor stays in the window that begins then
        await world.produce([draft(world.now, b"due"), draft(world.now + 1, b"not due")])
        await world.tick(node)
        _, due, not_due = world.oracle.messages.values()
        assert (due.state, not_due.state) == ("delivered", "pending")
        assert due.key == make_key(BASE + WINDOW_MS, 1, 0)
        world.close()

    asyncio.run(run())
