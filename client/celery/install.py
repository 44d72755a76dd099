"""Makes an app hold its tasks: its `AMQP` gives tasks with an eta to duemq, and its `Control` cancels them there."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from celery import Celery
from celery.exceptions import ImproperlyConfigured
from kombu.utils.imports import symbol_by_name

from duemq.client.celery.hold import CeleryDeferral, NotHeld
from duemq.client.deferred import DeferredQueue
from duemq.model.errors import DuemqError

log = logging.getLogger("duemq.client.celery")


def install(
    app: Celery,
    url: str | None = None,
    *,
    api_key: str | None = None,
    topic: str = "celery",
    threshold: float = 1.0,
    fallback: bool = False,
    timeout: float = 10.0,
) -> CeleryDeferral:
    """From now on duemq holds the app's tasks whose eta is more than `threshold` seconds away, until they are due.

    Call it where the app is created, so that publishers and workers have it. `url` and `api_key` are as in
    `duemq.client.Client` (by default `DUEMQ_URL` and `DUEMQ_API_KEY`), `timeout` is in seconds. duemq delivers to
    `topic`, for a destination: use one per app. With `fallback`, if duemq is unreachable, a task goes to the
    broker with its eta, as without duemq; a revoke does not find such a task in duemq.

    Raises `ImproperlyConfigured` if the app already has it.
    """
    if isinstance(getattr(app, "duemq", None), CeleryDeferral):
        raise ImproperlyConfigured(f"duemq is already installed in {app!r}")
    hold = CeleryDeferral(app, DeferredQueue(url, api_key, timeout, topic), threshold, fallback)
    app.duemq = hold
    app.amqp_cls = _amqp(symbol_by_name(app.amqp_cls), hold)
    app.control_cls = _control(symbol_by_name(app.control_cls), hold)
    for cached in ("amqp", "control"):  # created earlier, with the former classes
        app.__dict__.pop(cached, None)
    return hold


def hold_of(app: Celery) -> CeleryDeferral:
    """Raises `ImproperlyConfigured` for an app without `install`."""
    hold = getattr(app, "duemq", None)
    if not isinstance(hold, CeleryDeferral):
        raise ImproperlyConfigured(f"{app!r} has no duemq: call duemq.client.celery.install(app) when you create it")
    return hold


def _amqp(base: Any, hold: CeleryDeferral) -> Any:
    class HoldingAMQP(base):  # type: ignore[misc]
        def _create_task_sender(self) -> Any:
            # All tasks pass through the function it returns: calls, retries, chains, groups, chords, links.
            send = super()._create_task_sender()

            def send_task_message(producer: Any, *args: Any, **options: Any) -> Any:
                return send(_HoldingProducer(producer, hold), *args, **options)

            return send_task_message

    return HoldingAMQP


def _control(base: Any, hold: CeleryDeferral) -> Any:
    class CancellingControl(base):  # type: ignore[misc]
        def revoke(self, task_id: str | Iterable[str], *args: Any, **options: Any) -> Any:
            """Like Celery's, and cancels held tasks. A task is surely cancelled if its state is REVOKED afterwards.

            The workers are told in any case. Then raises `NotHeld` if duemq is unreachable.
            """
            ids = [task_id] if isinstance(task_id, str) else list(task_id)
            failure: DuemqError | NotHeld | None = None
            won: set[str] = set()
            try:
                won = hold.cancel(ids)
            except (DuemqError, NotHeld) as error:
                failure = error
            answers = super().revoke(task_id if isinstance(task_id, str) else ids, *args, **options)
            for id_ in sorted(won):
                _mark_revoked(hold.app, id_)
            if failure is not None:
                raise failure
            return answers

    return CancellingControl


def _mark_revoked(app: Celery, task_id: str) -> None:
    """Set the state that a worker would store. If the backend cannot, such as rpc://, the cancel holds nevertheless."""
    try:
        app.backend.mark_as_revoked(task_id, "revoked", store_result=not app.conf.task_ignore_result)
    except Exception as error:
        log.warning("task %s is cancelled; its state could not be stored: %s", task_id, error)


class _HoldingProducer:
    """A producer whose first message is the task. Others (the event task-sent) pass through."""

    def __init__(self, producer: Any, hold: CeleryDeferral) -> None:
        self._producer, self._hold, self._sent = producer, hold, False

    def publish(self, body: Any, *args: Any, **options: Any) -> Any:
        if not self._sent and not args:
            self._sent = True
            if self._hold.take(self._producer, body, options):
                return None
        return self._producer.publish(body, *args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)
