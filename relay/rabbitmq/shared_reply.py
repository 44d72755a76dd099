"""The broker's answer to one message, for all callers that wait for the answer."""

from __future__ import annotations

import asyncio

from duemq.relay.base import Reply, resolve


class SharedReply:
    """The answer. `id`: the message's id."""

    __slots__ = ("_waiting", "id")

    def __init__(self, id_: str) -> None:
        self.id = id_
        self._waiting: list[asyncio.Future[Reply]] = []

    def wait(self) -> asyncio.Future[Reply]:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    def answer(self, reply: Reply) -> bool:
        """Give all waiting callers this reply. Returns whether any caller was still waiting."""
        waiting, self._waiting = self._waiting, []
        return any([resolve(future, reply) for future in waiting])
