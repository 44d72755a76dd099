"""Random histories of one shard, each a function of its seed, so that a failure can be run again."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from duemq.delay.core.limits import CycleLimits
from duemq.delay.replica import replica
from duemq.delay.tiering.completion import complete_windows
from duemq.model.errors import Fenced, StoreFailed
from duemq.model.messages import row_notes
from duemq.model.messages.key import due_of, make_key, offset_of
from duemq.model.messages.message import (
    CANCEL,
    DELIVER_NOW,
    MOVE,
    MOVE_WITH_EXPIRY,
    PURGE,
    REDRIVE,
    Change,
    Draft,
    Terms,
)
from duemq.model.messages.names import NO_NAME
from duemq.model.messages.record import pack_headers
from duemq.storage.rocksdb import Memory
from tests.support.shard.shard_oracle import DEAD, SYSTEM_HEADERS, Command
from tests.support.shard.shard_plain import CLIENT_NAMES, KEY_NAMES, garbage, is_named, plain_change, plain_schedule
from tests.support.shard.shard_world import SimNode, World

NEAR = (0, 1, 3, 20, 900)
DELAY_FILE = (2_500, 70_000, 2_000_000)
DLQ = "dlq"
CALLERS = ("", "key:shop", "user:a@b.example", "settings")


class Schedule:
    """One random history."""

    def __init__(self, seed: int, folder: Path, memory: Memory) -> None:
        self.rng = rng = random.Random(seed)
        cycle_limits = CycleLimits(
            max_commands=rng.randint(1, 5), max_messages=rng.randint(1, 5), max_bytes=rng.choice((300, 8 << 20)),
            max_attempts=rng.randint(2, 3), retry_ms=(5, 400), dead_letter_topic=DLQ,
        )  # fmt: skip
        self.world = World(folder, cycle_limits, {"two": 2, "one": 1, DLQ: 1}, memory=memory)
        self.master = 0
        self.names = 0

    def actions(self) -> dict[Callable[[], Any], int]:
        """What may happen, with its weight."""
        return {
            self.produce: 30, self.tick: 50, self.wait: 16, self.flush: 5, self.follow: 8, self.fail_over: 3,
            self.zombie: 4, self.crash: 5, self.kill_standby: 3, self.step_back: 3, self.topic_appears: 1,
        }  # fmt: skip

    async def run(self, steps: int = 70) -> None:
        world, rng, actions = self.world, self.rng, self.actions()
        await world.start(3)
        with pytest.MonkeyPatch.context() as patch:
            # Slots of the wheel are expanded over several ticks, as large ones are.
            patch.setattr(replica, "_PART", 2)
            patch.setattr(row_notes, "MAX_CHANGES", 3)
            patch.setattr(row_notes, "MAX_TAGS", 2)
            try:
                await self.node.promote()
                for action in rng.choices(list(actions), list(actions.values()), k=steps):
                    await action()
                await self.drain()
            finally:
                world.close()

    @property
    def node(self) -> SimNode:
        return self.world.nodes[self.master]

    def other(self) -> SimNode:
        self_ = self.master
        return self.world.nodes[self.rng.choice([number for number in range(3) if number != self_])]

    # --- the world ------------------------------------------------------------------------------------------------

    async def produce(self) -> None:
        await self.world.produce([self._command() for _ in range(self.rng.randint(1, 6))])

    def _command(self) -> Command:
        rng, messages = self.rng, list(self.world.oracle.messages)
        kind = rng.random()
        if kind < 0.04:
            return garbage(rng)
        if kind < 0.08 and (said := [command for command, _ in self.world.oracle.commands[-30:] if is_named(command)]):
            return rng.choice(said)
        if kind < 0.6 or not messages:
            draft = self._schedule()
            return self._lying(draft) if rng.random() < 0.7 else plain_schedule(rng, draft)
        if (by_jobs := [key for key, one in self.world.oracle.pending.items() if one.tags]) and rng.random() < 0.3:
            first_key = self.world.oracle.pending[rng.choice(by_jobs[:3])].first_key  # jobs that overlap
            return Change(MOVE, first_key, self._due(), self._terms())
        if rng.random() < 0.4:  # of messages that are still pending, or just so: the races
            messages = messages[-6:]
        dead = [key for key, message in self.world.oracle.messages.items() if message.state == DEAD]
        first_key = rng.choice(dead if dead and rng.random() < 0.2 else messages)
        if (expiring := [key for key in messages if self.world.oracle.messages[key].expires]) and rng.random() < 0.3:
            first_key = rng.choice(expiring)
        if rng.random() < 0.05:
            first_key = make_key(due_of(first_key), offset_of(first_key) + 1, 7)
        found = self.world.oracle.messages.get(first_key)
        odds = (1, 1, 1, 8, 1) if found is not None and found.state == DEAD else (4, 4, 2, 1, 1)
        kind = rng.choices((CANCEL, MOVE, DELIVER_NOW, REDRIVE, PURGE), odds)[0]
        by = CALLERS[len(self.world.oracle.commands) % len(CALLERS)]
        change = Change(kind, first_key, self._due() if kind == MOVE else 0, None, by)
        if kind == MOVE and found is not None and rng.random() < (0.7 if found.expires else 0.1):
            return change._replace(kind=MOVE_WITH_EXPIRY, terms=self._terms())
        if kind == PURGE or rng.random() < (0.8 if kind == REDRIVE else 0.5):
            return change._replace(terms=self._terms())
        if rng.random() < 0.5:
            return change
        name = found.draft.name if found is not None else rng.choice(CLIENT_NAMES)
        return plain_change(rng, change, name, self.world.ids)

    def _terms(self) -> Terms:
        rng = self.rng
        tag = rng.choice(("", "a/1", "a/1", "a/2", "b/1", "c/1", "d/1"))
        return Terms(tag, rng.choice((0, 1, 1, 2)), rng.choice(("", "", "never", "one", "two")))

    def _lying(self, draft: Draft) -> Draft:
        """Now and then an envelope by hand, with headers that only duemq may write."""
        if self.rng.random() < 0.9:
            return draft
        name, value = self.rng.choice(SYSTEM_HEADERS), self.rng.choice((b"x", b"7", b"-1", b"9" * 5_000, b""))
        count, headers = pack_headers([(name, value), ("h", b"1"), (name, value)])
        return draft._replace(header_count=count, headers=headers)

    def _schedule(self) -> Draft:
        rng = self.rng
        is_null = self.world.now % 2 == 1  # nothing is drawn for it: the schedules of a seed stay the same
        count, headers = pack_headers([("h", None if is_null else b"1")] * rng.randint(0, 2))
        name = rng.choice((*KEY_NAMES, *CLIENT_NAMES)) if rng.random() < 0.3 else NO_NAME
        due, expires = self._due(), 0
        if rng.random() < 0.3:
            expires = rng.choice((self.world.now, due, due)) + rng.choice(NEAR + DELAY_FILE)
        return Draft(
            topic=rng.choices(("one", "two", "later", "never"), (4, 4, 2, 1))[0],
            payload=rng.randbytes(rng.choice((0, 5, 200))) or (None if is_null else b""),
            due=due,
            key=rng.choice((None, None, b"", b"k1", b"k2")), header_count=count, headers=headers,
            labels=rng.choice(((), (), ("red",), ("red", "blue"))), expires=expires,
            name=name, fingerprint=rng.choice((b"f" * 16, b"g" * 16)),
        )  # fmt: skip

    def _due(self) -> int:
        reach = self.rng.choice(NEAR * 2 + DELAY_FILE)
        return self.world.now + self.rng.randint(-reach // 4, reach)

    async def wait(self) -> None:
        self.world.now += self.rng.choice(NEAR + DELAY_FILE)

    async def step_back(self) -> None:
        self.world.now -= self.rng.choice((1, 30, 2_000))

    async def topic_appears(self) -> None:
        await self.world.add_topic("later", 3)

    # --- the nodes ------------------------------------------------------------------------------------------------

    async def tick(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            await self.world.tick(self.node)

    async def flush(self) -> None:
        self.rng.choice(self.world.nodes).store.flush()

    async def follow(self) -> None:
        node, ledger_end = self.other(), None
        if self.rng.random() < 0.7:
            ledger_end = self.rng.randint(0, self.world.oracle.number + 1)
        await node.follow(ledger_end)
        if ledger_end is None:
            self.world.check(node)

    async def fail_over(self) -> None:
        self.node.master = None
        self.master = self.rng.randrange(3)
        await self.node.promote()
        self.world.check(self.node)

    async def zombie(self) -> None:
        """A master that was replaced and does not know: it must not get a word in."""
        zombie = self.node
        self.master = self.world.nodes.index(self.other())
        await self.node.promote()
        await self.produce()
        if self.rng.random() < 0.5:
            await self.tick()
        before = zombie.replica.entry
        assert zombie.master is not None
        try:
            await zombie.master.tick()
        except Fenced:
            assert not self.world.observe(), "a zombie left a trace"
        else:
            raise AssertionError("a zombie committed")
        assert zombie.replica.entry == before
        zombie.master = None

    async def crash(self) -> None:
        """The master dies in the middle of a commit; it or another node takes over from the state on disk."""
        node = self.node
        assert node.master is not None
        node.fault = self.rng.choice(("before_write", "after_write", "after_sync"))
        lost = node.fault == "before_write"
        try:
            await node.master.tick()
        except StoreFailed:
            assert self.world.observe() is not lost
        node.kill()
        await self.fail_over()

    async def kill_standby(self) -> None:
        self.other().kill()

    # --- the end --------------------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Everything comes to its end within a bounded number of cycles, and all replicas agree to the byte."""
        world = self.world
        if "later" not in world.topics:
            await self.topic_appears()
        for _ in range(5):
            while await world.tick(self.node) == 0 or world.oracle.applied < len(world.oracle.commands):
                pass
            world.now += 20_000_000
        assert not world.oracle.pending
        for node in world.nodes:
            await node.follow()
            # Each replica reads the rows of messages that were cancelled in files when it suits it.
            await complete_windows(node.store, list(node.store.delay_files.rowless_counts()))
            world.check(node)
        self.compare()

    def compare(self) -> None:
        first, *others = [node.contents() for node in self.world.nodes]
        assert all(contents == first for contents in others)
