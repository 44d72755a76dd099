"""Sends an app's tasks that have an eta to duemq, which holds them until they are due, and cancels them there. A relay
sends due tasks to the broker."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final, NamedTuple

from celery import Celery
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu import Producer
from kombu.exceptions import OperationalError

from duemq.client.celery.envelope import Envelope, named_queue
from duemq.client.deferred import AWAY, DeferredQueue, HeldMessage
from duemq.client.http.blocking.client import Client
from duemq.model.errors import DuemqError

NATIVE_DELAY: Final = "celery_delayed_27"
"""Celery's exchange for delays with quorum queues. duemq does not hold its tasks: they already wait in RabbitMQ, not in
a worker."""

log = logging.getLogger("duemq.client.celery")


class NotHeld(OperationalError):  # type: ignore[misc]
    """duemq did not accept the task. Programs can handle it like the error for an unreachable broker. `failed`: for a
    batch, the error for each task id."""

    def __init__(self, detail: str, failed: Mapping[str, Exception] | None = None) -> None:
        super().__init__(detail)
        self.failed = dict(failed or {})


class _Task(NamedTuple):
    """A task in a batch: the message for duemq, and the arguments with which `kombu.Producer.publish` was called."""

    message: HeldMessage
    body: Any
    options: Mapping[str, Any]


class CeleryDeferral:
    """Gives one app's tasks to duemq. `install` sets it as `app.duemq`."""

    def __init__(self, app: Celery, holder: DeferredQueue, threshold: float, fallback: bool) -> None:
        self.app, self.threshold, self.fallback = app, threshold, fallback
        self._holder = holder
        self._batch: ContextVar[list[_Task] | None] = ContextVar("duemq_batch", default=None)

    @property
    def topic(self) -> str:
        return self._holder.topic

    @property
    def client(self) -> Client:
        return self._holder.client

    def close(self) -> None:
        """Close this process's connection; the next call opens a new one."""
        self._holder.close()

    def take(self, producer: Any, body: Any, options: Mapping[str, Any]) -> bool:
        """Give duemq the task that `kombu.Producer.publish` would send with these arguments. False if duemq is not
        meant to hold the task.

        Raises `NotHeld` if duemq is unreachable, and a `RejectedError` if it refuses the task.
        """
        about = options.get("headers") if "id" in (options.get("headers") or {}) else body
        if not isinstance(about, dict) or not about.get("eta"):
            return False
        exchange = options.get("exchange")
        if (name := getattr(exchange, "name", exchange)) and (name == NATIVE_DELAY or self._is_redis()):
            return False  # a relay can send tasks to queues in Redis, but not to exchanges
        eta = self._instant(about["eta"])
        if eta is None or eta.timestamp() - time.time() <= self.threshold:
            return False
        task = self._task(producer, body, dict(options), eta)
        if (batch := self._batch.get()) is not None:
            batch.append(_Task(task, body, dict(options)))
            return True
        try:
            self._holder.hold(task)
        except DuemqError as error:
            if not self._falls_back(task, error):
                if not isinstance(error, AWAY):
                    raise
                raise NotHeld(f"duemq: {error}") from error
            log.warning("task %s goes to the broker with its eta: %s", task.id, error, extra={"action": "fallback"})
            return False
        return True

    def _is_redis(self) -> bool:
        return bool(self.app.connection_for_write().transport.driver_type == "redis")

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Collect tasks with an eta, and send them together at the end of the block. That is several times as fast.

        Before the end of the block, duemq holds none of the tasks. At the end, `NotHeld` is raised, with `failed`, if
        some were not accepted. With `fallback`, tasks that duemq cannot accept at the moment are sent to the app's
        broker with their eta. The block affects only the current thread.
        """
        tasks: list[_Task] = []
        token = self._batch.set(tasks)
        try:
            yield
        finally:
            self._batch.reset(token)
        errors = self._fall_back(tasks, self._holder.hold_all([task.message for task in tasks]))
        if failed := {task.message.id: error for task, error in zip(tasks, errors, strict=True) if error is not None}:
            first = next(iter(failed.values()))
            raise NotHeld(f"{len(failed)} of {len(tasks)} tasks were not held; the first: {first}", failed) from first

    def _fall_back(self, tasks: Sequence[_Task], errors: Sequence[Exception | None]) -> list[Exception | None]:
        """Send the tasks that duemq could not accept to the broker, if they may fall back. Returns the remaining
        errors."""
        left: list[Exception | None] = []
        for task, error in zip(tasks, errors, strict=True):
            if error is not None and self._falls_back(task.message, error):
                log.warning("task %s goes to the broker: %s", task.message.id, error, extra={"action": "fallback"})
                try:
                    with self.app.producer_or_acquire() as producer:
                        producer.publish(task.body, **task.options)
                    error = None
                except Exception as away:  # each transport has its own error classes
                    error = away
            left.append(error)
        return left

    def _falls_back(self, task: HeldMessage, error: Exception) -> bool:
        # Retries always fall back: Celery drops a task whose retry cannot be sent (`Reject(requeue=False)`).
        return task.retries > 0 or (self.fallback and isinstance(error, AWAY))

    def cancel(self, task_ids: Iterable[str]) -> set[str]:
        """Cancel tasks. Returns the ids of tasks that duemq held and has cancelled: they will not run.

        Raises `NotHeld` if duemq is unreachable, and `PendingError` if the answer is not known in time.
        """
        try:
            return self._holder.cancel(task_ids)
        except AWAY as error:
            raise NotHeld(f"duemq: {error}") from error

    def _task(self, producer: Any, body: Any, options: dict[str, Any], eta: datetime) -> HeldMessage:
        """The message exactly as kombu would send it to a broker, but without the eta."""
        headers = dict(options.pop("headers", None) or {})
        if "id" in headers:
            about = headers = {**headers, "eta": None}
        else:
            about = body = {**body, "eta": None}
        retry, policy = options.pop("retry", False), options.pop("retry_policy", None)
        declare = options.pop("declare", None) or ()
        options.pop("expiration", None)
        channel = _CaptureChannel()
        maker = Producer(channel, serializer=getattr(producer, "serializer", None))
        maker.publish(body, headers=headers, **options)
        envelope = Envelope(
            declare=[named for entity in declare if (named := named_queue(self.app, entity)) is not None],
            expires=self._instant(about.get("expires")),
            **channel.message,
        )
        pauses_s = _pauses_s(policy or {}) if retry else ()
        return HeldMessage(about["id"], about.get("retries") or 0, eta, envelope.encode(), pauses_s)

    def _instant(self, value: Any) -> datetime | None:
        """The instant that a worker would derive from `eta` or `expires` (in UTC if the value has no time zone)."""
        if not value:
            return None
        aware: datetime = maybe_make_aware(maybe_iso8601(value), self.app.timezone)
        return aware


def _pauses_s(policy: Mapping[str, Any]) -> Iterable[float]:
    """The pauses of kombu's retry policy; infinitely many if `max_retries` is None."""
    start, step = policy.get("interval_start", 0), policy.get("interval_step", 0.2)
    most = policy.get("interval_max", 0.2)
    return (min(start + step * n, max(most, start)) for n in _count(policy.get("max_retries", 3)))


def _count(number: int | None) -> Iterable[int]:
    return itertools.count() if number is None else range(number)


class _CaptureChannel:
    """A channel that stores the message instead of sending it."""

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
