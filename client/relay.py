"""What takes messages out of a topic of duemq and gives them to a broker of another kind, each at least once.

Its place in the topic is a consumer's, on the server: it moves on when the broker has what was read so far. A relay
that is killed in between gives the broker up to a page again. Of several relays of one consumer one works: see
`duemq.client.lease`.
"""

from __future__ import annotations

import logging
import threading
from typing import Final, Protocol

from duemq.client.client import Client
from duemq.client.consumer.names import dead_letter_topic
from duemq.client.errors import PendingError, Unavailable, UnexpectedAnswer, Unreachable
from duemq.client.lease import LEASE_HEADER, Lease
from duemq.client.values import Record
from duemq.model.errors import DuemqError

PAGE: Final = 200
"""Records read at once, and so the most that a relay killed at the wrong moment publishes twice."""
WAIT_MS: Final = 1000
TRIES: Final = 5
"""So often is a record given to a broker that answers and will not have it; then it goes to the dead letters."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0

log = logging.getLogger("duemq.client.relay")


class BrokerAway(DuemqError):
    """The broker cannot be reached now; the same message may be published later."""


class NotPublishable(DuemqError):
    """A record that is no message for the broker, and never will be."""


class Outlet(Protocol):
    """A broker to publish to."""

    def publish(self, record: Record) -> None:
        """Comes back once the broker has it. Raises `BrokerAway`, `NotPublishable`, or what else went wrong."""

    def close(self) -> None: ...


class Relay:
    """From `topic` to `outlet`, until `stop` is called (from any thread, or a handler of a signal)."""

    def __init__(
        self, client: Client, topic: str, consumer: str, outlet: Outlet, *, page: int = PAGE, lease: Lease | None = None
    ) -> None:
        self._client, self._topic, self._consumer, self._outlet, self._page = client, topic, consumer, outlet, page
        self._lease = Lease(client, topic, consumer) if lease is None else lease
        self._stop = threading.Event()
        self._cursor: str | None = None
        self._uncommitted: str | None = None
        self.published = self.buried = 0

    def stop(self) -> None:
        """What is being published is finished, and the place in the topic is stored."""
        self._stop.set()

    def run(self) -> None:
        """Relay until stopped, whatever comes and goes meanwhile. A refusal, such as of the API key, is raised."""
        pause_s = 0.0
        try:
            while not self._stop.is_set():
                try:
                    if self._lease.hold():
                        self._turn()
                        pause_s = 0.0
                        continue
                    # Another relay works. What it does meanwhile moves the place, so that ours is asked for anew.
                    self._cursor = self._uncommitted = None
                    self._stop.wait(self._lease.ask_again_s())
                except (Unreachable, Unavailable, UnexpectedAnswer, PendingError) as error:
                    pause_s = _longer(pause_s)
                    log.warning("duemq: %s; again in %.1f s", error, pause_s, extra={"action": "relay_wait"})
                    self._stop.wait(pause_s)
        finally:
            self._outlet.close()
            self._lease.release()

    def _turn(self) -> None:
        """One page."""
        if self._uncommitted is not None:
            self._client.commit(self._topic, self._consumer, self._uncommitted)
            self._uncommitted = None
        page = self._client.records(
            self._topic, after=self._cursor, consumer=self._consumer, max=self._page, wait=WAIT_MS
        )
        for record in page.records:
            if LEASE_HEADER not in record.headers and not self._relay(record):
                self._cursor = None  # perhaps another relay goes on, from the place of the page before
                return
        self._cursor = page.cursor
        if page.records:
            self._uncommitted = page.cursor
            self._client.commit(self._topic, self._consumer, page.cursor)
            self._uncommitted = None

    def _relay(self, record: Record) -> bool:
        """Whether the broker or the dead letters have it: not where the relay was stopped or lost its lease."""
        pause_s, tries = 0.0, 0
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
                tries += 1
                if tries == TRIES:
                    return self._bury(record, error)
                pause_s = _longer(pause_s)
                log.exception("record %s was not published; again in %.1f s", record.id, pause_s)
            if self._stop.wait(pause_s):
                return False
        return False

    def _bury(self, record: Record, error: Exception) -> bool:
        topic = dead_letter_topic(self._consumer)
        log.error("record %s goes to %s: %s", record.id, topic, error, extra={"action": "relay_bury"})
        own = {name: value for name, value in record.headers.items() if not name.lower().startswith("duemq-")}
        about = {"reason": f"{type(error).__name__}: {error}"[:1000], "origin-id": str(record.id)}
        self._client.send(topic, record.payload, key=record.key, headers=own | about)
        self.buried += 1
        return True


def _longer(pause_s: float) -> float:
    return min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
