"""What an app does instead of giving tasks with an eta to its broker: duemq holds them, and can cancel them."""

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
from duemq.client.http.blocking.client import Client
from duemq.client.relay.deferred import AWAY, DeferredQueue, HeldMessage
from duemq.model.errors import DuemqError

NATIVE_DELAY: Final = "celery_delayed_27"
"""Celery's own exchange for quorum queues: RabbitMQ holds these tasks, no worker."""

log = logging.getLogger("duemq.client.celery")


class NotHeld(OperationalError):  # type: ignore[misc]
    """duemq did not take the task, as a broker that is away does not. `failed`: in a batch, the error by task id."""

    def __init__(self, detail: str, failed: Mapping[str, Exception] | None = None) -> None:
        super().__init__(detail)
        self.failed = dict(failed or {})


class _Task(NamedTuple):
    """A task of a batch: as it is held, and the arguments of `kombu.Producer.publish` that it was published with."""

    message: HeldMessage
    body: Any
    options: Mapping[str, Any]


class CeleryDeferral:
    """The tasks of one app that duemq holds. `install` puts it at `app.duemq`."""

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
        """Close the connection of this process; whatever comes next makes a new one."""
        self._holder.close()

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

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Tasks with an eta are collected and sent together at the end of the block, several times as fast.

        None is held before. Raises `NotHeld` at the end, with `failed`, where some were not taken. With `fallback`
        those that duemq could not take now go to the app's broker with their eta. Of this thread only.
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
        """The errors that are left once the broker has the tasks that duemq could not take now."""
        left: list[Exception | None] = []
        for task, error in zip(tasks, errors, strict=True):
            if error is not None and self._falls_back(task.message, error):
                log.warning("task %s goes to the broker: %s", task.message.id, error, extra={"action": "fallback"})
                try:
                    with self.app.producer_or_acquire() as producer:
                        producer.publish(task.body, **task.options)
                    error = None
                except Exception as away:  # transports have errors of their own
                    error = away
            left.append(error)
        return left

    def _falls_back(self, task: HeldMessage, error: Exception) -> bool:
        # Celery drops a task whose retry could not be sent (`Reject(requeue=False)`): it would be lost.
        return task.retries > 0 or (self.fallback and isinstance(error, AWAY))

    def cancel(self, task_ids: Iterable[str]) -> set[str]:
        """Cancel tasks; those that were held and are not any more: they will not run.

        Raises `NotHeld` where duemq is away, and `PendingError` where the answer is not known in time.
        """
        try:
            return self._holder.cancel(task_ids)
        except AWAY as error:
            raise NotHeld(f"duemq: {error}") from error

    def _task(self, producer: Any, body: Any, options: dict[str, Any], eta: datetime) -> HeldMessage:
        """The message exactly as kombu makes it for a broker, with no eta."""
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
        """An eta or expires as a worker understands it (without a zone it is UTC)."""
        if not value:
            return None
        aware: datetime = maybe_make_aware(maybe_iso8601(value), self.app.timezone)
        return aware


def _pauses_s(policy: Mapping[str, Any]) -> Iterable[float]:
    """The pauses of kombu's retry policy; without `max_retries` for ever."""
    start, step = policy.get("interval_start", 0), policy.get("interval_step", 0.2)
    most = policy.get("interval_max", 0.2)
    return (min(start + step * n, max(most, start)) for n in _count(policy.get("max_retries", 3)))


def _count(number: int | None) -> Iterable[int]:
    return itertools.count() if number is None else range(number)


class _CaptureChannel:
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
