# Made from client/http/aio/group.py by `make sdk`: change that file.
"""A group of workers that share the messages of a topic, as a client returns it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from duemq.client.http import groups
from duemq.client.http.errors import RejectedError, Unavailable, Unreachable
from duemq.client.http.exchange import Plan
from duemq.client.http.requests import ABSENT, Absent, Delay
from duemq.client.http.values import ReceivedMessage

T = TypeVar("T")


class PlanRunner(Protocol):
    """Executes a plan: see `Session`."""

    def __call__(self, plan: Plan[T], /) -> T: ...


class Group:
    """The group `name` of a topic. Made by `Client.group`, without a request."""

    def __init__(self, run: PlanRunner, topic: str, name: str) -> None:
        self._run, self.topic, self.name = run, topic, name

    def receive(
        self, *, max: int = 1, wait: timedelta = timedelta(0), visibility: Delay | Absent = ABSENT
    ) -> Sequence[ReceivedMessage]:
        """Lease up to `max` messages (at most 1,000). The first receive creates the group, which starts with the oldest
        record.

        With `wait` the server answers as soon as there is a message, or without any after that time. A message that is
        not acknowledged comes again after `visibility`. Raises `TooManyLeases`. After `Unreachable` some messages may
        be leased without a receiver until then.
        """
        return self._run(groups.receive(self.topic, self.name, max, wait, visibility))

    def ack(self, receipt: str) -> None:
        """Acknowledge a received message: it never comes again once this returns. Raises `LeaseEnded`."""
        self._run(groups.ack(self.topic, self.name, receipt))

    def ack_many(self, receipts: Iterable[str]) -> Sequence[RejectedError | Unavailable | Unreachable | None]:
        """Acknowledge messages: for each receipt None or the error, such as `LeaseEnded`."""
        return self._run(groups.ack_many(self.topic, self.name, receipts))

    def nack(
        self, receipt: str, *, delay: Delay | Absent = ABSENT, reason: str = "", dead_letter: bool = False
    ) -> None:
        """Send a received message back: it comes again after `delay`, by default at once, or becomes a dead letter.

        `reason`: up to 200 characters for its headers. Raises `LeaseEnded`.
        """
        self._run(groups.nack(self.topic, self.name, receipt, delay, reason, dead_letter))

    def extend(self, receipt: str, visibility: Delay) -> None:
        """Let a lease end `visibility` from now. Raises `LeaseEnded`."""
        self._run(groups.extend(self.topic, self.name, receipt, visibility))

    def put(self, *, visibility: Delay | Absent = ABSENT, **fields: Any) -> dict[str, Any]:
        """Create the group, or change it, which ends its leases.

        `fields`: `attempts` (deliveries before a message is a dead letter) and, for a new group, `start` ("first" or
        "last").
        """
        return self._run(groups.put_group(self.topic, self.name, visibility, fields))
