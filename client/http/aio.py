"""The asynchronous client: the operations of `client.py`, awaited."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx

from duemq.client.http import operations
from duemq.client.http.async_http import AsyncHttp
from duemq.client.http.connection import OfProcess, http_options, stream_timeout, tls_files
from duemq.client.http.errors import RejectedError, Unavailable, Unreachable
from duemq.client.http.exchange import RETRIES, Call, Plan, error_of, repeating, unreachable
from duemq.client.http.fields import Payload, Text
from duemq.client.http.handle import Handle
from duemq.client.http.requests import ABSENT, Absent, Delay, Draft, Filter, MessageOptions, When, new_draft
from duemq.client.http.tail import Follow
from duemq.client.http.values import (
    Cancelled,
    CancelReport,
    Cluster,
    FileImport,
    Limits,
    MessageState,
    MoveReport,
    Page,
    Record,
    RecordPage,
    Topic,
)

T = TypeVar("T")
log = logging.getLogger("duemq.client")


class AsyncMessage(Handle):
    """A message on the server, with what can be done to it."""

    def __init__(self, client: AsyncClient, state: MessageState) -> None:
        super().__init__(state)
        self._client = client

    async def refresh(self) -> Self:
        """Ask the server for the current state."""
        self.state = (await self._client.get(self.id)).state
        return self

    async def cancel(self, *, wait_s: float = 10.0) -> Cancelled:
        """See `Client.cancel`."""
        cancelled = await self._client.cancel(self.id, wait_s=wait_s)
        self.state = replace(self.state, status="cancelled", cancelled_at_ms=cancelled.cancelled_at_ms)
        return cancelled

    async def reschedule(self, *, shift_expiry: bool = False, **when: Unpack[When]) -> Self:
        """See `Client.reschedule`."""
        self.state = (await self._client.reschedule(self.id, shift_expiry=shift_expiry, **when)).state
        return self

    async def deliver_now(self) -> Self:
        """See `Client.deliver_now`."""
        self.state = (await self._client.deliver_now(self.id)).state
        return self


_BatchResults = list[AsyncMessage | RejectedError | Unavailable | Unreachable]


class AsyncClient:
    """A connection to a duemq server for asyncio; close it with `aclose`, or use `async with`.

    Arguments, methods and errors are those of `Client`, where they are described.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        timeout: float = 10.0,
        *,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        retries: int = RETRIES,
    ) -> None:
        self._timeout, self._retries = timeout, retries
        self._cursors: dict[tuple[str, str], str] = {}
        options = http_options(url, api_key, timeout, tls_files(ca_file, cert_file, key_file))
        self._of_process = OfProcess(lambda: AsyncHttp(transport=transport, **options))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._http.aclose()

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
        draft = new_draft(topic, payload, message)
        return AsyncMessage(self, await self._run(operations.send(draft, name, if_new, idempotency_key)))

    async def send_batch(self, drafts: Iterable[Draft]) -> _BatchResults:
        return await self._run(operations.send_batch(drafts, lambda state: AsyncMessage(self, state)))

    async def get(self, message_id: str) -> AsyncMessage:
        return AsyncMessage(self, await self._run(operations.get(message_id)))

    async def story(self, message_id: str) -> dict[str, Any]:
        return await self._run(operations.story(message_id))

    def list(self, *, page_size: int = 1000, **filters: Unpack[Filter]) -> AsyncIterator[AsyncMessage]:
        return self._pages("/v1/messages", page_size, filters)

    async def page(
        self, cursor: str | None = None, *, dead_letters: bool = False, page_size: int = 1000, **filters: Unpack[Filter]
    ) -> Page:
        path = "/v1/dlq" if dead_letters else "/v1/messages"
        return await self._run(operations.list_page(filters, page_size, cursor, path))

    async def cancel(self, message_id: str, *, wait_s: float = 10.0) -> Cancelled:
        return await self._run(operations.cancel(message_id, wait_s, time.monotonic))

    async def cancel_many(
        self, ids: Iterable[str] | None = None, *, filter: Filter | None = None, times: bool = False
    ) -> CancelReport:
        return await self._run(operations.cancel_many(ids, filter, times))

    async def reschedule(self, message_id: str, *, shift_expiry: bool = False, **when: Unpack[When]) -> AsyncMessage:
        return AsyncMessage(self, await self._run(operations.reschedule(message_id, when, shift_expiry)))

    async def reschedule_many(
        self, moves: Iterable[tuple[str, When]], *, times: bool = False, shift_expiry: bool = False
    ) -> MoveReport:
        return await self._run(operations.reschedule_many(moves, times, shift_expiry))

    async def deliver_now(self, message_id: str) -> AsyncMessage:
        return AsyncMessage(self, await self._run(operations.deliver_now(message_id)))

    async def records(
        self,
        topic: str,
        *,
        after: str | None = None,
        consumer: str | None = None,
        max: int = 1000,
        wait: timedelta | int = 0,
    ) -> RecordPage:
        return await self._run(operations.records(topic, after, consumer, max, wait))

    async def tail(
        self, topic: str, consumer: str | None = None, *, after: str | None = None
    ) -> AsyncGenerator[Record, None]:
        follow = Follow(topic, after, consumer)
        if consumer is not None:
            self._cursors.pop((topic, consumer), None)  # the server knows its place
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
        return await self._run(operations.end(topic))

    async def committed_cursor(self, topic: str, consumer: str) -> str | None:
        return await self._run(operations.committed_cursor(topic, consumer, self._cursors))

    async def commit(self, topic: str, consumer: str, cursor: str) -> None:
        await self._run(operations.commit(topic, consumer, cursor, self._cursors))

    async def topics(self) -> Sequence[Topic]:
        return await self._run(operations.topics())

    async def topic(self, name: str) -> Topic:
        return await self._run(operations.topic(name))

    def dlq(self, *, page_size: int = 1000, **filters: Unpack[Filter]) -> AsyncIterator[AsyncMessage]:
        return self._pages("/v1/dlq", page_size, filters)

    async def redrive(self, message_id: str, topic: str | None = None) -> AsyncMessage:
        """Take a message out of the dead letters and deliver it again, to its own topic or to `topic`.

        Raises `RedrivesExhausted`, `AlreadyPurged`.
        """
        return AsyncMessage(self, await self._run(operations.redrive(message_id, topic)))

    async def purge(self, message_id: str) -> AsyncMessage:
        """End a dead letter for good: it cannot be redriven any more."""
        return AsyncMessage(self, await self._run(operations.purge(message_id)))

    async def begin_job(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Begin a bulk job: "redrive", "purge", "cancel", "move", "move-with-expiry" or "deliver-now".

        `fields`: see docs/dead-letters.md. With `dry_run=True` nothing is done, and `total` says to how many
        messages the job would apply.
        """
        return await self._run(operations.begin_job({"kind": kind, **fields}))

    async def jobs(self) -> Sequence[dict[str, Any]]:
        """Return the bulk jobs that are known, the newest first."""
        return await self._run(operations.jobs())

    async def job(self, job_id: str) -> dict[str, Any]:
        """Return a bulk job as it is now."""
        return await self._run(operations.job(job_id))

    async def pause_job(self, job_id: str) -> dict[str, Any]:
        return await self._run(operations.change_job(job_id, "pause"))

    async def resume_job(self, job_id: str) -> dict[str, Any]:
        return await self._run(operations.change_job(job_id, "resume"))

    async def cancel_job(self, job_id: str) -> dict[str, Any]:
        """End a job. What it has done stays done."""
        return await self._run(operations.change_job(job_id, "cancel"))

    async def dead_letters_in(self, topic: str, *, page_size: int = 1000) -> AsyncIterator[dict[str, Any]]:
        """Iterate over the records of a topic of dead letters, such as `dlq.GROUP`, without their payloads."""
        cursor = None
        while True:
            page = await self._run(operations.dead_letters_in(topic, page_size, cursor))
            for letter in page["letters"]:
                yield letter
            cursor = page["cursor"]
            if cursor is None:
                return

    async def dead_letter_in(self, topic: str, place: str) -> dict[str, Any]:
        """Return the record at PARTITION:OFFSET of a topic of dead letters."""
        return await self._run(operations.dead_letter_in(topic, place))

    async def import_file(self, path: str, *, link: bool = False, **metadata: str | int) -> FileImport:
        """See `Client.import_file`."""
        return await self._run(operations.import_file(path, link, metadata))

    async def import_files(
        self, files: Sequence[Mapping[str, str | int]], *, link: bool = False
    ) -> Sequence[FileImport]:
        return await self._run(operations.import_files(files, link))

    async def imported_ids(self, import_id: str, first: int = 0, most: int = 10_000) -> Sequence[str]:
        return await self._run(operations.imported_ids(import_id, first, most))

    async def import_record(self, import_id: str) -> FileImport:
        return await self._run(operations.import_record(import_id))

    async def imports(self, state: str | None = None) -> Sequence[FileImport]:
        return await self._run(operations.imports(state))

    async def count_imports(self, state: str, below: str = "") -> int:
        return await self._run(operations.count_imports(state, below))

    async def cluster(self) -> Cluster:
        return await self._run(operations.cluster())

    async def limits(self) -> Limits:
        return await self._run(operations.limits())

    async def drain(self, node: str) -> None:
        await self._run(operations.drain(node))

    async def resume(self, node: str) -> None:
        await self._run(operations.resume(node))

    async def destinations(self) -> Sequence[dict[str, Any]]:
        return await self._run(operations.destinations())

    async def destination(self, name: str) -> dict[str, Any]:
        return await self._run(operations.destination(name))

    async def declare_destination(self, name: str, url: str, **fields: Any) -> dict[str, Any]:
        return await self._run(operations.declare_destination(name, url, fields))

    async def change_destination(self, name: str, **changes: Any) -> dict[str, Any]:
        return await self._run(operations.change_destination(name, changes))

    async def pause_destination(self, name: str) -> dict[str, Any]:
        return await self._run(operations.operate_destination(name, "pause"))

    async def resume_destination(self, name: str) -> dict[str, Any]:
        return await self._run(operations.operate_destination(name, "resume"))

    async def test_destination(self, name: str) -> dict[str, Any]:
        return await self._run(operations.operate_destination(name, "test"))

    async def remove_destination(self, name: str) -> None:
        await self._run(operations.remove_destination(name))

    async def keys(self) -> Sequence[dict[str, Any]]:
        return await self._run(operations.keys())

    async def create_key(
        self,
        name: str,
        scopes: Iterable[str] = (),
        expires_after: Delay | Absent = ABSENT,
        *,
        role: str | None = None,
        topics: Iterable[str] = (),
        rate: int = 0,
        confirm: bool = True,
    ) -> dict[str, Any]:
        return await self._run(operations.create_key(name, scopes, expires_after, role, topics, rate, confirm))

    async def rotate_key(self, key_id: str, overlap: Delay | Absent = ABSENT) -> dict[str, Any]:
        return await self._run(operations.rotate_key(key_id, overlap))

    async def revoke_key(self, key_id: str) -> dict[str, Any]:
        return await self._run(operations.revoke_key(key_id))

    async def trail(self, limit: int = 100, cursor: str | None = None) -> dict[str, Any]:
        return await self._run(operations.trail(limit, cursor))

    async def _pages(self, path: str, page_size: int, filters: Filter) -> AsyncIterator[AsyncMessage]:
        cursor: str | None = None
        while True:
            page = await self._run(operations.list_page(filters, page_size, cursor, path))
            for state in page.messages:
                yield AsyncMessage(self, state)
            if (cursor := page.cursor) is None:
                return

    async def _stream(self, follow: Follow) -> AsyncGenerator[Record, None]:
        request = follow.call().request(self._http)
        request.extensions["timeout"] = stream_timeout(self._timeout).as_dict()
        response = await self._exchange(request, stream=True)
        try:
            if response.status_code != 200:
                await response.aread()
                raise error_of(response)
            follow.opened()
            async for chunk in response.aiter_bytes():
                for record in follow.feed(chunk):
                    follow.passed(record)
                    yield record
        except httpx.TransportError as error:
            raise unreachable(error, self._http) from error
        finally:
            await response.aclose()

    @property
    def _http(self) -> AsyncHttp:
        return self._of_process.value

    async def _run(self, plan: Plan[T]) -> T:
        plan = repeating(plan, self._retries)
        try:
            call = next(plan)
            while True:
                try:
                    response = await self._carry_out(call)
                except Unreachable as error:
                    call = plan.throw(error)
                else:
                    call = plan.send(response)
        except StopIteration as end:
            result: T = end.value
            return result

    async def _carry_out(self, call: Call) -> httpx.Response:
        if call.pause_s:
            await asyncio.sleep(call.pause_s)
        return await self._exchange(call.request(self._http))

    async def _exchange(self, request: httpx.Request, stream: bool = False) -> httpx.Response:
        try:
            return await self._http.send(request, stream=stream)
        except httpx.TransportError as error:
            raise unreachable(error, self._http) from error
