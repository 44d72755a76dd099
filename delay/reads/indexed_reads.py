"""Finds messages by key or label through the index of a shard, without scanning all messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from duemq.cluster.shards.shard_reader import MessageState, Query, SearchPart
from duemq.model.errors import Rejected, Unavailable
from duemq.model.messages.ended import EndedMessage
from duemq.model.messages.key import due_of
from duemq.model.messages.place import PLACE_BYTES, key_at
from duemq.storage.message_index.index import MessageIndex
from duemq.storage.message_index.terms import key_hash, label_hash
from duemq.storage.shard.store import ShardStore

_TOGETHER = 50  # rows read together
_LOOK_AT = 2_000  # entries examined per call
_MAX_SORTED = 5_000  # the most entries sorted by due time; with more, scanning all messages is no slower
_ATTEMPTS = 3  # attempts to search while no message gets another key
_PAGE_BYTES = 4 << 20


def hash_for(query: Query) -> bytes | None:
    """The hash for a query's term. If the query has a key and a label, the key is used: it is more selective."""
    if query.key is not None:
        return key_hash(query.key.encode())
    return None if query.label is None else label_hash(query.label.encode())


class RowReader(Protocol):
    """Reads the rows that index entries refer to: `Reads`."""

    async def rows_at(self, keys: Sequence[bytes]) -> list[tuple[bytes, EndedMessage | None, bytes | None]]: ...
    def match(self, query: Query, key: bytes, row: bytes, ended: EndedMessage | None) -> MessageState | None: ...
    def check_store(self, store: ShardStore) -> None: ...


class IndexedReads:
    """Searches of one shard's index."""

    def __init__(self, reads: RowReader, store: ShardStore) -> None:
        self._reads, self._store = reads, store

    async def newest(self, query: Query, after: bytes) -> SearchPart:
        """Matching messages at places above `after`, at most `query.limit`.

        Raises Rejected `not_indexed`, and Unavailable if the index is not built yet.
        """
        hash_ = hash_for(query)
        if hash_ is None:
            raise Rejected("bad_query", "newest first takes a key or a label", "order")
        _check_index(self._store.index, query.topic)
        matches: list[tuple[bytes, MessageState]] = []
        looked = size = 0
        while True:
            places = await self._look_up(hash_, after, query)
            for place, state, row_bytes in places:
                if state is None:
                    continue
                matches.append((place, state))
                size += row_bytes
                if len(matches) == query.limit or size > _PAGE_BYTES:
                    return SearchPart(matches, place)
            if len(places) < _TOGETHER:
                return SearchPart(matches, None)
            after = places[-1][0]
            looked += len(places)
            if looked >= _LOOK_AT:
                return SearchPart(matches, after)
            await asyncio.sleep(0)

    async def _look_up(self, hash_: bytes, after: bytes, query: Query) -> list[tuple[bytes, MessageState | None, int]]:
        """The next places with, for each, the state of its message (None if it does not match) and the bytes of its
        row.

        A message that is moved during the call may be found at neither of its places. Then the search is repeated.
        """
        index = self._store.index
        for _ in range(_ATTEMPTS):
            before = index.version, index.added
            places = await self._places(hash_, after, _TOGETHER)
            rows = await self._reads.rows_at([key_at(place) for place in places])
            if before == (index.version, index.added) or all(ended or row for _, ended, row in rows):
                break
        answers: list[tuple[bytes, MessageState | None, int]] = []
        for place, (key, ended, row) in zip(places, rows, strict=True):
            raw = row if ended is None else ended.row
            due = due_of(key)
            is_due = (query.due_from is None or due >= query.due_from) and (query.due_to is None or due < query.due_to)
            state = self._reads.match(query, key, raw, ended) if raw and is_due else None
            answers.append((place, None if state is None else state.head(), len(raw or b"")))
        return answers

    async def soonest(self, query: Query, after: bytes, through: bytes) -> SearchPart | None:
        """Matching messages whose keys are above `after` and not above `through`, at most `query.limit`.

        None if the index cannot answer, because the topic is not indexed or because there are too many entries to sort.
        """
        hash_ = hash_for(query)
        if hash_ is None or not (index := self._store.index).covers(query.topic):
            return None
        for attempt in range(_ATTEMPTS):
            before = index.version, index.added
            places = await self._places(hash_, bytes(PLACE_BYTES), _MAX_SORTED + 1)
            if len(places) > _MAX_SORTED:
                return None
            keys = [key for key in sorted(map(key_at, places)) if after < key <= through]
            part, whole = await self._among(query, keys)
            if whole or attempt == _ATTEMPTS - 1 or before == (index.version, index.added):
                return part
        return None

    async def _among(self, query: Query, keys: Sequence[bytes]) -> tuple[SearchPart, bool]:
        """The matches among these messages, and whether a message was found under every examined key."""
        matches: list[tuple[bytes, MessageState]] = []
        size, whole = 0, True
        for start in range(0, len(keys), _TOGETHER):
            for key, ended, row in await self._reads.rows_at(keys[start : start + _TOGETHER]):
                raw = row if ended is None else ended.row
                if not raw:
                    whole = False
                elif (state := self._reads.match(query, key, raw, ended)) is not None:
                    matches.append((key, state.head()))
                    size += len(raw)
                    if len(matches) == query.limit or size > _PAGE_BYTES:
                        return SearchPart(matches, key), whole
            await asyncio.sleep(0)
        return SearchPart(matches, None), whole

    async def _places(self, hash_: bytes, after: bytes, most: int) -> list[bytes]:
        """The first places above `after` that have this hash, in order."""
        index = self._store.index
        while True:
            version, places = index.version, set[bytes]()
            for part in index.search(hash_, after, most):
                if index.version != version:
                    break
                places.update(part)
                await asyncio.sleep(0)
                self._reads.check_store(self._store)
            else:
                return sorted(places)[:most]


def _check_index(index: MessageIndex, topic: str | None) -> None:
    if not index.is_on(topic) and (topic is not None or not index):
        what = "messages are" if topic is None else f"topic {topic} is"
        raise Rejected("not_indexed", f"{what} not indexed here: index.topics lists the indexed topics", "topic")
    if not index.built:
        raise Unavailable("the index is being built")
