"""Messages of another queue, such as Celery's, that duemq holds until they are due.

The name of each in duemq is made from its id in that queue. So a message can be cancelled by its id without any stored
state, and duemq accepts it only once if it is sent again after a lost answer.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from duemq.client.http.blocking.client import Client
from duemq.client.http.connection import http_options
from duemq.client.http.errors import NameConflict, PendingError, Unavailable, UnexpectedAnswer, Unreachable
from duemq.client.http.times import EpochMs
from duemq.model.errors import DuemqError

AWAY: Final = (Unreachable, Unavailable, UnexpectedAnswer)
"""Errors that mean that duemq cannot accept a message now."""
RETRIES_ASKED: Final = 32
"""A cancel includes this many retries of a message in each request."""
REPEATS: Final = 10
"""How often a message with the same id and number of retries can be held, with different contents or times."""
THREADS: Final = 16

_NAME = re.compile(r"[A-Za-z0-9._:-]{1,110}")
_CANCEL_WAIT_S = 10.0
_KEY_CHARACTERS = 250  # a longer id is not set as the key by which messages are looked up


@dataclass(frozen=True, slots=True)
class HeldMessage:
    """A message to hold. `pauses_s`: pauses before retries while duemq is unreachable."""

    id: str
    retries: int
    due: datetime | int
    """An aware datetime, or epoch ms."""
    payload: bytes
    pauses_s: Iterable[float] = ()


class DeferredQueue:
    """The messages that wait for delivery to one topic. Any number of threads may use it, and processes may fork."""

    def __init__(self, url: str | None, api_key: str | None, timeout: float, topic: str) -> None:
        base: str = http_options(url, api_key, timeout)["base_url"]
        self.topic = topic
        self._options: dict[str, Any] = {"url": base, "api_key": api_key, "timeout": timeout, "retries": 0}
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """The client, created on demand. It does not retry: `HeldMessage.pauses_s` decides about retries."""
        if self._client is None:
            self._client = Client(**self._options)
        return self._client

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def hold(self, message: HeldMessage) -> None:
        """Hold a message. It is durable once this returns. Raises the errors in `AWAY`, or a `RejectedError`."""
        name = self.name(message.id, message.retries)
        for repeat in range(REPEATS):
            try:
                return self._send(name if repeat == 0 else f"{name}.{repeat}", message)
            except NameConflict as error:
                conflict = error
        raise conflict

    def hold_all(self, messages: Sequence[HeldMessage]) -> list[DuemqError | None]:
        """Hold messages. Returns, for each message in order, the error, or None if it is held."""

        def hold(message: HeldMessage) -> DuemqError | None:
            try:
                self.hold(message)
            except DuemqError as error:
                return error
            return None

        with ThreadPoolExecutor(THREADS, "duemq-hold") as pool:
            return list(pool.map(hold, messages))

    def cancel(self, ids: Iterable[str]) -> set[str]:
        """Cancel messages. Returns the ids of messages that duemq held and has cancelled: they will not be delivered.

        A held retry is found unless more than `RETRIES_ASKED` retries in a row before it were not held. Raises the
        errors in `AWAY`, and `PendingError` if the answer is not known in time.
        """
        won: set[str] = set()
        open_ids, first, last = list(dict.fromkeys(ids)), 0, 1
        while open_ids:
            ids_by_name = {self.name(id_, retries): id_ for id_ in open_ids for retries in range(first, last)}
            names = self._cancel(ids_by_name, won)
            there = {ids_by_name[name] for name in names}
            for repeat in range(1, REPEATS):
                repeats = {f"{name}.{repeat}": name for name in names}
                names = [
                    repeats[name] for name in self._cancel({r: ids_by_name[name] for r, name in repeats.items()}, won)
                ]
            # A message cancelled before its first run has no retries, so it needs no further request.
            open_ids = [id_ for id_ in open_ids if (id_ in there if first else id_ not in won)]
            first, last = last, max(last, RETRIES_ASKED * (last // RETRIES_ASKED + 1))
        return won

    def name(self, id_: str, retries: int) -> str:
        base = f"{self.topic}:{id_}"
        if not _NAME.fullmatch(base):
            base = "held:" + hashlib.sha256(base.encode()).hexdigest()
        return f"{base}:{retries}"

    def _cancel(self, names: Mapping[str, str], won: set[str]) -> list[str]:
        """Cancel messages by name, and add the ids of those that it cancelled to `won`. Returns the names that exist.
        `names`: the id for each name."""
        if not names:
            return []
        name_list, deadline = list(names), time.monotonic() + _CANCEL_WAIT_S
        while True:
            status = [result.status for result in self.client.cancel_many(name_list).results]
            if "pending" not in status:
                break
            if time.monotonic() > deadline:
                raise PendingError("whether the messages are cancelled is not known yet; ask again", name_list[0])
            time.sleep(0.05)
        won.update(names[name] for name, answer in zip(name_list, status, strict=True) if answer == "cancelled")
        return [name for name, answer in zip(name_list, status, strict=True) if answer != "unknown"]

    def _send(self, name: str, message: HeldMessage) -> None:
        pauses = iter(message.pauses_s)
        due = message.due if isinstance(message.due, datetime) else EpochMs(message.due)
        while True:
            try:
                key = message.id if len(message.id) <= _KEY_CHARACTERS else None
                self.client.send(self.topic, message.payload, name=name, if_new=False, deliver_at=due, key=key)
                return
            except AWAY:
                pause_s = next(pauses, None)
                if pause_s is None:
                    raise
                time.sleep(pause_s)
