"""What an app does instead of giving tasks with an eta to its broker: duemq holds them, and can cancel them."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from celery import Celery
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu import Producer
from kombu.exceptions import OperationalError

from duemq.client.celery.envelope import Envelope, named_queue
from duemq.client.client import Client
from duemq.client.connection import http_options
from duemq.client.errors import NameConflict, PendingError, Unavailable, UnexpectedAnswer, Unreachable
from duemq.model.errors import DuemqError

NATIVE_DELAY: Final = "celery_delayed_27"
"""Celery's own exchange for quorum queues: RabbitMQ holds these tasks, no worker."""
RETRIES_ASKED: Final = 32
"""A revoke asks for so many retries of a task at a time."""
REPEATS: Final = 10
"""One task id, sent anew with the same number of retries and other contents or another eta, can be held so often."""
BATCH_THREADS: Final = 16

_AWAY = (Unreachable, Unavailable, UnexpectedAnswer)
_NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}")
log = logging.getLogger("duemq.client.celery")


class NotHeld(OperationalError):  # type: ignore[misc]
    """duemq did not take the task, as a broker that is away does not. `failed`: in a batch, the error by task id."""

    def __init__(self, detail: str, failed: Mapping[str, Exception] | None = None) -> None:
        super().__init__(detail)
        self.failed = dict(failed or {})


@dataclass(frozen=True, slots=True)
class _Task:
    """A task to hold."""

    id: str
    retries: int
    eta: datetime
    envelope: bytes
    policy: Mapping[str, Any] | None
    """How to retry, as kombu says it; None: not at all."""


