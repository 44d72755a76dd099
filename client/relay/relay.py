"""What takes messages out of a topic of duemq and gives them to a broker of another kind, each at least once.

Its place in the topic is a consumer's, on the server: it moves on when the broker has what was read so far. A relay
that is killed in between gives the broker up to a page again. Of several relays of one consumer one works: see
`duemq.client.relay.lease`.
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

from duemq.client.consumer.retry.policy import LEVELS_MS, RETRIES
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
from duemq.model.errors import DuemqError
from duemq.model.topics.group_topics import dead_letter_topic
from duemq.model.topics.rules import is_reserved_header

PAGE: Final = 200
"""Records read at once, and so the most that a relay killed at the wrong moment publishes twice."""
MAX_PAGE: Final = 10_000
WAIT: Final = timedelta(seconds=1)
RETRIED: Final = "x-duemq-relay-retried"
"""The header of a record that the broker refused: how often it came back. After `RETRIES` it is a dead letter."""
STORE_EVERY_S: Final = 6 * 3600.0
"""So often is the place stored although nothing came: servers before this one let brokers forget it after a week."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_LONGEST_HINT_S = 60.0
_FIRST_LEVEL: Final = 3  # as a consumer's retries: 10 s, 30 s, 1 m ... 2 h
_AWAY: Final = (Unreachable, Unavailable, UnexpectedAnswer)

Start = Literal["first", "last"]

log = logging.getLogger("duemq.client.relay.relay")


class BrokerAway(DuemqError):
    """The broker cannot be reached now; the same message may be published later."""


class NotPublishable(DuemqError):
    """A record that is no message for the broker, and never will be."""


class NoPlace(DuemqError):
    """The consumer has no place in a topic that has messages, and the relay was not told where to begin."""


class Outlet(Protocol):
    """A broker to publish to."""

    def publish(self, record: Record) -> None:
        """Returns once the broker has it. Raises `BrokerAway` if it could take no record now, `NotPublishable`, or
        another error about this record, which then comes back later and holds up no other."""

    def close(self) -> None: ...


