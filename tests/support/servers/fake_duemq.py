"""As much of a duemq server as the adapters need, in memory and with a separate clock, instead of `Client`."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

from duemq.client.http.errors import (
    AlreadyDelivered,
    BadCursor,
    IdempotencyConflict,
    NameConflict,
    NameTaken,
    Unreachable,
)
from duemq.client.http.values import Cancelled, CancelReport, CancelResult, Record, RecordPage


@dataclass
class Stored:
    """A message. `due` in ms."""

    server: FakeDuemq
    id: str
    topic: str
    payload: bytes
    due: int
    name: str | None = None
    key: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    status: str = "scheduled"
    idempotency_key: str | None = None

    @property
    def deliver_at_ms(self) -> int:
        return self.due

    def reschedule(self, *, deliver_after: timedelta) -> None:
        self.server.called("reschedule")
        self.server.tick()
        if self.status != "scheduled":
            raise AlreadyDelivered("already_delivered", "too late")
        self.due = self.server.now + int(deliver_after.total_seconds() * 1000)

    def cancel(self, *, wait_s: float) -> Cancelled:
        self.server.called("cancel")
        self.server.tick()
        if self.status == "delivered":
            raise AlreadyDelivered("already_delivered", "too late")
        self.status = "cancelled"
        return Cancelled(self.id, self.server.now)


class FakeDuemq:
    """`away`: the calls that fail, each time, and their errors. `lost`: how many answers of `send` get lost."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self.messages: list[Stored] = []
        self.delivered: dict[str, list[Stored]] = {}
        self.places: dict[tuple[str, str], int] = {}
        self.away: dict[str, Exception] = {}
        self.lost = 0
        self.calls: list[str] = []
        self.trimmed: dict[str, int] = {}  # by topic, the first record that is still there

    def called(self, what: str) -> None:
        self.calls.append(what)
        if what in self.away:
            raise self.away[what]

    def seconds(self) -> float:
        """A clock for leases."""
        return self.now / 1000

    def advance(self, seconds: float) -> None:
        self.now += int(seconds * 1000)
        self.tick()

    def tick(self) -> None:
        for message in sorted(self.messages, key=lambda message: message.due):
            if message.status == "scheduled" and message.due <= self.now:
                message.status = "delivered"
                self.delivered.setdefault(message.topic, []).append(message)

    # --- what the adapters call -----------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        payload: bytes = b"",
        *,
        name: str | None = None,
        if_new: bool = True,
        deliver_at: datetime | int | None = None,
        deliver_after: timedelta | None = None,
        key: str | None = None,
        headers: dict[str, str] | None = None,
        labels: list[str] | None = None,
        idempotency_key: str | None = None,
    ) -> Stored:
        self.called("send")
        due = self.now if deliver_after is None else self.now + int(deliver_after.total_seconds() * 1000)
        if deliver_at is not None:
            due = deliver_at if isinstance(deliver_at, int) else int(deliver_at.timestamp() * 1000)
        message = Stored(
            self, f"id{len(self.messages)}", topic, payload, due, name, key, dict(headers or {}), tuple(labels or ())
        )
        message.idempotency_key = idempotency_key
        known = next((other for other in self.messages if name and other.name == name), None)
        if idempotency_key is not None:
            known = next((other for other in self.messages if other.idempotency_key == idempotency_key), None)
        if known is None:
            self.messages.append(message)
        elif idempotency_key is not None:
            if (known.payload, known.headers) != (payload, message.headers):
                raise IdempotencyConflict("idempotency_conflict", "the key was used for another message")
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

    def list(self, *, topic: str, label: str, due_to: int) -> Iterator[Any]:
        self.called("list")
        self.tick()
        pending = [m for m in self.messages if m.topic == topic and m.status == "scheduled" and m.due < due_to]
        return iter([m for m in pending if label in m.labels])

    def records(
        self, topic: str, *, after: str | None = None, consumer: str = "", max: int, wait: timedelta = timedelta(0)
    ) -> RecordPage:
        self.called("records")
        self.tick()
        first, end = self.trimmed.get(topic, 0), len(self.delivered.get(topic, []))
        start = self.places.get((topic, consumer), first) if after is None else int(after)
        if start > end:
            raise BadCursor("bad_cursor", "beyond the end: the log was begun anew")
        if start == end:
            self.advance(wait.total_seconds())
        start = builtins.max(start, first)
        found = self.delivered.get(topic, [])[start : start + max]
        records = [
            Record(
                topic,
                0,
                start + at,
                self.now,
                m.key,
                m.payload,
                {"duemq-id": m.id, "duemq-due": str(m.due)} | m.headers,
            )
            for at, m in enumerate(found)
        ]
        return RecordPage(records, str(start + len(found)))

    def committed_cursor(self, topic: str, consumer: str) -> str | None:
        self.called("place")
        place = self.places.get((topic, consumer))
        return None if place is None else str(place)

    def end(self, topic: str) -> str | None:
        self.called("end")
        return str(len(self.delivered[topic])) if topic in self.delivered else None

    def commit(self, topic: str, consumer: str, cursor: str) -> None:
        self.called("commit")
        self.places[topic, consumer] = int(cursor)

    def of(self, topic: str) -> SimpleNamespace:
        """The payloads delivered to a topic, and those pending, but for leases."""
        mine = [m for m in self.messages if m.topic == topic and not m.labels]
        return SimpleNamespace(
            delivered=[m.payload for m in self.delivered.get(topic, []) if not m.labels],
            pending=[m.payload for m in mine if m.status == "scheduled"],
        )
