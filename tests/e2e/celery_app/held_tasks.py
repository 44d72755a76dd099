"""The app of the tests of the Celery adapter, as a project has one. Where tasks write what they did: `RAN`."""

from __future__ import annotations

import os
import time
from datetime import datetime

from celery import Celery

from duemq.client.celery import install

app = Celery("held_tasks", broker=os.environ["BROKER"], backend=os.environ["RESULTS"])
app.conf.update(
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    task_publish_retry_policy={"max_retries": 100, "interval_start": 0.1, "interval_step": 0.1, "interval_max": 0.5},
    accept_content=["json", "pickle"],
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    broker_transport_options={"visibility_timeout": int(os.environ.get("VISIBILITY", "3600"))},
)
if os.environ.get("DUEMQ_URL"):
    install(
        app, os.environ["DUEMQ_URL"], topic=os.environ["TOPIC"], threshold=float(os.environ.get("THRESHOLD", "0.2"))
    )


def ran(what: object, due: float) -> None:
    """One line: what ran, how many ms after its time, and when."""
    line = f"{what} {round((time.time() - due) * 1000)} {time.time():.3f}\n"
    file = os.open(os.environ["RAN"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line.encode())
    os.close(file)


@app.task  # type: ignore[untyped-decorator]
def note(what: str, due: float = 0.0) -> str:
    ran(what, due)
    return what


@app.task(bind=True, max_retries=3)  # type: ignore[untyped-decorator]
def flaky(self, what: str, due: float) -> str:  # type: ignore[no-untyped-def]
    """Fails twice, and has itself retried half a second later each time."""
    ran(f"{what}:{self.request.retries}", due)
    if self.request.retries < 2:
        raise self.retry(countdown=0.5, args=(what, time.time() + 0.5))
    return what


@app.task  # type: ignore[untyped-decorator]
def total(parts: list[str]) -> str:
    return "+".join(parts)


@app.task(bind=True)  # type: ignore[untyped-decorator]
def request_of(self, *args: bytes) -> dict[str, object]:  # type: ignore[no-untyped-def]
    """What came with the task."""
    about, info = self.request, self.request.delivery_info
    return {
        "args": [list(arg) for arg in args],
        "eta": about.eta,
        "expires": about.expires,
        "mine": about.headers.get("mine"),
        "priority": info["priority"],
        "queue": info["routing_key"],
        "shadow": about.shadow,
    }


def soon(seconds: float) -> tuple[float, datetime]:
    """A time that long from now, twice."""
    due = time.time() + seconds
    return due, at(due)


def at(due: float) -> datetime:
    return datetime.fromtimestamp(due).astimezone()
