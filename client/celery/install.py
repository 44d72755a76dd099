"""Installs duemq in an app: the app's `AMQP` then gives tasks with an eta to duemq, and its `Control` cancels them
there."""

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
    """Let duemq hold the app's tasks whose eta is more than `threshold` seconds away, until they are due.

    Call it in the code that creates the app, so that both publishers and workers call it. `url` and `api_key` are as in
    `duemq.client.Client` (by default `DUEMQ_URL` and `DUEMQ_API_KEY`); `timeout` is in seconds. duemq delivers the
    tasks to `topic`, from which a destination takes them: use one topic per app. With `fallback`, if duemq is
    unreachable, a task is sent to the broker with its eta, as without duemq; a revoke cannot cancel such a task in
    duemq.

    Raises `ImproperlyConfigured` if duemq is already installed in the app.
    """
    if isinstance(getattr(app, "duemq", None), CeleryDeferral):
        raise ImproperlyConfigured(f"duemq is already installed in {app!r}")
    hold = CeleryDeferral(app, DeferredQueue(url, api_key, timeout, topic), threshold, fallback)
    app.duemq = hold
    app.amqp_cls = _amqp(symbol_by_name(app.amqp_cls), hold)
    app.control_cls = _control(symbol_by_name(app.control_cls), hold)
    for cached in ("amqp", "control"):  # objects of the old classes, if the app has created them already
        app.__dict__.pop(cached, None)
    return hold


def hold_of(app: Celery) -> CeleryDeferral:
    """The deferral of an app. Raises `ImproperlyConfigured` if `install` was not called for the app."""
    hold = getattr(app, "duemq", None)
    if not isinstance(hold, CeleryDeferral):
        raise ImproperlyConfigured(f"{app!r} has no duemq: call duemq.client.celery.install(app) when you create it")
    return hold


def _amqp(base: Any, hold: CeleryDeferral) -> Any:
    class HoldingAMQP(base):  # type: ignore[misc]
        def _create_task_sender(self) -> Any:
            # Every task is sent by the function that this method returns: calls, retries, chains, groups, chords,
            # links.
            send = super()._create_task_sender()

            def send_task_message(producer: Any, *args: Any, **options: Any) -> Any:
                return send(_HoldingProducer(producer, hold), *args, **options)

            return send_task_message

    return HoldingAMQP


def _control(base: Any, hold: CeleryDeferral) -> Any:
    class CancellingControl(base):  # type: ignore[misc]
        def revoke(self, task_id: str | Iterable[str], *args: Any, **options: Any) -> Any:
            """Works like Celery's `revoke`, and also cancels tasks that duemq holds. If a task's state is REVOKED
            afterwards, the task is certainly cancelled.

            Celery's `revoke` is called in any case. After that, `NotHeld` is raised if duemq is unreachable.
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
    """Set the state that a worker would store. If the backend cannot store it, as with rpc://, the task is cancelled
    nevertheless."""
    try:
        app.backend.mark_as_revoked(task_id, "revoked", store_result=not app.conf.task_ignore_result)
    except Exception as error:
        log.warning("task %s is cancelled; its state could not be stored: %s", task_id, error)


class _HoldingProducer:
    """Wraps a producer. The first message published is the task; others (the event task-sent) go to the wrapped
    producer."""

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
