"""The client for senders and readers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Any, Unpack

from duemq.client.http import operations
from duemq.client.http.aio.group import AsyncGroup
from duemq.client.http.aio.message import AsyncBatchResult, AsyncMessage
from duemq.client.http.aio.session import AsyncSession
from duemq.client.http.errors import Unavailable, Unreachable
from duemq.client.http.fields import Payload, Text, check_arguments
from duemq.client.http.requests import Draft, Filter, MessageOptions, When, new_draft
from duemq.client.http.tail import TailFollower
from duemq.client.http.values import (
    Cancelled,
    CancelReport,
    Limits,
    MoveReport,
    Page,
    Record,
    RecordPage,
    Topic,
)

_BatchResults = list[AsyncBatchResult]
log = logging.getLogger("duemq.client")


class AsyncClient(AsyncSession):
    """A connection to a duemq server, to send, look up, cancel and read messages. `AsyncAdmin` has all other calls.

    Close it with `aclose`, or use `async with`. Any number of callers may share it.
    `url` defaults to `DUEMQ_URL`, then `http://127.0.0.1:8787`; `api_key` to `DUEMQ_API_KEY`; `timeout` is in seconds.
    For https://: `ca_file` contains the trusted authorities (PEM; default `DUEMQ_CA_FILE`, then the system's);
    `cert_file` and `key_file` contain the client's certificate and key. The files are read again when they change.
    Raises `ValueError` for an invalid server URL, and `BadConfig` for unusable files. After a fork, parent and child
    may both use the client.
    `retries`: how often a single call is repeated if it had no effect, or repeating is harmless (docs/guides/sdk.md).
    Every method raises `Unreachable` if no answer comes, `Unavailable` if the server cannot serve the request now, and
    a `RejectedError` (one class per code) if the server refuses it.
    """

    async def send(
        self,
        topic: str,
        payload: Payload = b"",
        *,
        name: Text | None = None,
        if_new: bool = True,
        idempotency_key: Text | None = None,
        **message: Unpack[MessageOptions],
    ) -> AsyncMessage:
        """Schedule a message. It is durable once this returns.

        Pass one time: `deliver_at` (aware datetime, RFC 3339, `EpochMs`), `deliver_after` (timedelta, "2h30m") or
        `delay_level`. Without a time, the message is delivered at once. None as a time is refused. Other options:
        `key`, `headers`, `labels`, `expires_at`, `expires_after`, `zone` (see `MessageOptions`). `payload`: bytes are
        sent unchanged, str as UTF-8, dicts, lists and dataclasses as JSON text, None as null.

        `name` is an id that you choose. Raises `NameTaken` if a message with this name exists. With `if_new=False`,
        sending the same message again returns the first one (with `duplicate` true), and sending another message under
        that name raises `NameConflict`. `idempotency_key` makes a repeat harmless: the first message is returned, with
        `duplicate` true.
        """
        draft = new_draft(topic, payload, message)
        return AsyncMessage(self, await self._run(operations.send(draft, name, if_new, idempotency_key)))

    async def send_batch(self, drafts: Iterable[Draft]) -> _BatchResults:
        """Schedule many messages at once. Returns, for each draft in order, its message, or the error with which it was
        refused.

        Any number of drafts may be passed; they are sent in requests of at most 10,000 messages and 32 MiB. If a later
        request fails, raises `BatchInterrupted` with the results so far.

        A draft with a `name` or an `idempotency_key` is accepted only once. For the same draft again, the result is the
        first message (with `duplicate` true); for a different draft with the same name or key, it is a `NameConflict`
        or an `IdempotencyConflict`. The client sends such drafts again, up to three times, if their outcome is unknown;
        a draft that was accepted in an earlier attempt is then a `duplicate`. If a request gets no answer at all, it is
        sent again only if all its drafts have a `name` or an `idempotency_key`.
        """
        return await self._run(operations.send_batch(drafts, lambda state: AsyncMessage(self, state)))

    async def get(self, message_id: Text) -> AsyncMessage:
        """Look a message up by its id or name."""
        return AsyncMessage(self, await self._run(operations.get(message_id)))

    async def story(self, message_id: Text) -> dict[str, Any]:
        """Return the story of a message after its delivery: its `place` in the topic, and `readers`, each with `state`,
        `events` and `retry`, as in the API (docs/reference/api.md, "Story")."""
        return await self._run(operations.story(message_id))

    def list(self, *, page_size: int = 1000, **filters: Unpack[Filter]) -> AsyncIterator[AsyncMessage]:
        """Iterate over all messages that match the filters, page by page, in the order of their due times. By default,
        only scheduled messages match.

        With `order="newest"` and a key or a label, messages in any state match, and those that were last accepted,
        moved or redriven come first.
        """
        check_arguments("list", filters, Filter.__annotations__)
        return self._pages("/v1/messages", page_size, filters)

    async def page(self, cursor: str | None = None, *, page_size: int = 1000, **filters: Unpack[Filter]) -> Page:
        """Return one page of `list`. Pass its cursor to get the next page; on the last page, the cursor is None."""
        check_arguments("page", filters, Filter.__annotations__)
        return await self._run(operations.list_page(filters, page_size, cursor))

    async def cancel(self, message_id: Text, *, wait_s: float = 10.0) -> Cancelled:
        """Cancel a message by its id or name. Repeating the call returns the same result.

        Raises `AlreadyDelivered`, `UnknownMessage`, or `PendingError` if the answer is not known within `wait_s`.
        """
        return await self._run(operations.cancel(message_id, wait_s, time.monotonic))

    async def cancel_many(
        self, ids: Iterable[Text] | None = None, *, filter: Filter | None = None, times: bool = False
    ) -> CancelReport:
        """Cancel messages by id or name, or all that match a filter. The report contains the result for each message.

        With `times`, it also contains the time at which each message ended. This costs one more read for each message
        that had ended before.
        """
        return await self._run(operations.cancel_many(ids, filter, times))

    async def reschedule(self, message_id: Text, *, shift_expiry: bool = False, **when: Unpack[When]) -> AsyncMessage:
        """Reschedule a message, with a time as in `send`. Raises `AlreadyDelivered`, `AlreadyCancelled`, or `BadTime`
        for a time after its expiry. With `shift_expiry`, the expiry moves by the same amount."""
        return AsyncMessage(self, await self._run(operations.reschedule(message_id, when, shift_expiry)))

    async def reschedule_many(
        self, moves: Iterable[tuple[Text, When]], *, times: bool = False, shift_expiry: bool = False
    ) -> MoveReport:
        """Reschedule messages, each with a time as in `send`. The report contains the result for each message.

        Moves to absolute times can be repeated safely. `shift_expiry`: see `reschedule`.
        """
        return await self._run(operations.reschedule_many(moves, times, shift_expiry))

    async def deliver_now(self, message_id: Text) -> AsyncMessage:
        """Deliver a message at once instead of when it is due."""
        return AsyncMessage(self, await self._run(operations.deliver_now(message_id)))

    async def records(
        self,
        topic: str,
        *,
        after: str | None = None,
        consumer: str | None = None,
        max: int = 1000,
        wait: timedelta = timedelta(0),
    ) -> RecordPage:
        """Read up to `max` (at most 10,000) delivered records. The result contains the cursor from which to continue.

        Reading starts at the cursor `after`, or else at the consumer's committed cursor, or else at the start of the
        topic. With `wait`, the server answers as soon as a record exists, or after that time without records.
        """
        return await self._run(operations.records(topic, after, consumer, max, wait))

    async def tail(
        self, topic: str, consumer: str | None = None, *, after: str | None = None
    ) -> AsyncGenerator[Record, None]:
        """Iterate over records as they are delivered, without end. If the connection is lost, it is opened again.

        It starts at the same place as `records` (for only new records, pass the result of `end` as `after`). It commits
        no cursor: see `commit`.
        """
        follow = TailFollower(topic, after, consumer)
        if consumer is not None:
            self._cursors.pop((topic, consumer), None)  # may be outdated: the server's cursor counts
        while True:
            try:
                async with aclosing(self._stream(follow)) as records:
                    async for record in records:
                        yield record
            except (Unreachable, Unavailable) as error:
                pause_s = follow.lost(error)
                log.warning("tail of %s: %s; connecting again in %.1f s", topic, error, pause_s)
            else:
                pause_s = follow.lost(None)
            await asyncio.sleep(pause_s)

    async def end(self, topic: str) -> str | None:
        """Return the cursor after a topic's last record; None if the topic does not exist yet."""
        return await self._run(operations.end(topic))

    async def committed_cursor(self, topic: str, consumer: str) -> str | None:
        """Return the cursor that the consumer last committed in the topic; None if it never committed one."""
        return await self._run(operations.committed_cursor(topic, consumer, self._cursors))

    async def commit(self, topic: str, consumer: str, cursor: str) -> None:
        """Commit `cursor` for the consumer: `records` and `tail` continue there.

        Raises `ConsumerInUse` if another process has committed a cursor since this client last committed it or looked
        it up.
        """
        await self._run(operations.commit(topic, consumer, cursor, self._cursors))

    def group(self, topic: str, name: str) -> AsyncGroup:
        """Return a group of workers that share a topic's messages: it has the calls to receive, ack and nack them."""
        return AsyncGroup(self._run, topic, name)

    async def topics(self) -> Sequence[Topic]:
        return await self._run(operations.topics())

    async def topic(self, name: str) -> Topic:
        return await self._run(operations.topic(name))

    async def limits(self) -> Limits:
        """Return the server's limits, to check messages before sending them."""
        return await self._run(operations.limits())

    async def _pages(self, path: str, page_size: int, filters: Filter) -> AsyncIterator[AsyncMessage]:
        cursor: str | None = None
        while True:
            page = await self._run(operations.list_page(filters, page_size, cursor, path))
            for state in page.messages:
                yield AsyncMessage(self, state)
            if (cursor := page.cursor) is None:
                return
