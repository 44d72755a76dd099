"""docs/guides/migrate-rabbitmq.md as somebody who changes over follows it, with its examples, on a real RabbitMQ."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final, NamedTuple

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.e2e.celery_site import Process
from tests.e2e.page_blocks import PageBlocks
from tests.e2e.server import BIN, Server, environment, wait_for
from tests.support.destinations.rabbitmq_node import RabbitMQNode

PAGE: Final = "guides/migrate-rabbitmq.md"
BODY: Final = bytes(range(256))
_NUMBERS: Final = count()
pytestmark = [pytest.mark.servers, pytest.mark.smoke, pytest.mark.xdist_group("destinations")]


class Consumed(NamedTuple):
    """`at`: epoch s."""

    at: float
    exchange: str
    routing_key: str
    properties: Any
    body: bytes


@pytest.fixture
def broker(rabbitmq: RabbitMQNode) -> str:
    """The URL of a virtual host of its own, with user and password."""
    return rabbitmq.add_virtual_host(f"page-{next(_NUMBERS)}")


@contextmanager
def consumer_of(url: str, queue: str) -> Iterator[list[Consumed]]:
    """What a consumer has got so far that was there before everything else, and stays as it is."""
    consumed: list[Consumed] = []
    ready, done = Event(), Event()

    def consume() -> None:
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            channel = connection.channel()
            channel.queue_declare(queue, durable=True)
            ready.set()
            for method, properties, body in channel.consume(queue, inactivity_timeout=0.1):
                if method is not None:
                    consumed.append(Consumed(time.time(), method.exchange, method.routing_key, properties, body))
                    channel.basic_ack(method.delivery_tag)
                if done.is_set():
                    break

    thread = Thread(target=consume, name="consumer")
    thread.start()
    try:
        assert ready.wait(60)
        yield consumed
    finally:
        done.set()
        thread.join()


def as_publisher(url: str, code: str, **names: Any) -> None:
    """Runs an example that has a channel."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel: BlockingChannel = connection.channel()
        channel.confirm_delivery()
        exec(code, {"channel": channel, "BasicProperties": pika.BasicProperties, **names})


def served(folder: Path, settings: str) -> Server:
    path = folder / "duemq.toml"
    path.write_text(settings)
    return Server(folder / "data", "--config", str(path))


def shell(server: Server, code: str) -> subprocess.CompletedProcess[str]:
    variables = environment() | {"DUEMQ_URL": server.url, "PATH": f"{BIN}:/usr/local/bin:/usr/bin:/bin"}
    return subprocess.run(["bash", "-ec", code], env=variables, capture_output=True, text=True, timeout=120)


def without_user(url: str) -> str:
    return url.replace("guest:guest@", "")


