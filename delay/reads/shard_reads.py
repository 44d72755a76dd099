"""Reads messages from a shard's store: one by its key, or many by a filter in the order of their due times."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from duemq.cluster.shards.shard_reader import MessageState, Query, SearchPart, Status
from duemq.delay.reads.indexed_reads import IndexedReads
from duemq.delay.replica.prefetch import PrefetchedView, prefetch_part
from duemq.delay.shard.shard import Shard
from duemq.model.errors import DamagedFile, Unavailable
from duemq.model.messages.ended import CANCELLED, PURGED, EndedMessage
from duemq.model.messages.key import HIGHEST, last_key_at, offset_of
from duemq.model.messages.message import CANCEL
from duemq.model.messages.names import prefixes_of
from duemq.model.messages.row import name_of, read_row, topic_of
from duemq.model.messages.row_notes import PastChange, notes_of
from duemq.storage.keyspace import ENDED, ROW
from duemq.storage.shard.store import ShardStore

_PART = 500  # rows examined before other tasks run
_PART_BYTES = 4 << 20
_HEADS = 50  # rows read together, without their payloads
_LOOK_AT = 50_000  # rows examined per call and shard
_PAGE_BYTES = 4 << 20  # the most bytes of messages per call and shard, without payloads


class Reads:
    """Reads of one shard. They reflect everything that was acknowledged as durable."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def _current_keys(self, first_keys: Sequence[bytes]) -> list[bytes]:
        return [now or first for now, first in zip(self._shard.store.current_keys(first_keys), first_keys, strict=True)]

    async def state(self, first_key: bytes) -> MessageState | None:
        ((key, ended, row),) = await self._look_up([first_key])
        if ended is not None:
            return self._ended_state(ended)
        return None if row is None else self._live_state(key, row)

    async def _look_up(
        self, first_keys: Sequence[bytes], *, payload: bool = True
    ) -> list[tuple[bytes, EndedMessage | None, bytes | None]]:
        """The current key of each message, its ending, and its row."""
        store = self._shard.store
        ahead = PrefetchedView(store)
        with self._report_damage(store):
            await ahead.read(self._current_keys(first_keys), payload=payload)
            keys: list[bytes] = []
            while self._shard.store is store and keys != (keys := self._current_keys(first_keys)):
                await ahead.read_endings(keys)
            if self._shard.store is not store:
                raise Unavailable(f"shard {self._shard.number} was replaced in the meantime")
            return list(zip(keys, ahead.endings(keys), ahead.rows(keys), strict=True)) if payload else ahead.heads(keys)

    async def rows_at(self, keys: Sequence[bytes]) -> list[tuple[bytes, EndedMessage | None, bytes | None]]:
        """For the messages under these keys: their endings, if any, and their rows without payloads, all from one
        moment."""
        store = self._shard.store
        view = PrefetchedView(store)
        with self._report_damage(store):
            await view.read(keys, payload=False)
            await view.read_endings(keys)
            self.check_store(store)
            return view.heads(keys)

    def check_store(self, store: ShardStore) -> None:
        """Raise Unavailable if this is no longer the shard's store."""
        if self._shard.store is not store or self._shard.rebuilding:
            raise Unavailable(f"shard {self._shard.number} was replaced in the meantime")

    @contextmanager
    def _report_damage(self, store: ShardStore) -> Iterator[None]:
        try:
            yield
        except DamagedFile as error:
            self._shard.lose(store, error)
            raise Unavailable(f"shard {self._shard.number}: {error}", retry_after_s=5) from error

    async def heads(self, first_keys: Sequence[bytes]) -> list[MessageState | None]:
        """The states of many messages, without their payloads."""
        states: list[MessageState | None] = []
        for start in range(0, len(first_keys), _HEADS):
            for key, ended, row in await self._look_up(first_keys[start : start + _HEADS], payload=False):
                state = (
                    self._ended_state(ended)
                    if ended is not None
                    else None
                    if row is None
                    else self._live_state(key, row)
                )
                states.append(None if state is None else state.head())
            await asyncio.sleep(0)
        return states

    async def topics(self, first_keys: Sequence[bytes]) -> list[str | None]:
        """The topic of each message; None if the message is unknown or forgotten."""
        topics: list[str | None] = []
        for start in range(0, len(first_keys), _HEADS):
            for _, ended, row in await self._look_up(first_keys[start : start + _HEADS], payload=False):
                raw = row if ended is None else ended.row
                topics.append(None if raw is None else topic_of(raw).decode())
            await asyncio.sleep(0)
        return topics

    async def when_ended(self, first_keys: Sequence[bytes]) -> list[int]:
        """When each message was delivered, cancelled or dead-lettered (ms); 0 if it was not, or if it is forgotten."""
        times: list[int] = []
        for start in range(0, len(first_keys), _HEADS):
            # One at a time, because a dead letter is read with its payload. Rows are not read at all.
            times += map(self._ended_at, self._current_keys(first_keys[start : start + _HEADS]))
            await asyncio.sleep(0)
        return times

    def _ended_at(self, key: bytes) -> int:
        store = self._shard.store
        (ended,) = store.endings([key])
        if ended is not None:
            return ended.at
        if key > self._shard.replica.entry.cursor or not store.has_row(key):
            return 0
        return store.delivered_at(key, offset_of(key))

    def _live_state(self, key: bytes, row: bytes) -> MessageState:
        if key > self._shard.replica.entry.cursor:
            return self._make(row, "scheduled")
        return self._make(row, "delivered", delivered_at=self._shard.store.delivered_at(key, offset_of(key)))

    def _ended_state(self, ended: EndedMessage) -> MessageState:
        if ended.status == CANCELLED:
            return self._make(ended.row, "cancelled", cancelled_at=ended.at, cancelled_by=ended.cancelled_by)
        reason = f"purged ({ended.reason})" if ended.status == PURGED else ended.reason
        state = self._make(ended.row, "dead", dead_at=ended.at, reason=reason)
        return replace(state, payload=None, has_null=False) if ended.status == PURGED else state

    def _make(
        self,
        raw: bytes,
        status: Status,
        *,
        delivered_at: int = 0,
        cancelled_at: int = 0,
        cancelled_by: str = "",
        dead_at: int = 0,
        reason: str = "",
    ) -> MessageState:
        row, notes = read_row(raw), notes_of(raw)
        is_held = status in ("scheduled", "dead")
        history = notes.history
        if status == "cancelled":
            history = history.with_change(PastChange(CANCEL, cancelled_at, by=cancelled_by))
        return MessageState(
            id=row.id, status=status, topic=row.topic, due=row.due, key=row.key, labels=row.labels, headers=row.headers,
            attempt=row.attempt + (status == "delivered"), expires=row.expires,
            payload=row.payload if is_held else None, has_null=is_held and row.payload is None,
            delivered_at=delivered_at, cancelled_at=cancelled_at, dead_at=dead_at, reason=reason,
            redrives=row.redrives, attempts=notes.attempts, history=history, name=row.name,
        )  # fmt: skip

    async def find(self, query: Query, after: bytes) -> SearchPart:
        """Matching messages above the key `after`, in order, at most `query.limit`, and about 4 MiB.

        If the query asks for the newest first, `after` and the keys in the answer are places. Raises the errors of
        `IndexedReads`.
        """
        indexed = IndexedReads(self, self._shard.store)
        if query.newest:
            return await indexed.newest(query, after)
        cursor = self._shard.replica.entry.cursor
        through = HIGHEST if query.due_to is None else last_key_at(max(query.due_to - 1, 0))
        if query.due_from:
            after = max(after, last_key_at(query.due_from - 1))
        prefix = ROW
        if query.status == "scheduled":
            after = max(after, cursor)
        elif query.status == "delivered":
            through = min(through, cursor)
        else:
            prefix = ENDED
        if (part := await indexed.soonest(query, after, through)) is not None:
            return part
        matches: list[tuple[bytes, MessageState]] = []
        row_count = size = 0
        while True:
            store = self._shard.store
            messages: list[tuple[bytes, bytes, EndedMessage | None]]
            last_key: bytes | None
            if prefix == ROW:
                with self._report_damage(store):
                    await prefetch_part(store, after, through)
                    if self._shard.store is not store:
                        continue
                    keys, rows, last_key = store.scan_part(after, through, _PART, _PART_BYTES)
                messages = [(key, row, None) for key, row in zip(keys, rows, strict=True)]
            else:
                with self._report_damage(store):
                    messages, last_key = await self._ended_part(store, after, through)
                    if self._shard.store is not store:
                        continue
            for key, row, ended in messages:
                if (state := self.match(query, key, row, ended)) is not None:
                    matches.append((key, state.head()))
                    size += len(row) - len(state.payload or b"")
                    if len(matches) == query.limit or size > _PAGE_BYTES:
                        return SearchPart(matches, key)
            if last_key is None:
                return SearchPart(matches, None)
            after = last_key
            row_count += len(messages)
            if row_count >= _LOOK_AT:
                return SearchPart(matches, after)
            await asyncio.sleep(0)

    async def _ended_part(
        self, store: ShardStore, after: bytes, through: bytes
    ) -> tuple[list[tuple[bytes, bytes, EndedMessage | None]], bytes | None]:
        """Keys, rows and endings of some ended messages, and the last key examined (None at the end)."""
        keys, raws = store.scan(after, through, _PART, _PART_BYTES, ENDED)
        endings: dict[bytes, EndedMessage | None] = dict(zip(keys, map(EndedMessage.decode, raws), strict=True))
        if rowless := [key for key, ended in endings.items() if ended is not None and not ended.row]:
            view = PrefetchedView(store)
            await view.read_endings(rowless)
            endings.update(zip(rowless, view.endings(rowless), strict=True))
        messages: list[tuple[bytes, bytes, EndedMessage | None]] = [
            (key, ended.row, ended) for key, ended in endings.items() if ended is not None
        ]
        return messages, keys[-1] if keys else None

    def match(self, query: Query, key: bytes, row: bytes, ended: EndedMessage | None) -> MessageState | None:
        """The state of a message if it matches the query, else None. The message's due time is not checked."""
        # Cheap tests on the raw bytes first, because most rows in a search do not match.
        if query.key is not None and query.key.encode() not in row:
            return None
        if query.label is not None and query.label.encode() not in row:
            return None
        if query.topic is not None and topic_of(row) != query.topic.encode():
            return None
        if query.topic_prefix is not None and not topic_of(row).startswith(query.topic_prefix.encode()):
            return None
        if query.name_prefix is not None and not name_of(row).startswith(prefixes_of(query.caller, query.name_prefix)):
            return None
        if ended is not None and ended.status == PURGED:
            return None
        state = self._live_state(key, row) if ended is None else self._ended_state(ended)
        if query.status is not None and state.status != query.status:
            return None
        if query.key is not None and state.key != query.key.encode():
            return None
        if query.label is not None and query.label not in state.labels:
            return None
        return state
