"""Moves messages from a duemq topic to another kind of broker, each at least once.

Its position in the topic is a consumer's, stored on the server: it advances once the broker has every record read so
far. A relay that is killed in between sends up to a page again. If a consumer has several relays, one of them works:
see `duemq.client.relay.lease`.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Final, Literal, Protocol, Unpack

from duemq.client.http.blocking.client import Client
from duemq.client.http.errors import (
    BadCursor,
    BadRequest,
    ConsumerInUse,
    IdempotencyConflict,
    PendingError,
    Unavailable,
    UnexpectedAnswer,
    Unreachable,
)
from duemq.client.http.requests import MessageOptions
from duemq.client.http.values import Record
from duemq.client.relay.lease import LEASE_HEADER, Alone, Lease
from duemq.client.retry_levels import LEVELS_MS, RETRIES
from duemq.model.errors import DuemqError
from duemq.model.topics.group_topics import dead_letter_topic
from duemq.model.topics.rules import is_reserved_header

PAGE: Final = 200
"""Records read at once, and so the most that are published twice if a relay is killed."""
MAX_PAGE: Final = 10_000
WAIT: Final = timedelta(seconds=1)
RETRIED: Final = "x-duemq-relay-retried"
"""Header of a record that the broker refused: its number of retries. After `RETRIES` it becomes a dead letter."""
STORE_EVERY_S: Final = 6 * 3600.0
"""How often the position is stored without new records: older servers let brokers forget it after a week."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_LONGEST_HINT_S = 60.0
_FIRST_LEVEL: Final = 3  # like a consumer's retries: 10 s, 30 s, 1 m ... 2 h
_AWAY: Final = (Unreachable, Unavailable, UnexpectedAnswer)

Start = Literal["first", "last"]

log = logging.getLogger("duemq.client.relay.relay")


class BrokerAway(DuemqError):
    """The broker is unreachable; the same message may be published later."""


class NotPublishable(DuemqError):
    """A record that the broker can never accept as a message."""


class NoPlace(DuemqError):
    """The consumer has no position in a topic with messages, and the relay was not told where to start."""


class Outlet(Protocol):
    """A broker to publish to."""

    def publish(self, record: Record) -> None:
        """Return once the broker has the record. Raises `BrokerAway` if it can accept no record now, `NotPublishable`,
        or another error about this record, which is then retried later and does not hold up others."""

    def close(self) -> None: ...


