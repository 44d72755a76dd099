"""The common base of both clients' message objects: a state, readable by name."""

from __future__ import annotations

from datetime import datetime

from duemq.client.http.times import EpochMs, from_ms
from duemq.client.http.values import MessageState


class Handle:
    """A message and its last known state. `state` has all fields; the most used ones are also properties."""

    def __init__(self, state: MessageState) -> None:
        self.state = state

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.status} to {self.topic}, due {self.deliver_at.isoformat()}>"

    @property
    def id(self) -> str:
        return self.state.id

    @property
    def status(self) -> str:
        """ "scheduled", "delivered", "cancelled" or "dead", as of the last request."""
        return self.state.status

    @property
    def topic(self) -> str:
        return self.state.topic

    @property
    def deliver_at(self) -> datetime:
        return from_ms(self.state.deliver_at_ms)

    @property
    def deliver_at_ms(self) -> EpochMs:
        return self.state.deliver_at_ms

    @property
    def duplicate(self) -> bool:
        """Whether the message already existed, under the same name or idempotency key."""
        return self.state.duplicate

    @property
    def payload(self) -> bytes | None:
        """The payload, after `refresh()` or `get` and while the server keeps it."""
        return self.state.payload
