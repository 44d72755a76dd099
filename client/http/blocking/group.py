# Made from client/http/aio/group.py by `make sdk`: change that file.
"""A group of workers that share a topic's messages, as a client returns it."""

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
    """Executes a plan; see `Session`."""

    def __call__(self, plan: Plan[T], /) -> T: ...


class Group:
    """The group `name` in a topic. `Client.group` creates the object, without a request."""

    def __init__(self, run: PlanRunner, topic: str, name: str) -> None:
        self._run, self.topic, self.name = run, topic, name

    def receive(
        self, *, max: int = 1, wait: timedelta = timedelta(0), visibility: Delay | Absent = ABSENT
    ) -> Sequence[ReceivedMessage]:
        """Lease up to `max` messages (at most 1,000). The first receive creates the group, which starts with the oldest
        record.

        With `wait`, the server answers as soon as a message is available, or after that time without messages. A
        message that is not acknowledged within `visibility` is delivered again. Raises `TooManyLeases`. After
        `Unreachable`, messages may be leased although no worker received them, until `visibility` has passed.
        """
        return self._run(groups.receive(self.topic, self.name, max, wait, visibility))

    def ack(self, receipt: str) -> None:
        """Acknowledge a received message. Once this returns, it is never delivered again. Raises `LeaseEnded`."""
        self._run(groups.ack(self.topic, self.name, receipt))

    def ack_many(self, receipts: Iterable[str]) -> Sequence[RejectedError | Unavailable | Unreachable | None]:
        """Acknowledge messages. Returns, for each receipt in order, None or the error, such as `LeaseEnded`."""
        return self._run(groups.ack_many(self.topic, self.name, receipts))

    def nack(
        self, receipt: str, *, delay: Delay | Absent = ABSENT, reason: str = "", dead_letter: bool = False
    ) -> None:
        """Send a received message back. It is delivered again after `delay`, by default at once; with `dead_letter`, it
        becomes a dead letter instead.

        `reason`: up to 200 characters for the message's headers. Raises `LeaseEnded`.
        """
        self._run(groups.nack(self.topic, self.name, receipt, delay, reason, dead_letter))

    def extend(self, receipt: str, visibility: Delay) -> None:
        """Change the end of a lease to `visibility` from now. Raises `LeaseEnded`."""
        self._run(groups.extend(self.topic, self.name, receipt, visibility))

    def put(self, *, visibility: Delay | Absent = ABSENT, **fields: Any) -> dict[str, Any]:
        """Create the group, or change it. A change ends the group's leases.

        `fields`: `attempts` (how often a message is delivered before it becomes a dead letter), and for a new group
        `start` ("first" or "last").
        """
        return self._run(groups.put_group(self.topic, self.name, visibility, fields))
