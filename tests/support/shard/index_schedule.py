"""Random histories of one shard with an index, in which messages are found as in a list of all of them."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from duemq.cluster.shards.shard_reader import MessageState, Query, Status
from duemq.delay.indexing import index_worker
from duemq.delay.reads import indexed_reads
from duemq.delay.reads.shard_reads import Reads
from duemq.model.errors import Rejected, Unavailable
from duemq.model.messages.key import LOWEST, due_of
from duemq.model.messages.place import PLACE_BYTES, place_of
from duemq.storage.message_index import index, runs, terms
from duemq.storage.rocksdb import Memory
from tests.support.shard.import_schedule import ImportSchedule
from tests.support.shard.retention_schedule import RetentionSchedule
from tests.support.shard.shard_oracle import PENDING, Message
from tests.support.shard.shard_world import SHARD, SimNode
from tests.support.shard.tiering_schedule import TieringSchedule

STATUSES: dict[str, Status] = {
    "pending": "scheduled",
    "delivered": "delivered",
    "cancelled": "cancelled",
    "dead": "dead",
}
SETTINGS = ((), ("*",), ("*",), ("one", "t*"))
SMALL = {
    (index, "_MAX_CHUNKS"): 3, (index, "_FAN_IN"): 3, (index, "_MAX_MERGED"): 8,
    (index, "_RUNS_TOGETHER"): 1, (runs, "PAGE_ENTRIES"): 2, (index_worker, "_PART"): 2,
    (indexed_reads, "_TOGETHER"): 2, (indexed_reads, "_LOOK_AT"): 4,
}  # fmt: skip


def weak_hash(term: bytes, digest_size: int) -> Any:
    """Makes two hashes of all terms."""
    return blake2b(b"%d" % (len(term) % 2), digest_size=digest_size)


class OneShard:
    """What `Reads` needs of a shard."""

    number, rebuilding = SHARD, False

    def __init__(self, node: SimNode) -> None:
        self.store, self.replica = node.store, node.replica

    def lose(self, store: object, error: Exception) -> None:
        raise error


class IndexSchedule(TieringSchedule):
    """As `TieringSchedule`, with messages looked for by key and label."""

    def __init__(self, seed: int, folder: Path, memory: Memory) -> None:
        super().__init__(seed, folder, memory)
        self.world.indexed = self.rng.choice(SETTINGS)
        self.placed: dict[bytes, tuple[int, int]] = {}  # entry and time by which a key was placed first
        self.looked = 0

    def actions(self) -> dict[Callable[[], Any], int]:
        return super().actions() | {self.look: 25, self.work: 25, self.switch: 2}

    async def run(self, steps: int = 70) -> None:
        observe = self.world.observe

        def observe_places() -> bool:
            grown = observe()
            for message in self.world.oracle.messages.values():
                self.placed.setdefault(message.key, (self.world.oracle.number, self.world.now))
            return grown

        with pytest.MonkeyPatch.context() as patch:
            for (module, name), value in SMALL.items():
                patch.setattr(module, name, value)
            patch.setattr(self.world, "observe", observe_places)
            if self.rng.random() < 0.3:
                patch.setattr(terms, "blake2b", weak_hash)
            await super().run(steps)

    # --- what the nodes do ----------------------------------------------------------------------------------------

    async def switch(self) -> None:
        """The setting is another one from now on, on one node and on those that start again."""
        self.world.indexed = self.rng.choice(SETTINGS)
        node = self.rng.choice(self.world.nodes)
        node.store.index.switch(self.world.indexed, node.replica.entry)

    async def work(self) -> None:
        """The index worker goes on, and with luck to its end."""
        node = self.rng.choice(self.world.nodes)
        steps = self.rng.choice((1, 3, 100))
        while steps and await node.indexer.step():
            steps -= 1

    # --- what is found --------------------------------------------------------------------------------------------

    async def look(self) -> None:
        await self.look_at(self.node)

    async def look_at(self, node: SimNode) -> None:
        rng = self.rng
        await node.follow()
        meanwhile, self.world.meanwhile = self.world.meanwhile, None  # else two answers are of two moments
        for _ in range(3):
            by: Any = (
                {"key": rng.choice(("", "k1", "k2"))} if rng.random() < 0.6 else {"label": rng.choice(("red", "blue"))}
            )
            query = Query(topic=rng.choice((None, "one", "two")), limit=rng.choice((1, 3, 1000)), status=None, **by)
            if rng.random() < 0.3:
                query = Query(
                    **{**_fields(query), "due_from": self.world.now - 1_000, "due_to": self.world.now + 2_000_000}
                )
            await self.compare_newest(node, Query(**{**_fields(query), "newest": True}))
            for status in STATUSES.values():
                await self.compare_soonest(node, Query(**{**_fields(query), "status": status}))
        self.world.meanwhile = meanwhile

    async def compare_newest(self, node: SimNode, query: Query) -> None:
        """All that matches, of topics that are indexed, is found, and in the right order."""
        store_index = node.store.index
        state = store_index.state
        is_on = state is not None and (query.topic is None or store_index.is_on(query.topic))
        try:
            answers = await self._all(node, query, bytes(PLACE_BYTES))
        except Rejected as error:
            assert error.code == "not_indexed" and not is_on
            return
        except Unavailable:
            assert is_on and not store_index.built
            return
        assert state is not None and is_on and store_index.built
        expected: dict[bytes, Message] = {}
        for message in self.world.oracle.messages.values():
            if _matches(message, query) and store_index.is_on(message.draft.topic):
                number, at = self.placed[message.key]
                expected[place_of(at if number > state.entry else state.since, message.key)] = message
        assert [place for place, _ in answers] == sorted(place for place, _ in answers)
        for place, found in answers:
            assert place in expected, f"{place.hex()} is no place of such a message"
            self._check(expected[place], found)
        missing = expected.keys() - dict(answers).keys()
        lost = [expected[place] for place in missing if not self.world.oracle.forgotten(expected[place])]
        assert not lost, f"not found: {lost}"
        self.looked += len(answers)

    async def compare_soonest(self, node: SimNode, query: Query) -> None:
        """With an index the list is that of a scan."""
        answers = await self._all(node, query, LOWEST)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(index.MessageIndex, "covers", lambda self, topic: False)
            scanned = await self._all(node, query, LOWEST)
        assert answers == scanned

    async def _all(self, node: SimNode, query: Query, after: bytes) -> list[tuple[bytes, MessageState]]:
        """Page after page."""
        answers: list[tuple[bytes, MessageState]] = []
        looked: bytes | None = after
        while looked is not None:
            part = await Reads(OneShard(node)).find(query, looked)  # type: ignore[arg-type]
            answers += part.messages
            assert part.looked is None or part.looked > looked
            assert len(part.messages) <= query.limit
            looked = part.looked
        return answers

    def _check(self, message: Message, found: MessageState) -> None:
        assert found.id == self.world.ids.issue(SHARD, due_of(message.first_key), *_rest(message.first_key))
        assert found.status == STATUSES[message.state]
        assert (found.key, found.labels, found.topic) == (message.draft.key, message.draft.labels, message.draft.topic)

    async def drain(self) -> None:
        await super().drain()
        for node in self.world.nodes:
            node.store.index.switch(self.world.indexed, node.replica.entry)
            while await node.indexer.step():
                pass
            await self.look_at(node)
            assert not any(message.state == PENDING for message in self.world.oracle.messages.values())


class IndexAndRetention(IndexSchedule, RetentionSchedule):
    """With history that is forgotten."""


class IndexAndImports(IndexSchedule, ImportSchedule):
    """With files of messages."""


def _rest(key: bytes) -> tuple[int, int]:
    return int.from_bytes(key[8:16], "big"), int.from_bytes(key[16:], "big")


def _fields(query: Query) -> dict[str, Any]:
    return {name: getattr(query, name) for name in Query.__dataclass_fields__}


def _matches(message: Message, query: Query) -> bool:
    draft = message.draft
    return (
        (query.topic is None or draft.topic == query.topic)
        and (query.key is None or draft.key == query.key.encode())
        and (query.label is None or query.label in draft.labels)
        and (query.due_from is None or due_of(message.key) >= query.due_from)
        and (query.due_to is None or due_of(message.key) < query.due_to)
    )
