"""A message, as a client returns it."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, Self, Unpack

from duemq.client.http.errors import RejectedError, Unavailable, Unreachable
from duemq.client.http.handle import Handle
from duemq.client.http.requests import When
from duemq.client.http.values import Cancelled, MessageState


class Changes(Protocol):
    """The methods of a client that its messages call: see `AsyncClient`."""

    async def get(self, message_id: str) -> AsyncMessage: ...
    async def cancel(self, message_id: str, *, wait_s: float) -> Cancelled: ...
    async def reschedule(self, message_id: str, *, shift_expiry: bool, **when: Unpack[When]) -> AsyncMessage: ...
    async def deliver_now(self, message_id: str) -> AsyncMessage: ...


class AsyncMessage(Handle):
    """A message on the server, with methods to read and change it."""

    def __init__(self, client: Changes, state: MessageState) -> None:
        super().__init__(state)
        self._client = client

    async def refresh(self) -> Self:
        """Ask the server for the current state."""
        message = await self._client.get(self.id)
        self.state = message.state
        return self

    async def cancel(self, *, wait_s: float = 10.0) -> Cancelled:
        """See `AsyncClient.cancel`."""
        cancelled = await self._client.cancel(self.id, wait_s=wait_s)
        self.state = replace(self.state, status="cancelled", cancelled_at_ms=cancelled.cancelled_at_ms)
        return cancelled

    async def reschedule(self, *, shift_expiry: bool = False, **when: Unpack[When]) -> Self:
        """See `AsyncClient.reschedule`."""
        message = await self._client.reschedule(self.id, shift_expiry=shift_expiry, **when)
        self.state = message.state
        return self

    async def deliver_now(self) -> Self:
        """See `AsyncClient.deliver_now`."""
        message = await self._client.deliver_now(self.id)
        self.state = message.state
        return self


AsyncBatchResult = AsyncMessage | RejectedError | Unavailable | Unreachable