class Relay:
    """From `topic` to `outlet`, until `stop` is called (from any thread, or a handler of a signal).

    `start`: where a consumer without a place begins, at the first message that the topic still has or behind the last
    one. None leaves that open: then it begins only where there is no message to do twice, or to leave out. `clock` is
    monotonic, in seconds.
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
        # A poll that outlasts a third of the lease would leave no time to renew it.
        self._wait = min(WAIT, timedelta(seconds=self._lease.length_s / 3))
        self._stop = threading.Event()
        self._begun = False
        self._cursor: str | None = None
        self._uncommitted: str | None = None
        self._store_at = 0.0
        self.published = self.buried = 0

    def stop(self) -> None:
        """What is being published is finished, and the place in the topic is stored."""
        self._stop.set()

    def run(self) -> None:
        """Relay until stopped, whatever comes and goes meanwhile.

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
                    # Another relay works. What it does meanwhile moves the place, so that ours is asked for anew.
                    self._forget_place()
                    self._stop.wait(self._lease.ask_again_s())
                except ConsumerInUse as error:  # the lease ran out in the middle of a page, or there is none
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
        """One page."""
        if self._uncommitted is not None:
            self._store(self._uncommitted)
        if not self._begun:
            self._cursor, self._begun = self._place(), True
        page = self._client.records(self._topic, after=self._cursor, max=self._page, wait=self._wait)
        for record in page.records:
            if LEASE_HEADER not in record.headers and not self._relay(record):
                self._forget_place()  # perhaps another relay goes on, from the place of the page before
                return
        self._cursor = page.cursor
        if page.records or (self._clock() >= self._store_at and self._lease.hold()):
            self._store(page.cursor)

    # --- the place --------------------------------------------------------------------------------------------------

    def _place(self) -> str | None:
        """Where to go on; None is the first record there is. Raises `NoPlace`."""
        place = self._client.committed_cursor(self._topic, self._consumer)
        if place is not None:
            try:
                self._client.records(self._topic, after=place, max=1)
                return place
            except BadCursor as error:
                log.warning("place of %s: %s", self._consumer, error, extra={"action": "relay_place"})
        if self._start == "first":
            log.info("%s begins at the first message of %s", self._consumer, self._topic)
            return None
        place = self._last() if self._start == "last" else self._behind_nothing()
        log.info("%s begins behind the last message of %s", self._consumer, self._topic)
        self._store(place)
        return place

    def _last(self) -> str:
        """Behind what there is now, also of a topic that is not there yet."""
        while (end := self._client.end(self._topic)) is None:
            page = self._client.records(self._topic, max=1)
            if not page.records:
                return page.cursor
        return end

    def _behind_nothing(self) -> str:
        """The end of a topic that has no message but leases that ran out. Raises `NoPlace` where it has one."""
        cursor: str | None = None
        while True:
            page = self._client.records(self._topic, after=cursor, max=self._page)
            if any(LEASE_HEADER not in record.headers for record in page.records):
                raise NoPlace(
                    f"consumer {self._consumer} has no place in topic {self._topic}, and there are messages in it. "
                    "Start with `first` to give all of them to the broker, also what it was given before, or with "
                    "`last` to leave them out"
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
        """Whether the broker or the dead letters have it: not where the relay was stopped or lost its lease."""
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
        """Whether duemq has it, to deliver it again later. Others are relayed until then."""
        retried = _retried(record)
        if retried >= RETRIES:
            return self._bury(record, error)
        delay = timedelta(milliseconds=LEVELS_MS[min(_FIRST_LEVEL + retried, len(LEVELS_MS)) - 1])
        log.warning("record %s: %s; it comes back in %s", _origin(record), _reason(error), delay, exc_info=error)
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
        """Whether duemq took it. Waited for here: the page would be published again from its start."""
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
        """What duemq does not take from a stranger's record is left out."""
        try:
            self._send(topic, record, record.value, key=record.key, headers=_own(record) | dict(about))
        except BadRequest as refused:
            log.warning("record %s: only where it is goes to %s: %s", _origin(record), topic, refused)
            self._send(topic, record, headers=about)

    def _send(self, topic: str, record: Record, payload: bytes | None = b"", **message: Unpack[MessageOptions]) -> None:
        """Once, however often it is sent, and for whatever reason."""
        place = f"{self._consumer} {record.topic} {record.partition} {record.offset} {record.timestamp_ms}"
        # With the payload: a message under this key is this record, and can differ in the text of the error alone.
        idempotency_key = hashlib.sha256(f"{place} {record.key} ".encode() + record.payload).hexdigest()
        with suppress(IdempotencyConflict):  # it is there, with the text of another error
            self._client.send(topic, payload, idempotency_key=idempotency_key, **message)


def _own(record: Record) -> dict[str, str]:
    return {name: value or "" for name, value in record.headers.items() if not is_reserved_header(name)}


def _retried(record: Record) -> int:
    text = record.headers.get(RETRIED) or ""
    return int(text) if text.isdecimal() and len(text) < 4 else 0


def _origin(record: Record) -> str:
    return record.id or f"{record.topic}:{record.partition}:{record.offset}"


def _reason(error: Exception) -> str:
    """What the error says, as far as JSON can say it."""
    try:
        text = str(error).encode(errors="replace").decode()
    except Exception:
        text = "it cannot be shown"
    return f"{type(error).__name__}: {text}"


def _longer(pause_s: float, error: Exception | None = None) -> float:
    """The next pause, in seconds: twice the last one, and at least as long as duemq asks for."""
    hint_s = error.retry_after_s if isinstance(error, Unavailable) else 0
    return min(max(2 * pause_s, _FIRST_PAUSE_S, hint_s), max(_LONGEST_PAUSE_S, min(hint_s, _LONGEST_HINT_S)))
