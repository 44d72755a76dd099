# Made from client/http/aio/message.py by `make sdk`: change that file.
"""A message, as a client returns it."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, Self, Unpack

from duemq.client.http.errors import RejectedError, Unavailable, Unreachable
from duemq.client.http.handle import Handle
from duemq.client.http.requests import When
from duemq.client.http.values import Cancelled, MessageState


class Changes(Protocol):
    """The methods of a client that its messages call: see `Client`."""

    def get(self, message_id: str) -> Message: ...
    def cancel(self, message_id: str, *, wait_s: float) -> Cancelled: ...
    def reschedule(self, message_id: str, *, shift_expiry: bool, **when: Unpack[When]) -> Message: ...
    def deliver_now(self, message_id: str) -> Message: ...


class Message(Handle):
    """A message on the server, with methods to read and change it."""

    def __init__(self, client: Changes, state: MessageState) -> None:
        super().__init__(state)
        self._client = client

    def refresh(self) -> Self:
        """Ask the server for the current state."""
        message = self._client.get(self.id)
        self.state = message.state
        return self

    def cancel(self, *, wait_s: float = 10.0) -> Cancelled:
        """See `Client.cancel`."""
        cancelled = self._client.cancel(self.id, wait_s=wait_s)
        self.state = replace(self.state, status="cancelled", cancelled_at_ms=cancelled.cancelled_at_ms)
        return cancelled

    def reschedule(self, *, shift_expiry: bool = False, **when: Unpack[When]) -> Self:
        """See `Client.reschedule`."""
        message = self._client.reschedule(self.id, shift_expiry=shift_expiry, **when)
        self.state = message.state
        return self

    def deliver_now(self) -> Self:
        """See `Client.deliver_now`."""
        message = self._client.deliver_now(self.id)
        self.state = message.state
        return self


BatchResult = Message | RejectedError | Unavailable | Unreachable
