"""An outlet for tests: it stores messages, and replies as the test demands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from duemq.client.consumer.message import Message
from duemq.relay.base import Reply, Result

_ACCEPTED = Reply(Result.ACCEPTED, "ok")


class MemoryOutlet:
    """`answer`: returns the reply to a message; None means accepted. `delay_s`: how long each reply takes. `gate`:
    replies wait until it is set."""

    concurrency = 100

    def __init__(self, answer: Callable[[Message], Reply] | None = None, delay_s: float = 0.0) -> None:
        self.answer, self.delay_s = answer, delay_s
        self.gate: asyncio.Event | None = None
        self.messages: list[Message] = []
        self.in_flight = self.most_in_flight = 0
        self.closed = False

    async def send(self, message: Message) -> Reply:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            if self.gate is not None:
                await self.gate.wait()
            reply = _ACCEPTED if self.answer is None else self.answer(message)
            if reply.result is Result.ACCEPTED:
                self.messages.append(message)
            return reply
        finally:
            self.in_flight -= 1

    async def close(self) -> None:
        self.closed = True
