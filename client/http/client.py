"""The synchronous client."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx

from duemq.client.http import operations
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


class Message(Handle):
    """A message on the server, with what can be done to it."""

    def __init__(self, client: Client, state: MessageState) -> None:
        super().__init__(state)
        self._client = client

    def refresh(self) -> Self:
        """Ask the server for the current state."""
        self.state = self._client.get(self.id).state
        return self

    def cancel(self, *, wait_s: float = 10.0) -> Cancelled:
        """See `Client.cancel`."""
        cancelled = self._client.cancel(self.id, wait_s=wait_s)
        self.state = replace(self.state, status="cancelled", cancelled_at_ms=cancelled.cancelled_at_ms)
        return cancelled

    def reschedule(self, *, shift_expiry: bool = False, **when: Unpack[When]) -> Self:
        """See `Client.reschedule`."""
        self.state = self._client.reschedule(self.id, shift_expiry=shift_expiry, **when).state
        return self

    def deliver_now(self) -> Self:
        """See `Client.deliver_now`."""
        self.state = self._client.deliver_now(self.id).state
        return self


BatchResult = Message | RejectedError | Unavailable | Unreachable
_BatchResults = list[BatchResult]


class Client:
    """A connection to a duemq server; use it from one thread at a time or many, and close it (or use `with`).

    `url` defaults to `DUEMQ_URL`, then `http://127.0.0.1:8787`; `api_key` to `DUEMQ_API_KEY`; `timeout` is in seconds.
    For https://: `ca_file` has whom to trust (PEM; default `DUEMQ_CA_FILE`, then the system's authorities), `cert_file`
    and `key_file` what this client shows of itself. They are read again when they change. Raises `BadConfig` for files
    that cannot be used. After a fork parent and child may go on with it. `retries`: so often a single call is repeated
    where nothing was carried out, or where twice does no harm (docs/sdk.md).
    Every method raises `Unreachable` without an answer, `Unavailable` where the server cannot serve now, and a
    `RejectedError` (one class per code) where the answer is no.
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
        transport: httpx.BaseTransport | None = None,
        retries: int = RETRIES,
    ) -> None:
        self._timeout, self._retries = timeout, retries
        self._cursors: dict[tuple[str, str], str] = {}
        options = http_options(url, api_key, timeout, tls_files(ca_file, cert_file, key_file))
        self._of_process = OfProcess(lambda: httpx.Client(transport=transport, **options))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

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

        When: one of `deliver_at` (aware datetime, epoch ms, RFC 3339), `deliver_after` (timedelta, "2h30m"),
        `delay_level`; without any it is sent at once. A time that is None is refused. Further: `key`, `headers`,
        `labels`, `expires_at`, `expires_after`, `zone` (see `MessageOptions`).
        `payload`: bytes go unchanged, str as UTF-8, dicts and lists as JSON text, None as null.

        `name` is an id of your own choice: `NameTaken` where it exists, and with `if_new=False` the same message again
        is answered with the first one (`duplicate`), another one under that name with `NameConflict`.
        `idempotency_key` makes a repeat harmless: the first message is returned, with `duplicate` true.
        """
        return Message(
            self, self._run(operations.send(new_draft(topic, payload, message), name, if_new, idempotency_key))
        )

    def send_batch(self, drafts: Iterable[Draft]) -> _BatchResults:
        """Schedule many at once: for each draft, in order, its message or the error that refused it.

        Any number of drafts, sent in requests of at most 10,000 messages and 32 MiB. Raises `BatchInterrupted` with
        the results so far where a later request fails.

        A draft with a `name` or an `idempotency_key` is accepted once: the same again is answered with the first
        message (`duplicate`), another one with `NameConflict` or `IdempotencyConflict`. The client retries drafts of
        unknown outcome that have one of the two, up to three times; one that an earlier attempt accepted is a
        `duplicate` then. A request that got no answer at all is retried only where all its drafts have one of the two.
        """
        return self._run(operations.send_batch(drafts, lambda state: Message(self, state)))

    def get(self, message_id: str) -> Message:
        """Look a message up by its id or name."""
        return Message(self, self._run(operations.get(message_id)))

    def story(self, message_id: str) -> dict[str, Any]:
        """The story of a message after its delivery: `place` in its topic, and `readers`, each with `state`, `events`
        and `retry`, as in the API (docs/api.md, "Story")."""
        return self._run(operations.story(message_id))

    def list(self, *, page_size: int = 1000, **filters: Unpack[Filter]) -> Iterator[Message]:
        """Iterate over all messages that match, page by page, in order of due times. Default: the scheduled ones.

        `order="newest"` with a key or a label: whatever became of them, the last accepted, moved or redriven first.
        """
        return self._pages("/v1/messages", page_size, filters)

    def page(
        self, cursor: str | None = None, *, dead_letters: bool = False, page_size: int = 1000, **filters: Unpack[Filter]
    ) -> Page:
        """Return one page of `list`, or of `dlq`. Its cursor gives the next one, until it is None."""
        path = "/v1/dlq" if dead_letters else "/v1/messages"
        return self._run(operations.list_page(filters, page_size, cursor, path))

    def cancel(self, message_id: str, *, wait_s: float = 10.0) -> Cancelled:
        """Cancel a message by its id or name. Repeated, it gives the same answer.

        Raises `AlreadyDelivered`, `UnknownMessage`, or `PendingError` where the answer is not known within `wait_s`.
        """
        return self._run(operations.cancel(message_id, wait_s, time.monotonic))

    def cancel_many(
        self, ids: Iterable[str] | None = None, *, filter: Filter | None = None, times: bool = False
    ) -> CancelReport:
        """Cancel messages by id or name, or all that match a filter. The report has the outcome of each.

        With `times` it also has when each ended, which costs a look-up for every one that had ended before.
        """
        return self._run(operations.cancel_many(ids, filter, times))

    def reschedule(self, message_id: str, *, shift_expiry: bool = False, **when: Unpack[When]) -> Message:
        """Reschedule a message, with a time as in `send`. Raises `AlreadyDelivered`, `AlreadyCancelled`, and `BadTime`
        for a time at which it has expired; with `shift_expiry` its expiry moves by as much."""
        return Message(self, self._run(operations.reschedule(message_id, when, shift_expiry)))

    def reschedule_many(
        self, moves: Iterable[tuple[str, When]], *, times: bool = False, shift_expiry: bool = False
    ) -> MoveReport:
        """Reschedule messages, each with a time as in `send`. The report has the outcome of each.

        Those with absolute times can be repeated. `shift_expiry`: see `reschedule`.
        """
        return self._run(operations.reschedule_many(moves, times, shift_expiry))

    def deliver_now(self, message_id: str) -> Message:
        """Deliver a message at once instead of when it is due."""
        return Message(self, self._run(operations.deliver_now(message_id)))

    def records(
        self,
        topic: str,
        *,
        after: str | None = None,
        consumer: str | None = None,
        max: int = 1000,
        wait: timedelta | int = 0,
    ) -> RecordPage:
        """Read up to `max` (at most 10,000) delivered records, and the cursor to continue from.

        They begin at `after`, else at the consumer's committed cursor, else at the start of the topic. With `wait`
        (timedelta or ms) the server answers as soon as there is a record, and with none after that time.
        """
        return self._run(operations.records(topic, after, consumer, max, wait))

    def tail(
        self, topic: str, consumer: str | None = None, *, after: str | None = None
    ) -> Generator[Record, None, None]:
        """Iterate over records as they are delivered, for ever. After a lost connection it continues where it broke.

        It begins as `records` does (`after=client.end(topic)`: only new ones), and commits nothing: see `commit`.
        """
        follow = Follow(topic, after, consumer)
        if consumer is not None:
            self._cursors.pop((topic, consumer), None)  # the server knows its place
        while True:
            try:
                yield from self._stream(follow)
            except (Unreachable, Unavailable) as error:
                pause_s = follow.lost(error)
                log.warning("tail of %s: %s; connecting again in %.1f s", topic, error, pause_s)
            else:
                pause_s = follow.lost(None)
            time.sleep(pause_s)

    def end(self, topic: str) -> str | None:
        """Return the cursor behind the last record; None for a topic that does not exist yet."""
        return self._run(operations.end(topic))

    def committed_cursor(self, topic: str, consumer: str) -> str | None:
        """Return the cursor that the consumer committed last in the topic; None if it never did."""
        return self._run(operations.committed_cursor(topic, consumer, self._cursors))

    def commit(self, topic: str, consumer: str, cursor: str) -> None:
        """Commit `cursor` for the consumer: `records` and `tail` continue there.

        Raises `ConsumerInUse` where another process has committed since this client did, or looked the cursor up.
        """
        self._run(operations.commit(topic, consumer, cursor, self._cursors))

    def topics(self) -> Sequence[Topic]:
        return self._run(operations.topics())

    def topic(self, name: str) -> Topic:
        return self._run(operations.topic(name))

    def dlq(self, *, page_size: int = 1000, **filters: Unpack[Filter]) -> Iterator[Message]:
        """Iterate over the dead letters that match. `state.reason` says why each could not be delivered."""
        return self._pages("/v1/dlq", page_size, filters)

    def redrive(self, message_id: str, topic: str | None = None) -> Message:
        """Take a message out of the dead letters and deliver it again, to its own topic or to `topic`.

        Raises `RedrivesExhausted`, `AlreadyPurged`.
        """
        return Message(self, self._run(operations.redrive(message_id, topic)))

    def purge(self, message_id: str) -> Message:
        """End a dead letter for good: it cannot be redriven any more."""
        return Message(self, self._run(operations.purge(message_id)))

    def begin_job(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Begin a bulk job: "redrive", "purge", "cancel", "move", "move-with-expiry" or "deliver-now".

        `fields`: see docs/dead-letters.md. With `dry_run=True` nothing is done, and `total` says to how many
        messages the job would apply.
        """
        return self._run(operations.begin_job({"kind": kind, **fields}))

    def jobs(self) -> Sequence[dict[str, Any]]:
        """Return the bulk jobs that are known, the newest first."""
        return self._run(operations.jobs())

    def job(self, job_id: str) -> dict[str, Any]:
        """Return a bulk job as it is now."""
        return self._run(operations.job(job_id))

    def pause_job(self, job_id: str) -> dict[str, Any]:
        return self._run(operations.change_job(job_id, "pause"))

    def resume_job(self, job_id: str) -> dict[str, Any]:
        return self._run(operations.change_job(job_id, "resume"))

    def cancel_job(self, job_id: str) -> dict[str, Any]:
        """End a job. What it has done stays done."""
        return self._run(operations.change_job(job_id, "cancel"))

    def dead_letters_in(self, topic: str, *, page_size: int = 1000) -> Iterator[dict[str, Any]]:
        """Iterate over the records of a topic of dead letters, such as `dlq.GROUP`, without their payloads."""
        cursor = None
        while True:
            page = self._run(operations.dead_letters_in(topic, page_size, cursor))
            yield from page["letters"]
            cursor = page["cursor"]
            if cursor is None:
                return

    def dead_letter_in(self, topic: str, place: str) -> dict[str, Any]:
        """Return the record at PARTITION:OFFSET of a topic of dead letters."""
        return self._run(operations.dead_letter_in(topic, place))

    def import_file(self, path: str, *, link: bool = False, **metadata: str | int) -> FileImport:
        """Import a Parquet file of messages. `path`: absolute, as the server's nodes see it.

        The command is durable when this returns; `imports` says when the file is imported. The same content again is a
        `duplicate`. `metadata`: all of `sha256` (hex), `size`, `window` (ms) and `rows`; without them
        the server reads the file before it answers. Raises `BadDelayFile` for an invalid file, `Forbidden` for a folder
        that the server does not import from.
        """
        return self._run(operations.import_file(path, link, metadata))

    def import_files(self, files: Sequence[Mapping[str, str | int]], *, link: bool = False) -> Sequence[FileImport]:
        """Import files that belong together: the commands of all are durable when this returns, or of none.

        At most 20,000, each with `path`, `sha256`, `size`, `window` and `rows`. One answer per file, in order;
        `imports` says when they are imported. The same content is imported once, however often this is repeated.
        """
        return self._run(operations.import_files(files, link))

    def imported_ids(self, import_id: str, first: int = 0, most: int = 10_000) -> Sequence[str]:
        """Return the ids of up to `most` (at most 10,000) messages of an imported file, from row `first` on.

        Raises `NoIds` once their window is due, because the file is removed then.
        """
        return self._run(operations.imported_ids(import_id, first, most))

    def import_record(self, import_id: str) -> FileImport:
        """Return the state of an import."""
        return self._run(operations.import_record(import_id))

    def imports(self, state: str | None = None) -> Sequence[FileImport]:
        """Return all imports that are not purged, or those in one state."""
        return self._run(operations.imports(state))

    def count_imports(self, state: str, below: str = "") -> int:
        """Count the imports in a state whose path begins with `below`. Cheap for `pending`."""
        return self._run(operations.count_imports(state, below))

    def cluster(self) -> Cluster:
        """Return the nodes, and the progress of each shard."""
        return self._run(operations.cluster())

    def limits(self) -> Limits:
        """Return what the server accepts, to check messages before they are sent."""
        return self._run(operations.limits())

    def drain(self, node: str) -> None:
        """Ask a node to hand over its shards, which it does within moments. Raises `UnknownNode`, `NotSupported`."""
        self._run(operations.drain(node))

    def resume(self, node: str) -> None:
        """Let a drained node take part again."""
        self._run(operations.resume(node))

    def destinations(self) -> Sequence[dict[str, Any]]:
        """Return the destinations, by name. Of their credentials only which are given."""
        return self._run(operations.destinations())

    def destination(self, name: str) -> dict[str, Any]:
        """Return one destination. Raises `UnknownDestination`."""
        return self._run(operations.destination(name))

    def declare_destination(self, name: str, url: str, **fields: Any) -> dict[str, Any]:
        """Declare a destination. `fields`: as in `POST /v1/destinations`, such as `topics`, `rate` and `credentials`.

        Raises `DestinationExists`, unless one of them is `replace=True`.
        """
        return self._run(operations.declare_destination(name, url, fields))

    def change_destination(self, name: str, **changes: Any) -> dict[str, Any]:
        """Change fields of a destination, each as a whole."""
        return self._run(operations.change_destination(name, changes))

    def pause_destination(self, name: str) -> dict[str, Any]:
        return self._run(operations.operate_destination(name, "pause"))

    def resume_destination(self, name: str) -> dict[str, Any]:
        """Have messages handed on again, also to one that is disabled."""
        return self._run(operations.operate_destination(name, "resume"))

    def test_destination(self, name: str) -> dict[str, Any]:
        """Have a test message sent. Returns `result` (`accepted` where all is well), `status`, `detail`, `took_ms`."""
        return self._run(operations.operate_destination(name, "test"))

    def remove_destination(self, name: str) -> None:
        """Remove a destination and its credentials. What is in its topics stays there."""
        self._run(operations.remove_destination(name))

    def keys(self) -> Sequence[dict[str, Any]]:
        """Return the API keys, oldest first, without their texts."""
        return self._run(operations.keys())

    def create_key(
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
        """Make an API key, with `scopes` or a `role`. Its text is `key` of the result, and never shown again.

        `topics`: names or patterns of the only ones it is for. `rate`: messages/s, 0 = any. `expires_after`: an int is
        ms. The first key of a server that asks for none shuts out callers without one: it has to be an admin's
        (`NeedsAdmin`), and with `confirm=False` `Unconfirmed` is raised and says how many there were.
        """
        return self._run(operations.create_key(name, scopes, expires_after, role, topics, rate, confirm))

    def rotate_key(self, key_id: str, overlap: Delay | Absent = ABSENT) -> dict[str, Any]:
        """Give a key, by its id or name, a new text. The old one is good for `overlap` more, by default a day."""
        return self._run(operations.rotate_key(key_id, overlap))

    def revoke_key(self, key_id: str) -> dict[str, Any]:
        """Revoke a key, by its id or name: it opens nothing within a second. Raises `UnknownKey`."""
        return self._run(operations.revoke_key(key_id))

    def trail(self, limit: int = 100, cursor: str | None = None) -> dict[str, Any]:
        """Who did or was denied what: a page of `entries`, newest first, and the `cursor` of the next one."""
        return self._run(operations.trail(limit, cursor))

    def _pages(self, path: str, page_size: int, filters: Filter) -> Iterator[Message]:
        cursor: str | None = None
        while True:
            page = self._run(operations.list_page(filters, page_size, cursor, path))
            yield from (Message(self, state) for state in page.messages)
            if (cursor := page.cursor) is None:
                return

    def _stream(self, follow: Follow) -> Iterator[Record]:
        request = follow.call().request(self._http)
        request.extensions["timeout"] = stream_timeout(self._timeout).as_dict()
        response = self._exchange(request, stream=True)
        try:
            if response.status_code != 200:
                response.read()
                raise error_of(response)
            follow.opened()
            for chunk in response.iter_bytes():
                for record in follow.feed(chunk):
                    follow.passed(record)
                    yield record
        except httpx.TransportError as error:
            raise unreachable(error, self._http) from error
        finally:
            response.close()

    @property
    def _http(self) -> httpx.Client:
        return self._of_process.value

    def _run(self, plan: Plan[T]) -> T:
        plan = repeating(plan, self._retries)
        try:
            call = next(plan)
            while True:
                try:
                    response = self._carry_out(call)
                except Unreachable as error:
                    call = plan.throw(error)
                else:
                    call = plan.send(response)
        except StopIteration as end:
            result: T = end.value
            return result

    def _carry_out(self, call: Call) -> httpx.Response:
        if call.pause_s:
            time.sleep(call.pause_s)
        return self._exchange(call.request(self._http))

    def _exchange(self, request: httpx.Request, stream: bool = False) -> httpx.Response:
        try:
            return self._http.send(request, stream=stream)
        except httpx.TransportError as error:
            raise unreachable(error, self._http) from error
