# Made from client/http/aio/client.py by `make sdk`: change that file.
"""The client for senders and readers."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from typing import Any, Unpack

from duemq.client.http import groups, operations
from duemq.client.http.blocking.message import BatchResult, Message
from duemq.client.http.blocking.session import Session
from duemq.client.http.errors import RejectedError, Unavailable, Unreachable
from duemq.client.http.fields import Payload, Text, check_arguments
from duemq.client.http.requests import ABSENT, Absent, Delay, Draft, Filter, MessageOptions, When, new_draft
from duemq.client.http.tail import TailFollower
from duemq.client.http.values import (
    Cancelled,
    CancelReport,
    Limits,
    MoveReport,
    Page,
    ReceivedMessage,
    Record,
    RecordPage,
    Topic,
)

_BatchResults = list[BatchResult]
log = logging.getLogger("duemq.client")


class Client(Session):
    """A connection to a duemq server, to send, look up, cancel and read messages. `Admin` does the rest.

    Close it with `close`, or use `with`. Any number of callers may share it.
    `url` defaults to `DUEMQ_URL`, then `http://127.0.0.1:8787`; `api_key` to `DUEMQ_API_KEY`; `timeout` is in seconds.
    For https://: `ca_file` has the trusted authorities (PEM; default `DUEMQ_CA_FILE`, then the system's), `cert_file`
    and `key_file` the client's certificate. They are read again when they change. Raises `ValueError` for a URL that
    cannot be a server's, `BadConfig` for files that cannot be used. After a fork, parent and child may both use the
    client.
    `retries`: how often a single call is repeated if it had no effect, or repeating is harmless (docs/guides/sdk.md).
    Every method raises `Unreachable` without an answer, `Unavailable` if the server cannot serve now, and a
    `RejectedError` (one class per code) if the answer is no.
    """

    def send(
        self,
        topic: str,
        payload: Payload = b"",
        *,
        name: Text | None = None,
        if_new: bool = True,
        idempotency_key: Text | None = None,
        **message: Unpack[MessageOptions],
    ) -> Message:
        """Schedule a message; it is durable when this returns.

        When: one of `deliver_at` (aware datetime, RFC 3339, `EpochMs`), `deliver_after` (timedelta, "2h30m"),
        `delay_level`; without any it is sent at once. None as a time is refused. Other options: `key`, `headers`,
        `labels`, `expires_at`, `expires_after`, `zone` (see `MessageOptions`). `payload`: bytes are sent unchanged, str
        as UTF-8, dicts, lists and dataclasses as JSON text, None as null.

        `name` is an id that you choose: `NameTaken` if it exists. With `if_new=False`, the same message again returns
        the first one (`duplicate`), and another one under that name raises `NameConflict`. `idempotency_key` makes a
        repeat harmless: the first message is returned, with `duplicate` true.
        """
        draft = new_draft(topic, payload, message)
        return Message(self, self._run(operations.send(draft, name, if_new, idempotency_key)))

    def send_batch(self, drafts: Iterable[Draft]) -> _BatchResults:
        """Schedule many at once: for each draft, in order, its message or the error that refused it.

        Any number of drafts, sent in requests of at most 10,000 messages and 32 MiB. Raises `BatchInterrupted` with
        the results so far if a later request fails.

        A draft with a `name` or an `idempotency_key` is accepted once: the same again returns the first message
        (`duplicate`), another one `NameConflict` or `IdempotencyConflict`. The client retries drafts of unknown outcome
        that have one of the two, up to three times; a draft that an earlier attempt got accepted is then a `duplicate`.
        A request without any answer is retried only if all its drafts have one of the two.
        """
        return self._run(operations.send_batch(drafts, lambda state: Message(self, state)))

    def get(self, message_id: Text) -> Message:
        """Look a message up by its id or name."""
        return Message(self, self._run(operations.get(message_id)))

    def story(self, message_id: Text) -> dict[str, Any]:
        """Return a message's story after its delivery: `place` in its topic, and `readers`, each with `state`, `events`
        and `retry`, as in the API (docs/reference/api.md, "Story")."""
        return self._run(operations.story(message_id))

    def list(self, *, page_size: int = 1000, **filters: Unpack[Filter]) -> Iterator[Message]:
        """Iterate over all messages that match, page by page, in order of due times. Default: the scheduled ones.

        `order="newest"` with a key or a label: messages of any state, the last accepted, moved or redriven first.
        """
        check_arguments("list", filters, Filter.__annotations__)
        return self._pages("/v1/messages", page_size, filters)

    def page(self, cursor: str | None = None, *, page_size: int = 1000, **filters: Unpack[Filter]) -> Page:
        """Return one page of `list`. Its cursor gives the next one, until it is None."""
        check_arguments("page", filters, Filter.__annotations__)
        return self._run(operations.list_page(filters, page_size, cursor))

    def cancel(self, message_id: Text, *, wait_s: float = 10.0) -> Cancelled:
        """Cancel a message by its id or name. Repeating the call gives the same answer.

        Raises `AlreadyDelivered`, `UnknownMessage`, or `PendingError` if the answer is not known within `wait_s`.
        """
        return self._run(operations.cancel(message_id, wait_s, time.monotonic))

    def cancel_many(
        self, ids: Iterable[Text] | None = None, *, filter: Filter | None = None, times: bool = False
    ) -> CancelReport:
        """Cancel messages by id or name, or all that match a filter. The report has the outcome of each.

        With `times` it also has when each ended, which costs one more read for each that had ended before.
        """
        return self._run(operations.cancel_many(ids, filter, times))

    def reschedule(self, message_id: Text, *, shift_expiry: bool = False, **when: Unpack[When]) -> Message:
        """Reschedule a message, with a time as in `send`. Raises `AlreadyDelivered`, `AlreadyCancelled`, and `BadTime`
        for a time after its expiry; with `shift_expiry` the expiry moves by the same amount."""
        return Message(self, self._run(operations.reschedule(message_id, when, shift_expiry)))

    def reschedule_many(
        self, moves: Iterable[tuple[Text, When]], *, times: bool = False, shift_expiry: bool = False
    ) -> MoveReport:
        """Reschedule messages, each with a time as in `send`. The report has the outcome of each.

        Those with absolute times can be repeated. `shift_expiry`: see `reschedule`.
        """
        return self._run(operations.reschedule_many(moves, times, shift_expiry))

    def deliver_now(self, message_id: Text) -> Message:
        """Deliver a message at once instead of when it is due."""
        return Message(self, self._run(operations.deliver_now(message_id)))

    def records(
        self,
        topic: str,
        *,
        after: str | None = None,
        consumer: str | None = None,
        max: int = 1000,
        wait: timedelta = timedelta(0),
    ) -> RecordPage:
        """Read up to `max` (at most 10,000) delivered records, and the cursor to continue from.

        They start at `after`, else at the consumer's committed cursor, else at the start of the topic. With `wait` the
        server answers as soon as there is a record, or without records after that time.
        """
        return self._run(operations.records(topic, after, consumer, max, wait))

    def tail(
        self, topic: str, consumer: str | None = None, *, after: str | None = None
    ) -> Generator[Record, None, None]:
        """Iterate over records as they are delivered, without end. It survives lost connections.

        It starts as `records` does (`after=client.end(topic)`: only new ones), and commits no cursor: see `commit`.
        """
        follow = TailFollower(topic, after, consumer)
        if consumer is not None:
            self._cursors.pop((topic, consumer), None)  # the server knows the cursor
        while True:
            try:
                with closing(self._stream(follow)) as records:
                    yield from records
            except (Unreachable, Unavailable) as error:
                pause_s = follow.lost(error)
                log.warning("tail of %s: %s; connecting again in %.1f s", topic, error, pause_s)
            else:
                pause_s = follow.lost(None)
            time.sleep(pause_s)

    def end(self, topic: str) -> str | None:
        """Return the cursor after the last record; None for a topic that does not exist yet."""
        return self._run(operations.end(topic))

    def committed_cursor(self, topic: str, consumer: str) -> str | None:
        """Return the cursor that the consumer committed last in the topic; None if it never did."""
        return self._run(operations.committed_cursor(topic, consumer, self._cursors))

    def commit(self, topic: str, consumer: str, cursor: str) -> None:
        """Commit `cursor` for the consumer: `records` and `tail` continue there.

        Raises `ConsumerInUse` if another process has committed since this client did, or looked the cursor up.
        """
        self._run(operations.commit(topic, consumer, cursor, self._cursors))

    def receive(
        self,
        topic: str,
        group: str,
        *,
        max: int = 1,
        wait: timedelta = timedelta(0),
        visibility: Delay | Absent = ABSENT,
    ) -> Sequence[ReceivedMessage]:
        """Lease up to `max` (at most 1,000) messages of a topic; the workers of a group share them. The first receive
        creates the group, which starts with the oldest record.

        With `wait` the server answers as soon as there is a message, or without any after that time. A message that is
        not acknowledged comes again after `visibility`. Raises `TooManyLeases`. After `Unreachable` some may be leased
        without a receiver until then.
        """
        return self._run(groups.receive(topic, group, max, wait, visibility))

    def ack(self, topic: str, group: str, receipt: str) -> None:
        """Acknowledge a received message: it never comes again once this returns. Raises `LeaseEnded`."""
        self._run(groups.ack(topic, group, receipt))

    def ack_many(
        self, topic: str, group: str, receipts: Iterable[str]
    ) -> Sequence[RejectedError | Unavailable | Unreachable | None]:
        """Acknowledge messages: for each receipt None or the error, such as `LeaseEnded`."""
        return self._run(groups.ack_many(topic, group, receipts))

    def nack(
        self,
        topic: str,
        group: str,
        receipt: str,
        *,
        delay: Delay | Absent = ABSENT,
        reason: str = "",
        dead_letter: bool = False,
    ) -> None:
        """Send a received message back: it comes again after `delay`, by default at once, or becomes a dead letter.

        `reason`: up to 200 characters for its headers. Raises `LeaseEnded`.
        """
        self._run(groups.nack(topic, group, receipt, delay, reason, dead_letter))

    def extend(self, topic: str, group: str, receipt: str, visibility: Delay) -> None:
        """Let a lease end `visibility` from now. Raises `LeaseEnded`."""
        self._run(groups.extend(topic, group, receipt, visibility))

    def put_group(
        self, topic: str, group: str, *, visibility: Delay | Absent = ABSENT, **fields: Any
    ) -> dict[str, Any]:
        """Create a group, or change it, which ends its leases.

        `fields`: `attempts` (deliveries before a message is a dead letter) and, of a new group, `start` ("first" or
        "last").
        """
        return self._run(groups.put_group(topic, group, visibility, fields))

    def topics(self) -> Sequence[Topic]:
        return self._run(operations.topics())

    def topic(self, name: str) -> Topic:
        return self._run(operations.topic(name))

    def limits(self) -> Limits:
        """Return the server's limits, to check messages before sending them."""
        return self._run(operations.limits())

    def _pages(self, path: str, page_size: int, filters: Filter) -> Iterator[Message]:
        cursor: str | None = None
        while True:
            page = self._run(operations.list_page(filters, page_size, cursor, path))
            for state in page.messages:
                yield Message(self, state)
            if (cursor := page.cursor) is None:
                return
