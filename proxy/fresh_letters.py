"""Finds the dead letters of the last 24 hours that wait for a decision, in all topics of dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from duemq.bus.base import TopicInfo
from duemq.model.callers.access import Grant
from duemq.model.errors import DuemqError
from duemq.model.messages.dead_letters import MALFORMED, LetterOrigin, id_of, origin_of
from duemq.model.messages.names import of_redrive
from duemq.model.messages.record import unpack_record
from duemq.model.topics.rules import is_name
from duemq.model.topics.topic_patterns import topic_matcher
from duemq.proxy.gateway.base import Gateway

SINCE_MS: Final = 24 * 3_600_000
_EVERY_MS, _PATIENCE_S = 15_000, 2.0
_RECORDS, _BYTES = 50, 1 << 20  # read from one topic
_PARTITIONS: Final = 256  # read in all topics together
_MAX_REASON: Final = 60  # characters; the text is untrusted


class FreshLetter(NamedTuple):
    """`source`: its topic of dead letters; `topic`: its original topic, empty if unknown."""

    source: str
    topic: str
    reason: str
    is_own: bool
    """Whether duemq wrote it, so that the index of messages contains it."""

    def is_shown_to(self, grant: Grant) -> bool:
        return grant.covers(self.source) or (self.is_own and bool(self.topic) and grant.covers(self.topic))


class FreshLetters:
    """Reads up to 50 letters from each topic that matches `patterns`, leaving out redriven and purged ones. It reads
    only while a console is open, and at most every 15 s for all viewers together. `clock` returns epoch ms.

    `more`: topics with more letters. `trouble`: why `letters` may be incomplete, in a sentence."""

    def __init__(self, gateway: Gateway, patterns: Sequence[str], clock: Callable[[], int]) -> None:
        self._gateway, self._clock = gateway, clock
        self._is_source = topic_matcher(tuple(patterns))
        self._read_at, self._reading = 0, asyncio.Lock()
        self.letters: tuple[FreshLetter, ...] = ()
        self.more = frozenset[str]()
        self.trouble = ""

    async def refresh(self) -> None:
        """Read the letters again if they were last read 15 s ago or earlier."""
        async with self._reading:
            if 0 <= self._clock() - self._read_at < _EVERY_MS:
                return
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    await self._read(self._clock() - SINCE_MS)
            except (DuemqError, TimeoutError):
                self.trouble = "Dead letters cannot be counted now"
            self._read_at = self._clock()

    async def _read(self, since: int) -> None:
        left, letters, more, trouble = _PARTITIONS, list[FreshLetter](), set[str](), ""
        for info in sorted(await self._gateway.bus.topics(), key=lambda info: info.name):
            if not info.records or self._is_source(info.name) is None:
                continue
            left -= info.partitions
            if left < 0:
                trouble = f"Dead letters of the topics from {info.name} on are not counted: there are too many"
                break
            waiting, is_cut = await self._in(info, since)
            letters += waiting
            more |= {info.name} if is_cut else set()
        self.letters, self.more, self.trouble = tuple(letters), frozenset(more), trouble

    async def _in(self, info: TopicInfo, since: int) -> tuple[list[FreshLetter], bool]:
        """The fresh letters in one topic, and whether the topic has more of them."""
        bus, asked = self._gateway.bus, list[tuple[FreshLetter, str, str]]()
        for partition, (start, end) in enumerate(zip(info.start_offsets, info.end_offsets, strict=True)):
            offset = end if start == end else await bus.first_since(info.name, partition, since)
            if offset >= end:
                continue
            if len(asked) == _RECORDS:
                return await self._waiting(asked), True
            for record in await bus.read(info.name, partition, offset, _RECORDS - len(asked), _BYTES):
                headers, offset = unpack_record(record.frame).headers, record.offset + 1
                origin, id_ = origin_of(headers) or LetterOrigin("", ""), id_of(headers)
                is_own = origin.writer == "duemq" and origin.reason != MALFORMED and is_name(id_)
                place = f"{info.name}/{partition}/{record.offset}/{record.timestamp}"
                asked.append((FreshLetter(info.name, origin.topic, origin.reason[:_MAX_REASON], is_own), place, id_))
            if offset + bus.marker_offsets < end:  # a transaction marker follows the last record
                return await self._waiting(asked), True
        return await self._waiting(asked), False

    async def _waiting(self, asked: Sequence[tuple[FreshLetter, str, str]]) -> list[FreshLetter]:
        """The letters that were neither redriven nor purged."""
        if not asked:
            return []
        redriven = await self._gateway.named([(of_redrive(place), b"") for _, place, _ in asked])
        left = [(letter, id_) for (letter, _, id_), known in zip(asked, redriven, strict=True) if known is None]
        states = await asyncio.gather(*(self._gateway.state(id_) for letter, id_ in left if letter.is_own))
        dead = iter([state is not None and state.status == "dead" for state in states])
        return [letter for letter, _ in left if not letter.is_own or next(dead)]