def test_messages_of_the_delayed_message_exchange_are_migrated(broker: str, tmp_path: Path) -> None:
    page = PageBlocks(PAGE, "From the delayed-message exchange")
    with ExitStack() as stack:
        consumed = stack.enter_context(consumer_of(broker, "orders"))
        # As the publisher was; the plug-in is not there, so its exchange keeps nothing.
        before = page.take("python", {'"x-delayed-message", arguments={"x-delayed-type": "topic"}': '"topic"'})
        as_publisher(broker, before, body=BODY)
        wait_for(lambda: consumed, "what the publisher sent before")
        (old,) = consumed
        assert (old.exchange, old.routing_key, old.body) == ("shop-delayed", "orders", BODY)
        consumed.clear()

        as_publisher(broker, page.take("python"))  # 1
        server = stack.enter_context(
            served(tmp_path, page.take("toml", {"amqp://localhost:5672/": without_user(broker)}))
        )
        server.start()
        wait_for(lambda: "destination shop starts" in server.log, "what the page says of the log")

        begun = time.time()  # 3
        done = shell(server, page.take("sh"))
        assert done.returncode == 0, done.stderr
        wait_for(lambda: consumed, "the message that was tried")
        tried = consumed.pop()
        assert 3 <= tried.at - begun < 60
        assert (tried.exchange, tried.routing_key, tried.body) == ("shop", "orders", b'{"order": 4711}')
        assert tried.properties.content_type == "application/json"
        tested = shell(server, "duemq destination test shop")
        assert tested.returncode == 1 and "NO_ROUTE" in tested.stdout + tested.stderr

        begun = time.time()  # 4
        code = f"import sys; body = bytes.fromhex(sys.argv[1])\n{page.take('python')}"
        subprocess.run(
            [sys.executable, "-c", code, BODY.hex()], check=True, env=environment() | {"DUEMQ_URL": server.url}
        )
        headers = {"content-encoding": "gzip", "trace": "Bücher", "number": "42", "x-delay": "7"}
        posted = {"topic": "orders", "payload": "posted", "deliver_after": 5000, "headers": headers}
        assert server.call("POST", "/v1/messages", posted).status_code == 201
        wait_for(lambda: len(consumed) >= 2, "both")
        time.sleep(0.5)  # for what should not be there
        sent, other = sorted(consumed, key=lambda one: one.body == b"posted")
        assert len(consumed) == 2 and sent.at - begun >= 5 and other.at - begun >= 5
        assert (sent.routing_key, sent.body) == (old.routing_key, old.body)
        assert sent.properties.content_type == "application/json"
        assert sent.properties.delivery_mode == 2
        assert (other.routing_key, other.body) == ("orders", b"posted")
        assert other.properties.content_encoding == "gzip"
        own = {name: value for name, value in other.properties.headers.items() if not name.startswith("duemq-")}
        assert own == {"trace": "Bücher", "number": "42"}
    assert page.all_taken()


TASKS: Final = """
from celery import Celery
from duemq.client.celery import install

{app}

@app.task
def remind(number, note="by Python"):
    with open({ran!r}, "a") as file:
        file.write(f"{{number}} {{note}}\\n")
"""


def test_from_celery_on_rabbitmq(broker: str, tmp_path: Path) -> None:
    page = PageBlocks(PAGE, "From Celery on RabbitMQ")
    ran = tmp_path / "ran"
    app = page.take("python", {"amqp://guest:guest@localhost:5672//": broker, "http://127.0.0.1:8787": "URL"})
    own = {"amqp://localhost:5672/": without_user(broker)}
    server = served(tmp_path, page.take("toml", own) + page.take("toml", own))
    (tmp_path / "tasks.py").write_text(TASKS.format(app=app.replace("URL", server.url), ran=str(ran)))
    variables = {"PYTHONPATH": str(tmp_path)}
    with ExitStack() as stack:
        stack.enter_context(server).start()
        worker = Process(
            tmp_path / "worker.log", BIN / "celery", "-A", "tasks", "worker", "-c", 1, "-l", "INFO", env=variables
        )
        worker.start()
        stack.callback(worker.kill)
        wait_for(lambda: "ready." in worker.log, "the worker, which declares its queue")

        begun = time.time()
        code = "from tasks import remind; print(remind.apply_async((1,), countdown=3).id)"
        subprocess.run([sys.executable, "-c", code], check=True, env=environment() | variables, cwd=tmp_path)
        wait_for(lambda: ran.exists() and ran.read_text(), "the task that Python sent")
        assert time.time() - begun >= 3
        assert ran.read_text() == "1 by Python\n"

        begun = time.time()
        posted = shell(server, page.take("sh", {"http://127.0.0.1:8787": server.url}))
        assert json.loads(posted.stdout)["status"] == "scheduled", posted
        wait_for(lambda: len(ran.read_text().splitlines()) == 2, "the task that came by HTTP")
        assert time.time() - begun >= 2
        assert ran.read_text().endswith("\n4711 by HTTP\n")
    assert page.all_taken()
