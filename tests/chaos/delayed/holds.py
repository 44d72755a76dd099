"""Which request a proxy holds, for how long, and what releases it."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

_PATIENCE_S = 5.0  # for what lets a request go beside its time: it may never come
_LANDS_S = 2.0  # for the broker to answer a request that was let go


class Api(IntEnum):
    """Kafka's request keys."""

    PRODUCE = 0
    METADATA = 3
    FIND_COORDINATOR = 10
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS = 24
    END_TXN = 26
    DESCRIBE_CLUSTER = 60


class Request(NamedTuple):
    """One request on a connection. `door`: the number of the way in; `link`: of the connection; `frame`: its bytes
    from the key on."""

    door: int
    link: int
    key: int
    version: int
    correlation: int
    frame: bytes

    def of(self, marker: bytes) -> bool:
        """Whether it names this transactional id, or, if that is empty, is a producer's request without one."""
        head = self.frame[:400]
        return marker in head if marker else b"-shard-" not in head


@dataclass(eq=False)
class Hold:
    """One request of a kind that is held, and its fate.

    `marker`: the transactional id in the request; empty for a producer without one. `skip`: how many such requests pass
    first. `cut_s`: the client's connection is closed after this time; None = the client runs into its timeout.
    `seconds`: the shortest time it is held. `after`: beyond that it waits until a request of this kind, by the same
    producer on another connection, is answered, and lands before its client sees that answer.

    `of_answer`: the request passes at once, and its answer is held instead.

    `code`: the broker's final answer, as Kafka's error code; None until then, or if the answer is unknown here.
    `held_s`: how long it was held.
    """

    api: Api
    marker: bytes
    seconds: float
    skip: int = 0
    cut_s: float | None = None
    after: Api | None = None
    door: int = 0
    of_answer: bool = False
    request: Request | None = None
    code: int | None = None
    held_s: float = 0.0
    met: bool = False
    """Whether what it was to wait for came."""
    taken: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """All is over: its answer came and was not held, or the broker closed the connection."""
    armed: asyncio.Event = field(default_factory=asyncio.Event)
    """Its time is over, and it waits for what comes `after`."""
    _go: asyncio.Event = field(default_factory=asyncio.Event)

    def takes(self, request: Request) -> bool:
        """Whether this request is the one; it is held from then on."""
        if self.request is not None or request.key != self.api or request.door != self.door:
            return False
        if not request.of(self.marker):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.request = request
        self.taken.set()
        return True

    async def is_taken(self, within_s: float) -> bool:
        """Whether such a request comes in time."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.taken.wait(), within_s)
        return self.taken.is_set()

    async def wait(self) -> None:
        """Come back when the request may go on."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(self.seconds)
        if self.after is not None:
            self.armed.set()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._go.wait(), _PATIENCE_S)
        self.held_s = loop.time() - began

    async def note_answer(self, request: Request) -> None:
        """An answer to this request is there, and its client does not have it yet."""
        if not self.armed.is_set() or self._go.is_set() or request.key != self.after or not request.of(self.marker):
            return
        assert self.request is not None
        if (request.door, request.link) == (self.request.door, self.request.link):
            return
        self.met = True
        self._go.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.ended.wait(), _LANDS_S)


def draw_seconds(chance: random.Random, least: float, most: float = 60.0) -> float:
    """How long a request is held: most of them for short, some for up to a minute."""
    kind = chance.random()
    drawn = chance.uniform(1, 3) if kind < 0.82 else chance.uniform(3, 10) if kind < 0.94 else chance.uniform(10, 60)
    return max(min(drawn, most), least)


def error_code(request: Request, answer: bytes) -> int | None:
    """The first error code in an answer; `answer` starts at its correlation id. None if it cannot be found."""
    try:
        match request.key:
            case Api.INIT_PRODUCER_ID:
                return _i16(answer, 8 + (request.version >= 2))
            case Api.END_TXN:
                return _i16(answer, 8 + (request.version >= 3))
            case Api.ADD_PARTITIONS:
                return _nested(answer, 8 + (request.version >= 3), flexible=request.version >= 3)
            case Api.PRODUCE:
                return _nested(answer, 4 + (request.version >= 9), flexible=request.version >= 9)
    except IndexError:
        pass
    return None


def _nested(answer: bytes, at: int, *, flexible: bool) -> int | None:
    """The error of the first partition of the first topic. Lengths below 127 take one byte.

    From version 13 on Produce has ids instead of names; duemq and aiokafka send none of those.
    """
    if flexible:
        name = answer[at + 1] - 1
        return _i16(answer, at + 2 + name + 1 + 4)
    name = int.from_bytes(answer[at + 4 : at + 6])
    return _i16(answer, at + 6 + name + 4 + 4)


def _i16(raw: bytes, at: int) -> int:
    if at + 2 > len(raw):
        raise IndexError(at)
    return int.from_bytes(raw[at : at + 2], signed=True)
