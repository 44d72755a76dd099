"""The gateway to a node in the same process."""

from __future__ import annotations

import asyncio
import secrets
import zlib
from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple

from duemq.bus.base import Bus, Partition
from duemq.delay.gateway import MessageState, Outcome, Page, Query, Receipt
from duemq.delay.node import Node
from duemq.delay.outbox import partition_of
from duemq.delay.reads import Reads, before, merge, read_cursor, write_cursor
from duemq.delay.topics import BUFFER, INTERNAL
from duemq.model.errors import DiskFull, Rejected, Unavailable
from duemq.model.ids import DIRECT, MessageId
from duemq.model.key import KEY_BYTES, LOWEST, read_key
from duemq.model.ledger import Answer
from duemq.model.message import CANCEL, Draft, change_frame, schedule_frame
from duemq.model.row import direct_frame

_CLIENT_NAME = b"n:"  # names that clients chose, apart from idempotency keys
_MAX_BACKLOG = 50_000  # commands a shard may be behind before senders have to wait for it
_WITH_TIME = 16  # of so many changes at once, the time each ended is looked up


class _Target(NamedTuple):
    """A message that is spoken of: `id` as its answer shows it."""

    id: str
    shard: int
    first_key: bytes


class LocalGateway:
    """See `Gateway`. `answer_s`: how long a change waits for its answer."""

    def __init__(self, node: Node, answer_s: float = 2.0) -> None:
        self._node, self._answer_s = node, answer_s
        self._turn = count()
        # Ids of direct messages only have to differ; 2**40 leaves room to count up from anywhere.
        self._unique = count(secrets.randbits(40))

    @property
    def bus(self) -> Bus:
        self._check()
        return self._node.bus

    def why_not_ready(self) -> str | None:
        return self._node.why_not_ready

    def _check(self) -> None:
        if self._node.why_not_ready is not None:
            raise Unavailable(self._node.why_not_ready)

    # --- sending --------------------------------------------------------------------------------------------------

    async def send(self, drafts: Sequence[Draft]) -> list[Receipt]:
        self._check()
        node = self._node
        if node.disk_full:
            raise DiskFull(
                f"the data disk has less than {node.options.min_free_bytes >> 20} MiB free (storage.min_free_bytes)",
                retry_after_s=10,
            )
        known = node.targets.known
        missing = {draft.topic for draft in drafts if draft.topic not in known}
        if missing:
            await self._make_topics(missing)
        shards = len(node.shards)
        now, turn = node.clock(), next(self._turn) % shards
        batches: dict[Partition, list[bytes]] = {}
        places: list[tuple[Partition, int]] = []
        direct_ids: dict[int, str] = {}
        for index, draft in enumerate(drafts):
            if draft.name:
                where = (BUFFER, zlib.crc32(draft.name) % shards)
                frame = schedule_frame(draft, now if draft.due is None else draft.due)
            elif draft.due is None:
                id_ = node.ids.issue_bytes(DIRECT, now, next(self._unique), zlib.crc32(draft.topic.encode()))
                direct_ids[index] = id_.decode()
                partitions = known[draft.topic]
                partition = turn % partitions if draft.key is None else partition_of(draft.key, partitions)
                where, frame = (draft.topic, partition), direct_frame(draft, id_, now)
            else:
                where, frame = (BUFFER, turn), schedule_frame(draft, draft.due)
            batch = batches.setdefault(where, [])
            places.append((where, len(batch)))
            batch.append(frame)
        landed = await node.bus.append(batches)
        if direct_ids:
            node.observer.direct.inc(len(direct_ids))
        receipts = []
        issue = node.ids.issue
        named: list[int] = []
        for index, (draft, (where, position)) in enumerate(zip(drafts, places, strict=True)):
            if index in direct_ids:
                receipts.append(Receipt(direct_ids[index], "delivered", draft.topic, now))
                continue
            due = now if draft.due is None else draft.due
            offset = landed[where].first_offset + position
            receipts.append(Receipt(issue(where[1], due, offset), "scheduled", draft.topic, due))
            if draft.name:
                named.append(index)
        if named:
            await self._settle_names(drafts, receipts, named, places, landed)
        for where in batches:
            if where[0] == BUFFER:
                await self._hold_up(where[1], landed[where].first_offset)
        return receipts

    async def _make_topics(self, topics: set[str]) -> None:
        if reserved := topics & INTERNAL:
            raise Rejected("bad_topic", f"{min(reserved)} is one of duemq's own topics", "topic")
        await self._node.targets.resolve(topics)
        if absent := topics - self._node.targets.known.keys():
            raise Rejected("unknown_topic", f"there is no topic {min(absent)}", "topic")

    async def _hold_up(self, shard: int, offset: int) -> None:
        """Back-pressure: a sender goes no faster than the shard applies."""
        if offset - self._node.shards[shard].progress.applied > _MAX_BACKLOG:
            await self._node.shards[shard].progress.reached(offset - _MAX_BACKLOG, self._answer_s)

    async def _settle_names(
        self,
        drafts: Sequence[Draft],
        receipts: list[Receipt],
        named: list[int],
        places: list[tuple[Partition, int]],
        landed: Any,
    ) -> None:
        """Whether a name is new is what the ledger says."""
        for index in named:
            (_, shard), position = places[index]
            offset = landed[places[index][0]].first_offset + position
            progress = self._node.shards[shard].progress
            if not await progress.reached(offset, self._answer_s):
                raise Unavailable("the answer to this name is not known yet: send it again under the same name")
            answered = progress.answer(offset)
            if answered is None:
                raise Unavailable("the answer to this name is no longer known: send it again under the same name")
            receipt = receipts[index]
            if answered.answer is Answer.ACCEPTED:
                if drafts[index].due is None:
                    receipts[index] = receipt._replace(status="delivered")
                continue
            state = self._by_name(shard, drafts[index].name)
            if state is None:
                raise Unavailable("the first message of this name was just forgotten: send it again")
            receipts[index] = Receipt(
                state.id, state.status, state.topic, state.due, True, answered.answer is Answer.CONFLICT
            )

    # --- reading --------------------------------------------------------------------------------------------------

    def _reads(self, shard: int) -> Reads:
        return Reads(self._node.shards[shard])

    def _by_name(self, shard: int, name: bytes) -> MessageState | None:
        (holder,) = self._node.shards[shard].store.names([name])
        return None if holder is None else self._reads(shard).state(holder[:KEY_BYTES])

    async def _caught_up(self, shard: int, offset: int | None = None) -> None:
        """Wait until all commands up to `offset` (or all there are now) are applied, so that they show."""
        last = await self._node.bus.end_offset(BUFFER, shard) - 1 if offset is None else offset
        if not await self._node.shards[shard].progress.reached(last, self._answer_s):
            raise Unavailable("this shard is catching up")

    async def _resolve(self, target: str) -> _Target | MessageState | None:
        """What a caller means by an id or a name: a message of a shard, a direct one's state, or nothing."""
        found = self._node.ids.read(target)
        return await self._by_client_name(target) if found is None else self._by_id(target, found)

    def _by_id(self, target: str, found: MessageId) -> _Target | MessageState | None:
        if found.direct:
            return self._direct(target, found)
        return _Target(target, found.shard, found.key) if found.shard < len(self._node.shards) else None

    async def _by_client_name(self, target: str) -> _Target | None:
        node = self._node
        name = _CLIENT_NAME + target.encode()
        shard = zlib.crc32(name) % len(node.shards)
        await self._caught_up(shard)
        (holder,) = node.shards[shard].store.names([name])
        if holder is None:
            return None
        first_key = holder[:KEY_BYTES]
        return _Target(node.ids.issue(shard, *read_key(first_key)), shard, first_key)

    def _direct(self, target: str, found: MessageId) -> MessageState | None:
        topic = next((name for name in self._node.targets.known if zlib.crc32(name.encode()) == found.row), None)
        if topic is None:
            return None
        return MessageState(target, "delivered", topic, found.due, attempt=1, delivered_at=found.due)

    async def state(self, target: str) -> MessageState | None:
        self._check()
        meant = await self._resolve(target)
        if not isinstance(meant, _Target):
            return meant
        await self._caught_up(meant.shard, int.from_bytes(meant.first_key[8:16], "big"))
        return self._reads(meant.shard).state(meant.first_key)

    async def find(self, query: Query) -> Page:
        self._check()
        key, last_shard = LOWEST, -1
        if query.cursor is not None:
            key, last_shard = read_cursor(query.cursor)
        shards = range(len(self._node.shards))
        await asyncio.gather(*map(self._caught_up, shards))
        starts = [key if shard <= last_shard or query.cursor is None else before(key) for shard in shards]
        found = [await self._reads(shard).find(query, start) for shard, start in zip(shards, starts, strict=True)]
        messages, position = merge(found, query.limit)
        return Page(messages, None if position is None else write_cursor(*position))

    # --- changing -------------------------------------------------------------------------------------------------

    async def change(self, kind: int, targets: Sequence[str], due: int = 0) -> list[Outcome]:
        self._check()
        read = self._node.ids.read
        meant = [
            await self._by_client_name(target) if (found := read(target)) is None else self._by_id(target, found)
            for target in targets
        ]
        batches: dict[Partition, list[bytes]] = {}
        positions: list[int] = []
        for one in meant:
            if isinstance(one, _Target):
                batch = batches.setdefault((BUFFER, one.shard), [])
                positions.append(len(batch))
                batch.append(change_frame(kind, one.first_key, due))
            else:
                positions.append(-1)
        known: dict[int, bool] = {}
        first: dict[int, int] = {}
        if batches:
            landed = await self._node.bus.append(batches)
            for where, batch in batches.items():
                first[where[1]] = landed[where].first_offset
                progress = self._node.shards[where[1]].progress
                known[where[1]] = await progress.reached(landed[where].first_offset + len(batch) - 1, self._answer_s)
        with_time = len(targets) <= _WITH_TIME
        outcomes = []
        for target, one, position in zip(targets, meant, positions, strict=True):
            if one is None:
                outcomes.append(Outcome(target, Answer.UNKNOWN))
            elif isinstance(one, MessageState):
                outcomes.append(Outcome(one.id, Answer.DELIVERED, one.delivered_at))
            else:
                outcomes.append(self._outcome(kind, one, first[one.shard] + position, known[one.shard], with_time))
        return outcomes

    def _outcome(self, kind: int, target: _Target, offset: int, known: bool, with_time: bool) -> Outcome:
        answered = self._node.shards[target.shard].progress.answer(offset) if known else None
        if answered is None:
            return Outcome(target.id, None)
        if answered.answer is Answer.OK:
            return Outcome(target.id, Answer.OK, answered.at if kind == CANCEL else 0)
        at = self._reads(target.shard).when_ended(target.first_key) if with_time else 0
        return Outcome(target.id, answered.answer, at)

    # --- about the service ----------------------------------------------------------------------------------------

    def topic_lateness(self, topic: str) -> dict[str, Any]:
        lateness = self._node.observer.lateness.get(topic)
        return {"count": 0} if lateness is None else lateness.summary()

    def cluster(self) -> dict[str, Any]:
        node = self._node
        shards = []
        for number, shard in node.shards.items():
            entry = shard.replica.entry
            shards.append({
                "shard": number, "master": "local", "entry": entry.number, "applied": entry.applied,
                "cursor_ms": read_key(entry.cursor)[0], "pending": entry.pending, "fates": entry.fates._asdict(),
            })  # fmt: skip
        return {
            "cluster": node.folder.info.cluster,
            "nodes": [{"name": "local", "state": "ready" if node.why_not_ready is None else "joining"}],
            "shards": shards,
        }
