"""What is completed from the server: within a second, or nothing; never what means something to a shell."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import orjson
import pytest

pytestmark = pytest.mark.heavy

DUEMQ = Path(sys.executable).parent / "duemq"
TOPICS = ("orders", "orders.eu", "mails", "$(reboot)", "a b", "-rf", "x;y")


class Answers(BaseHTTPRequestHandler):
    keys: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.keys.append(self.headers.get("Authorization"))
        messages = [
            {"id": "0123", "name": name, "status": "scheduled", "topic": "t", "deliver_at_ms": 1, "deliver_at": "…"}
            for name in ("order-1", "order 2")
        ]
        messages.append({"id": "4567", "status": "scheduled", "topic": "t", "deliver_at_ms": 1, "deliver_at": "…"})
        document = {
            "/v1/topics": {"topics": [{"topic": name} for name in TOPICS]},
            "/v1/messages": {"messages": messages, "cursor": None},
            "/v1/destinations": {"destinations": [{"name": "billing"}]},
        }[self.path.partition("?")[0]]
        body = orjson.dumps(document)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def completed(line: str, **variables: str) -> list[str]:
    """What bash is offered for the last word of the line."""
    words = {"_DUEMQ_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    ended = subprocess.run([DUEMQ], env=os.environ | words | variables, capture_output=True, text=True, timeout=120)
    assert ended.stderr == "", ended.stderr
    return [word for word in ended.stdout.split("\n") if word]


def offers(line: str, expected: list[str], **variables: str) -> bool:
    """A busy machine may need more than the second that a shell waits: then again."""
    return any(completed(line, **variables) == expected for _ in range(20))


def test_topics_messages_and_destinations_come_from_the_server(server: str, config_home: Path) -> None:
    assert offers("duemq tail ", ["orders", "orders.eu", "mails"], DUEMQ_URL=server)
    assert offers("duemq send or", ["orders", "orders.eu"], DUEMQ_URL=server)
    assert offers("duemq ls --topic m", ["mails"], DUEMQ_URL=server)
    assert offers("duemq cancel ", ["order-1", "4567"], DUEMQ_URL=server)
    assert offers("duemq get order-", ["order-1"], DUEMQ_URL=server)
    assert offers("duemq destination pause b", ["billing"], DUEMQ_URL=server)
    Answers.keys.clear()
    assert offers(f"duemq --url {server} --api-key the-key tail m", ["mails"])
    assert set(Answers.keys) == {"Bearer the-key"}
    add = [str(DUEMQ), "profile", "add", "near", "--url", server]
    subprocess.run(add, check=True, capture_output=True, timeout=120)
    assert offers("duemq --profile near tail m", ["mails"])
    assert completed("duemq --profile n") == ["near"] == completed("duemq profile use ")


@pytest.mark.parametrize("line", ["duemq tail ", "duemq get ", "duemq destination pause "])
def test_without_an_answer_nothing_is_completed_and_nothing_is_said(line: str) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        since = time.monotonic()
        assert completed(line, DUEMQ_URL=f"http://127.0.0.1:{silent.getsockname()[1]}") == []
        silence_s = time.monotonic() - since
    since = time.monotonic()
    assert completed(line, DUEMQ_URL="http://127.0.0.1:1") == []
    assert silence_s < 30 + 3 * (time.monotonic() - since), "the wait has an end"
    assert completed(line, DUEMQ_PROFILE="nowhere") == [] == completed(line, DUEMQ_URL="http://a:0")