class Relay:
    """Relays from `topic` to `outlet` until `stop` is called (from any thread, or a signal handler).

    `start`: where a consumer without a position starts: at the first message still in the topic or after the last one.
    With None it starts only if the topic has no message that it could repeat or skip. `clock` is monotonic, in seconds.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        consumer: str,
        outlet: Outlet,
        *,
        page: int = PAGE,
        lease: Lease | Alone | None = None,
        start: Start | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._topic, self._consumer, self._outlet, self._page = client, topic, consumer, outlet, page
        self._lease = lease or Lease(client, topic, consumer)
        self._start, self._clock = start, clock
        # A poll longer than a third of the lease would leave no time to renew it.
        self._wait = min(WAIT, timedelta(seconds=self._lease.length_s / 3))
        self._stop = threading.Event()
        self._begun = False
        self._cursor: str | None = None
        self._uncommitted: str | None = None
        self._store_at = 0.0
        self.published = self.buried = 0

    def stop(self) -> None:
        """Finish the record being published, and store the position."""
        self._stop.set()

    def run(self) -> None:
        """Relay until stopped, through all outages.

        Raises `NoPlace`, and a refusal, such as of the API key.
        """
        pause_s = 0.0
        try:
            while not self._stop.is_set():
                try:
                    if self._lease.hold():
                        self._turn()
                        pause_s = 0.0
                        continue
                    # Another relay works. It moves the position, so ours has to be loaded again.
                    self._forget_place()
                    self._stop.wait(self._lease.ask_again_s())
                except ConsumerInUse as error:  # the lease ran out in the middle of a page, or there is no lease
                    log.warning("place of %s: %s", self._consumer, error, extra={"action": "relay_place"})
                    self._forget_place()
                except (*_AWAY, PendingError) as error:
                    pause_s = _longer(pause_s, error)
                    log.warning("duemq: %s; again in %.1f s", error, pause_s, extra={"action": "relay_wait"})
                    self._stop.wait(pause_s)
        finally:
            self._outlet.close()
            self._lease.release()

    def _turn(self) -> None:
        """Relay one page."""
        if self._uncommitted is not None:
            self._store(self._uncommitted)
        if not self._begun:
            self._cursor, self._begun = self._place(), True
        page = self._client.records(self._topic, after=self._cursor, max=self._page, wait=self._wait)
        for record in page.records:
            if LEASE_HEADER not in record.headers and not self._relay(record):
                self._forget_place()  # another relay may continue, from the position before this page
                return
        self._cursor = page.cursor
        if page.records or (self._clock() >= self._store_at and self._lease.hold()):
            self._store(page.cursor)

    # --- position ----------------------------------------------------------------------------------------------------

    def _place(self) -> str | None:
        """Where to continue; None means the first record. Raises `NoPlace`."""
        place = self._client.committed_cursor(self._topic, self._consumer)
        if place is not None:
            try:
                self._client.records(self._topic, after=place, max=1)
                return place
            except BadCursor as error:
                log.warning("place of %s: %s", self._consumer, error, extra={"action": "relay_place"})
        if self._start == "first":
            log.info("%s starts at the first message of %s", self._consumer, self._topic)
            return None
        place = self._last() if self._start == "last" else self._behind_nothing()
        log.info("%s starts after the last message of %s", self._consumer, self._topic)
        self._store(place)
        return place

    def _last(self) -> str:
        """The current end of the topic, even if the topic does not exist yet."""
        while (end := self._client.end(self._topic)) is None:
            page = self._client.records(self._topic, max=1)
            if not page.records:
                return page.cursor
        return end

    def _behind_nothing(self) -> str:
        """The end of a topic that has no message except expired leases. Raises `NoPlace` if it has one."""
        cursor: str | None = None
        while True:
            page = self._client.records(self._topic, after=cursor, max=self._page)
            if any(LEASE_HEADER not in record.headers for record in page.records):
                raise NoPlace(
                    f"consumer {self._consumer} has no position in topic {self._topic}, which has messages. "
                    "Start with `first` to send all of them to the broker, even if it already got them, or with "
                    "`last` to skip them"
                )
            if not page.records:
                return page.cursor
            cursor = page.cursor

    def _store(self, cursor: str) -> None:
        self._uncommitted = cursor
        self._client.commit(self._topic, self._consumer, cursor)
        self._uncommitted, self._store_at = None, self._clock() + STORE_EVERY_S

    def _forget_place(self) -> None:
        self._begun, self._cursor, self._uncommitted, self._store_at = False, None, None, 0.0

    # --- one record -------------------------------------------------------------------------------------------------

    def _relay(self, record: Record) -> bool:
        """Whether the broker or the dead letters have it. False if the relay was stopped or lost its lease."""
        pause_s = 0.0
        while self._lease.hold():
            try:
                self._outlet.publish(record)
                self.published += 1
                return True
            except NotPublishable as error:
                return self._bury(record, error)
            except BrokerAway as error:
                pause_s = _longer(pause_s)
                log.warning("broker: %s; again in %.1f s", error, pause_s, extra={"action": "relay_wait"})
            except Exception as error:
                return self._return(record, error)
            if self._stop.wait(pause_s):
                return False
        return False

    def _return(self, record: Record, error: Exception) -> bool:
        """Whether duemq has it, to deliver it again later. Other records are relayed until then."""
        retried = _retried(record)
        if retried >= RETRIES:
            return self._bury(record, error)
        delay = timedelta(milliseconds=LEVELS_MS[min(_FIRST_LEVEL + retried, len(LEVELS_MS)) - 1])
        log.warning("record %s: %s; it is retried in %s", _origin(record), _reason(error), delay, exc_info=error)
        try:
            return self._given_back(lambda: self._send_again(record, retried + 1, delay))
        except BadRequest:
            return self._bury(record, error)

    def _bury(self, record: Record, error: Exception) -> bool:
        """Whether the dead letters have it."""
        topic, origin = dead_letter_topic(self._consumer), _origin(record)
        reason = _reason(error)
        log.warning("record %s goes to %s: %s", origin, topic, reason, extra={"action": "relay_bury"})
        about = {"reason": reason[:1000], "origin-id": origin}
        buried = self._given_back(lambda: self._send_dead(topic, record, about))
        self.buried += buried
        return buried

    def _given_back(self, send: Callable[[], None]) -> bool:
        """Whether duemq accepted it. Waits for that here: else the page would be published again from its start."""
        pause_s = 0.0
        while self._lease.hold():
            try:
                send()
                return True
            except _AWAY as away:
                pause_s = _longer(pause_s, away)
                log.warning("duemq: %s; again in %.1f s", away, pause_s, extra={"action": "relay_wait"})
            if self._stop.wait(pause_s):
                return False
        return False

    def _send_again(self, record: Record, retried: int, delay: timedelta) -> None:
        headers = _own(record) | {RETRIED: str(retried)}
        self._send(self._topic, record, record.value, key=record.key, headers=headers, deliver_after=delay)

    def _send_dead(self, topic: str, record: Record, about: Mapping[str, str]) -> None:
        """Parts of a foreign record that duemq does not accept are left out."""
        try:
            self._send(topic, record, record.value, key=record.key, headers=_own(record) | dict(about))
        except BadRequest as refused:
            log.warning("record %s: only its position goes to %s: %s", _origin(record), topic, refused)
            self._send(topic, record, headers=about)

    def _send(self, topic: str, record: Record, payload: bytes | None = b"", **message: Unpack[MessageOptions]) -> None:
        """Sent once, however often and for whatever reason this is called."""
        place = f"{self._consumer} {record.topic} {record.partition} {record.offset} {record.timestamp_ms}"
        # The key includes the payload: a message under this key is this record, and only the error text can differ.
        idempotency_key = hashlib.sha256(f"{place} {record.key} ".encode() + record.payload).hexdigest()
        with suppress(IdempotencyConflict):  # already sent, with another error text
            self._client.send(topic, payload, idempotency_key=idempotency_key, **message)


def _own(record: Record) -> dict[str, str]:
    return {name: value or "" for name, value in record.headers.items() if not is_reserved_header(name)}


def _retried(record: Record) -> int:
    text = record.headers.get(RETRIED) or ""
    return int(text) if text.isdecimal() and len(text) < 4 else 0


def _origin(record: Record) -> str:
    return record.id or f"{record.topic}:{record.partition}:{record.offset}"


def _reason(error: Exception) -> str:
    """The error's text, in characters that JSON can represent."""
    try:
        text = str(error).encode(errors="replace").decode()
    except Exception:
        text = "it has no readable text"
    return f"{type(error).__name__}: {text}"


def _longer(pause_s: float, error: Exception | None = None) -> float:
    """The next pause, in seconds: twice the last one, and at least as long as duemq asks for."""
    hint_s = error.retry_after_s if isinstance(error, Unavailable) else 0
    return min(max(2 * pause_s, _FIRST_PAUSE_S, hint_s), max(_LONGEST_PAUSE_S, min(hint_s, _LONGEST_HINT_S)))