class Hold:
    """The tasks of one app that duemq holds. `install` puts it at `app.duemq`."""

    def __init__(
        self,
        app: Celery,
        url: str | None,
        api_key: str | None,
        topic: str,
        threshold: float,
        fallback: bool,
        timeout: float,
    ) -> None:
        self.app, self.topic, self.threshold, self.fallback = app, topic, threshold, fallback
        base: str = http_options(url, api_key, timeout)["base_url"]
        self._options = {"url": base, "api_key": api_key, "timeout": timeout}
        self._lock = threading.Lock()
        self._client: tuple[int, Client] | None = None
        self._batch: ContextVar[list[_Task] | None] = ContextVar("duemq_batch", default=None)

    @property
    def client(self) -> Client:
        """That of this process: a connection does not survive a fork in both halves."""
        with self._lock:
            if self._client is None or self._client[0] != os.getpid():
                self._client = os.getpid(), Client(**self._options)  # type: ignore[arg-type]
            return self._client[1]

    def take(self, producer: Any, body: Any, options: Mapping[str, Any]) -> bool:
        """Hold what would be published by these arguments of `kombu.Producer.publish`; False where it is not for duemq.

        Raises `NotHeld` where duemq is away, and a `RejectedError` where it refuses.
        """
        about = options.get("headers") if "id" in (options.get("headers") or {}) else body
        if not isinstance(about, dict) or not about.get("eta"):
            return False
        exchange = options.get("exchange")
        if getattr(exchange, "name", exchange) == NATIVE_DELAY:
            return False
        eta = self._instant(about["eta"])
        if eta is None or eta.timestamp() - time.time() <= self.threshold:
            return False
        task = self._task(producer, body, dict(options), eta)
        if (batch := self._batch.get()) is not None:
            batch.append(task)
            return True
        try:
            self._send(task)
        except NotHeld as error:
            if not self.fallback:
                raise
            log.warning("task %s goes to the broker with its eta: %s", task.id, error, extra={"action": "fallback"})
            return False
        return True

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Tasks with an eta are collected and sent together at the end of the block, several times as fast.

        None is held before. Raises `NotHeld` at the end, with `failed`, where some were not taken. Of this thread only.
        """
        tasks: list[_Task] = []
        token = self._batch.set(tasks)
        try:
            yield
        finally:
            self._batch.reset(token)
        failed: dict[str, Exception] = {}

        def send(task: _Task) -> None:
            try:
                self._send(task)
            except (DuemqError, NotHeld) as error:
                failed[task.id] = error

        with ThreadPoolExecutor(BATCH_THREADS, "duemq-batch") as pool:
            list(pool.map(send, tasks))
        if failed:
            first = next(iter(failed.values()))
            raise NotHeld(f"{len(failed)} of {len(tasks)} tasks were not held; the first: {first}", failed) from first

    def cancel(self, task_ids: Iterable[str]) -> set[str]:
        """Those of the tasks that were held and are not any more: they will not run.

        Raises `NotHeld` where duemq is away, and `PendingError` where the answer is not known in time.
        """
        won: set[str] = set()
        asked = {name: id_ for id_ in task_ids for name in self._names(id_, range(RETRIES_ASKED))}
        first = RETRIES_ASKED
        try:
            while asked:
                known = self._cancel_names(asked, won)
                # A name that is there may have repeats, and a task's last retry there may have later ones.
                again = {f"{name}.{n}": asked[name] for name in known for n in range(1, REPEATS)}
                self._cancel_names(again, won)
                last = {asked[name] for name in known if name in self._names(asked[name], [first - 1])}
                asked = {name: id_ for id_ in last for name in self._names(id_, range(first, first + RETRIES_ASKED))}
                first += RETRIES_ASKED
        except _AWAY as error:
            raise NotHeld(f"duemq: {error}") from error
        return won

    def _cancel_names(self, names: Mapping[str, str], won: set[str]) -> list[str]:
        """Those of the names that are there."""
        if not names:
            return []
        asked = list(names)
        deadline = time.monotonic() + 10.0
        while True:
            results = self.client.cancel_many(asked).results
            if not any(result.status == "pending" for result in results):
                break
            if time.monotonic() > deadline:
                raise PendingError("whether the tasks are cancelled is not known yet; revoke again", asked[0])
            time.sleep(0.05)
        won.update(names[name] for name, result in zip(asked, results, strict=True) if result.status == "cancelled")
        return [name for name, result in zip(asked, results, strict=True) if result.status != "unknown"]

    def _task(self, producer: Any, body: Any, options: dict[str, Any], eta: datetime) -> _Task:
        """The message exactly as kombu makes it for a broker, with no eta."""
        headers = dict(options.pop("headers", None) or {})
        if "id" in headers:
            about = headers = {**headers, "eta": None}
        else:
            about = body = {**body, "eta": None}
        retry, policy = options.pop("retry", False), options.pop("retry_policy", None) or {}
        declare = options.pop("declare", None) or ()
        options.pop("expiration", None)
        kept = _KeptChannel()
        maker = Producer(kept, serializer=getattr(producer, "serializer", None))
        maker.publish(body, headers=headers, **options)
        envelope = Envelope(
            declare=[named for entity in declare if (named := named_queue(self.app, entity)) is not None],
            expires=self._instant(about.get("expires")),
            **kept.message,
        )
        return _Task(about["id"], about.get("retries") or 0, eta, envelope.encode(), policy if retry else None)

    def _send(self, task: _Task) -> None:
        """A repeat after an answer that was lost is the same message under the same name, and so is held once."""
        name = self._names(task.id, [task.retries])[0]
        for repeat in range(REPEATS):
            try:
                self._send_as(name if repeat == 0 else f"{name}.{repeat}", task)
                return
            except NameConflict as error:
                conflict = error
        raise NotHeld(f"task id {task.id} is held {REPEATS} times already with other contents") from conflict

    def _send_as(self, name: str, task: _Task) -> None:
        policy = {"max_retries": 0} if task.policy is None else task.policy
        left = policy.get("max_retries", 3)
        pause_s = float(policy.get("interval_start", 0))
        while True:
            try:
                self.client.send(
                    self.topic, task.envelope, name=name, if_new=False, deliver_at=task.eta, key=task.id[:1000] or None
                )
                return
            except _AWAY as error:
                if left == 0:
                    raise NotHeld(f"duemq: {error}") from error
            left = None if left is None else left - 1
            time.sleep(pause_s)
            pause_s = min(pause_s + float(policy.get("interval_step", 0.2)), float(policy.get("interval_max", 0.2)))

    def _names(self, task_id: str, retries: Iterable[int]) -> list[str]:
        base = f"{self.topic}:{task_id}"
        if not _NAME.fullmatch(base) or len(base) > 110:
            base = "celery:" + hashlib.sha256(base.encode()).hexdigest()
        return [f"{base}:{number}" for number in retries]

    def _instant(self, value: Any) -> datetime | None:
        """An eta or expires as a worker understands it: without a zone it is of the app's."""
        if not value:
            return None
        aware: datetime = maybe_make_aware(maybe_iso8601(value), self.app.timezone)
        return aware


class _KeptChannel:
    """A channel that keeps the message it is given."""

    message: dict[str, Any]

    def prepare_message(
        self,
        body: bytes,
        priority: int | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: dict[str, Any] | None = None,
        properties: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        return {
            "body": body if isinstance(body, bytes) else str(body).encode(),
            "priority": priority,
            "content_type": content_type,
            "content_encoding": content_encoding,
            "headers": headers,
            "properties": properties,
        }

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **_: Any) -> None:
        self.message = message | {"exchange": exchange, "routing_key": routing_key}
