"""As much of a duemq server as the adapters need, in memory and with a separate clock, instead of `Client`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from types import SimpleNamespace

from duemq.client.http.errors import NameConflict, NameTaken, Unreachable
from duemq.client.http.values import CancelReport, CancelResult


@dataclass
class Stored:
    """A message. `due` in ms."""

    topic: str
    payload: bytes
    due: int
    name: str | None = None
    key: str | None = None
    status: str = "scheduled"


class FakeDuemq:
    """`away`: the calls that fail, each time, and their errors. `lost`: how many answers of `send` get lost."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self.messages: list[Stored] = []
        self.delivered: list[Stored] = []
        self.away: dict[str, Exception] = {}
        self.lost = 0
        self.calls: list[str] = []

    def called(self, what: str) -> None:
        self.calls.append(what)
        if what in self.away:
            raise self.away[what]

    def advance(self, seconds: float) -> None:
        self.now += int(seconds * 1000)
        self.tick()

    def tick(self) -> None:
        for message in sorted(self.messages, key=lambda message: message.due):
            if message.status == "scheduled" and message.due <= self.now:
                message.status = "delivered"
                self.delivered.append(message)

    def take(self) -> list[bytes]:
        """The payloads delivered since the last call."""
        delivered, self.delivered = self.delivered, []
        return [message.payload for message in delivered]

    # --- what the adapters call -----------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        payload: bytes = b"",
        *,
        deliver_at: datetime | int,
        name: str | None = None,
        if_new: bool = True,
        key: str | None = None,
    ) -> Stored:
        self.called("send")
        due = deliver_at if isinstance(deliver_at, int) else int(deliver_at.timestamp() * 1000)
        message = Stored(topic, payload, due, name, key)
        known = next((other for other in self.messages if name and other.name == name), None)
        if known is None:
            self.messages.append(message)
        elif if_new:
            raise NameTaken("name_taken", "there is a message of that name")
        elif (known.payload, known.due) != (payload, due):
            raise NameConflict("name_conflict", "there is another message of that name")
        self.tick()
        if self.lost:
            self.lost -= 1
            raise Unreachable("the answer was lost", outcome_unknown=True)
        return known or message

    def cancel_many(self, ids: list[str]) -> CancelReport:
        self.called("cancel_many")
        self.tick()
        results = []
        for name in ids:
            found = next((message for message in self.messages if message.name == name), None)
            if found is not None and found.status == "scheduled":
                found.status = "cancelled"
            status = "unknown" if found is None else found.status
            results.append(CancelResult(name, "already_delivered" if status == "delivered" else status))
        return CancelReport(tuple(results), {})

    def of(self, topic: str) -> SimpleNamespace:
        """The payloads of a topic: all that were delivered, and those pending."""
        mine = [message for message in self.messages if message.topic == topic]
        return SimpleNamespace(
            **{
                status: [message.payload for message in mine if message.status == known]
                for status, known in (("delivered", "delivered"), ("pending", "scheduled"))
            }
        )
