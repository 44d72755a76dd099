"""What of an app's tasks is held, with kombu's broker in memory and a duemq in memory."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.exceptions import ImproperlyConfigured
from celery.utils.time import maybe_make_aware
from kombu import Exchange, Queue
from kombu.exceptions import OperationalError

from duemq.client.celery import NotHeld, hold_of, install
from duemq.client.deferred import DeferredQueue
from duemq.client.http.errors import BadWhen, Unavailable
from duemq.relay.held_task import CeleryTask, celery_task
from tests.support.outlets.site import out_message
from tests.support.servers.fake_duemq import FakeDuemq


@pytest.fixture
def duemq(monkeypatch: pytest.MonkeyPatch) -> FakeDuemq:
    server = FakeDuemq()
    server.now = int(time.time() * 1000)
    monkeypatch.setattr(DeferredQueue, "client", property(lambda self: server))
    return server


@pytest.fixture
def app(duemq: FakeDuemq) -> Celery:
    app = Celery("unit", broker="memory://", set_as_current=False)
    app.conf.update(task_publish_retry_policy={"max_retries": 2, "interval_start": 0, "interval_step": 0})
    install(app, "http://duemq.test", threshold=5.0)
    return app


def in_queue(app: Celery) -> list[Any]:
    """The messages that wait at the broker, taken out."""
    with app.connection_for_read() as connection:
        queue = app.amqp.queues["celery"].bind(connection.default_channel)
        queue.declare()
        return list(iter(queue.get, None))


def delivered(duemq: FakeDuemq, seconds: float) -> list[CeleryTask]:
    """The tasks that come due in this time, as the relay reads them."""
    duemq.advance(seconds)
    return [celery_task(out_message(payload=payload)) for payload in duemq.take()]


def test_what_is_farther_than_the_threshold_is_held(app: Celery, duemq: FakeDuemq) -> None:
    app.send_task("far", countdown=60)
    app.send_task("near", countdown=4)
    app.send_task("past", eta=datetime.now(UTC) - timedelta(hours=1))
    app.send_task("now")
    assert [message.headers["task"] for message in in_queue(app)] == ["near", "past", "now"]
    assert len(duemq.messages) == 1
    (task,) = delivered(duemq, 600)  # the real clock goes on, too
    assert task.headers["task"] == "far" and task.headers["eta"] is None


def test_times_are_understood_as_a_worker_does(app: Celery, duemq: FakeDuemq) -> None:
    app.conf.timezone = "Asia/Tokyo"
    naive = datetime(2031, 1, 1, 8, 0)
    app.send_task("t", eta=naive)
    app.send_task("t", eta=naive.replace(tzinfo=ZoneInfo("Asia/Tokyo")))
    dues = [datetime.fromtimestamp(message.due / 1000, UTC) for message in duemq.messages]
    worker = maybe_make_aware(naive, app.conf.timezone)  # as celery.worker.request does
    assert dues == [worker, datetime(2030, 12, 31, 23, 0, tzinfo=UTC)]


def test_the_first_protocol(app: Celery, duemq: FakeDuemq) -> None:
    app.conf.task_protocol = 1
    app.send_task("old", (1,), countdown=60, task_id="x")
    assert duemq.messages[0].name == "celery:x:0"
    (task,) = delivered(duemq, 600)  # the real clock goes on, too
    body = json.loads(task.body)
    assert (body["task"], body["args"], body["eta"]) == ("old", [1], None)


def test_only_the_task_is_held_not_its_event(app: Celery, duemq: FakeDuemq) -> None:
    app.conf.update(task_send_sent_event=True, task_protocol=1)
    with app.connection_for_read() as connection:
        events = Queue("events", Exchange("celeryev", "topic"), routing_key="#").bind(connection.default_channel)
        events.declare()
        app.send_task("t", countdown=60)
        assert events.get().payload["type"] == "task-sent"
    assert len(duemq.messages) == 1
    (task,) = delivered(duemq, 600)
    assert task.routing_key == "celery"


def test_what_expires_keeps_what_is_left(app: Celery, duemq: FakeDuemq) -> None:
    app.send_task("t", countdown=60, expires=3600)
    app.send_task("too-late", countdown=60, expires=30)
    one, two = delivered(duemq, 600)  # the real clock goes on, too
    assert "expiration" not in one.properties and "expiration" not in two.properties
    assert one.expiration_ms is not None and 3500_000 < one.expiration_ms <= 3600_000
    assert two.headers["expires"] is not None  # the worker says that it expired


def test_rabbitmqs_own_delay_is_left_alone(app: Celery, duemq: FakeDuemq) -> None:
    app.send_task("t", countdown=60, exchange=Exchange("celery_delayed_27", "topic"), routing_key="0.1.celery")
    assert duemq.messages == []


def test_redis_has_queues_and_no_other_exchanges(duemq: FakeDuemq, monkeypatch: pytest.MonkeyPatch) -> None:
    """No destination could send such a task on: the broker gets it with its eta, as without duemq."""
    app = Celery("redis", broker="redis://127.0.0.1:1/0", set_as_current=False)
    install(app, "http://duemq.test")
    sent: list[Any] = []
    monkeypatch.setattr("kombu.Producer.publish", lambda self, body, **options: sent.append(options["headers"]["eta"]))
    app.send_task("t", countdown=60, exchange=Exchange("news", "topic"), routing_key="sport")
    assert duemq.messages == [] and sent != [None]
    assert hold_of(app).take(None, {}, {"headers": {"id": "x", "eta": None}}) is False


def test_nothing_of_a_batch_that_breaks_off_is_held(app: Celery, duemq: FakeDuemq) -> None:
    with pytest.raises(ZeroDivisionError), hold_of(app).batch():
        app.send_task("t", countdown=60)
        _ = 1 / 0
    assert duemq.messages == []
    app.send_task("after", countdown=60)
    assert len(duemq.messages) == 1


def test_a_duemq_that_is_away_is_tried_as_the_policy_says(app: Celery, duemq: FakeDuemq) -> None:
    duemq.away["send"] = Unavailable("not now")
    with pytest.raises(NotHeld, match="not now"):
        app.send_task("t", countdown=60)
    assert duemq.calls == ["send"] * 3
    with pytest.raises(NotHeld):
        app.send_task("t", countdown=60, retry=False)
    assert duemq.calls == ["send"] * 4
    with pytest.raises(NotHeld) as told, hold_of(app).batch():
        app.send_task("t", countdown=60, task_id="lost")
    assert told.value.failed.keys() == {"lost"}
    assert in_queue(app) == []


def test_a_batch_falls_back_too_and_only_with_what_duemq_could_not_take(
    app: Celery, duemq: FakeDuemq, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_of(app).fallback = True
    app.conf.task_publish_retry_policy = {"max_retries": 0}
    real = duemq.send

    def send(topic: str, payload: bytes, **options: Any) -> Any:
        if options["key"] == "away":
            raise Unavailable("not now")
        if options["key"] == "refused":
            raise BadWhen("delay_too_long", "too far")
        return real(topic, payload, **options)

    monkeypatch.setattr(duemq, "send", send)
    eta = datetime.now(UTC) + timedelta(seconds=60)
    with pytest.raises(NotHeld) as told, hold_of(app).batch():
        app.send_task("t", ("lost",), eta=eta, task_id="away", priority=3, headers={"mine": "x"}, serializer="yaml")
        app.send_task("t", eta=eta, task_id="refused")
        app.send_task("t", eta=eta, task_id="held")
        assert in_queue(app) == []
    assert told.value.failed.keys() == {"refused"}
    assert [message.name for message in duemq.messages] == ["celery:held:0"]
    (message,) = in_queue(app)
    assert (message.headers["id"], message.headers["eta"], message.headers["mine"]) == ("away", eta.isoformat(), "x")
    assert (message.properties["priority"], message.content_type) == (3, "application/x-yaml")
    assert "lost" in str(message.body)


def test_a_batch_whose_broker_is_away_too_says_which_tasks_are_lost(
    app: Celery, duemq: FakeDuemq, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_of(app).fallback = True
    app.conf.task_publish_retry_policy = {"max_retries": 0}
    duemq.away["send"] = Unavailable("not now")

    def down(*arguments: Any, **options: Any) -> Any:
        raise OperationalError("the broker is away")

    with pytest.raises(NotHeld, match="1 of 1 tasks") as told, hold_of(app).batch():
        app.send_task("t", countdown=60, task_id="lost", retry=False)
        monkeypatch.setattr("kombu.Producer.publish", down)
    assert str(told.value.failed["lost"]) == "the broker is away"


@pytest.mark.parametrize("error", [Unavailable("not now"), BadWhen("delay_too_long", "too far")])
def test_a_retry_falls_back_always_because_celery_would_drop_the_task(
    app: Celery, duemq: FakeDuemq, error: Exception
) -> None:
    duemq.away["send"] = error
    app.send_task("t", countdown=60, retries=1, task_id="single")
    with hold_of(app).batch():
        app.send_task("t", countdown=60, retries=2, task_id="batch")
    assert [(message.headers["id"], message.headers["eta"] is None) for message in in_queue(app)] == [
        ("single", False),
        ("batch", False),
    ]


def test_a_refusal_is_no_reason_to_fall_back(app: Celery, duemq: FakeDuemq) -> None:
    hold_of(app).fallback = True
    duemq.away["send"] = BadWhen("delay_too_long", "too far")
    with pytest.raises(BadWhen):
        app.send_task("t", countdown=60)
    assert in_queue(app) == []


def test_a_revoke_reaches_the_workers_although_duemq_is_away(app: Celery, duemq: FakeDuemq) -> None:
    told: list[Any] = []
    app.control.broadcast = lambda command, **options: told.append((command, options["arguments"]["task_id"]))
    duemq.away["cancel_many"] = Unavailable("not now")
    with pytest.raises(NotHeld):
        app.control.revoke("x")
    assert told == [("revoke", "x")]
    duemq.away.clear()
    app.send_task("t", countdown=60, task_id="y")
    app.AsyncResult("y").revoke()
    assert told[1] == ("revoke", "y") and duemq.messages[0].status == "cancelled"


def test_installed_once_also_where_the_app_was_used_before(duemq: FakeDuemq) -> None:
    app = Celery("used", broker="memory://", set_as_current=False)
    with pytest.raises(ImproperlyConfigured, match="install"):
        hold_of(app)
    app.send_task("t")
    assert app.control is not None
    install(app, "http://duemq.test")
    app.send_task("t", countdown=60)
    assert len(duemq.messages) == 1
    with pytest.raises(ImproperlyConfigured, match="already"):
        install(app)
