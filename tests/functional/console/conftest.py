"""One server with messages and access control, one browser, and axe-core, for all tests of the console."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Browser

from tests.e2e.server import Server, run, wait_for
from tests.support.http.browser import axe_source, chromium

DAY_MS = 86_400_000


class Site(NamedTuple):
    """`keys` by role. `shared`: where files may be imported from."""

    server: Server
    keys: dict[str, str]
    shared: Path

    def send(self, topic: str = "orders", **message: Any) -> str:
        """The id of a new message."""
        answer = self.call("POST", "/v1/messages", {"topic": topic, "payload": '{"order": 17}', **message})
        assert answer.status_code == 201, answer.text
        id_: str = answer.json()["id"]
        return id_

    def bury(self, topic: str, count: int) -> None:
        """Dead letters in a topic, as a consumer writes them."""
        death = {"x-duemq-topic": "invoices", "x-duemq-partition": "0", "x-duemq-retried": "16", "trace": "4711",
                 "x-duemq-reason": "retries", "x-duemq-error": "ValueError: no amount in <b>17</b>"}  # fmt: skip
        letters = [
            {"topic": topic, "payload": '{"invoice": 17}', "key": f"i-{n}",
             "headers": death | {"x-duemq-offset": str(n)}}
            for n in range(count)
        ]  # fmt: skip
        assert self.call("POST", "/v1/messages:batch", {"messages": letters}).json()["accepted"] == count
        wait_for(lambda: len(self.letters(topic)) == count, f"dead letters in {topic}")

    def letters(self, topic: str) -> list[Any]:
        letters: list[Any] = self.call("GET", f"/v1/dlq/topics/{topic}").json().get("letters", [])
        return letters

    def call(self, method: str, path: str, body: Any = None) -> Any:
        return self.server.http.request(method, path, json=body, headers={"X-API-Key": self.keys["admin"]})

    def status(self, id_: str) -> str:
        status: str = self.call("GET", f"/v1/messages/{id_}").json()["status"]
        return status


# Of a module and not of the session: while Playwright runs, its thread has an event loop, and others cannot begin one.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as one:
        yield one


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    return axe_source(tmp_path_factory.mktemp("axe"))


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder: Path = tmp_path_factory.mktemp("console")
    shared = folder / "shared"
    with Server(folder / "data", "--set", "http.access=keys", "--set", f"delay_files.import_from={shared}") as server:
        server.start()
        made = run("keys", "create", "ops", "--scope", "admin", "--yes", "--data", folder / "data", url=server.url)
        site = Site(server, {"admin": made.stdout.strip()}, shared)
        for role, scopes in (("viewer", ["read"]), ("operator", ["send", "read", "cancel", "operate"])):
            site.keys[role] = site.call("POST", "/v1/keys", {"name": role, "scopes": scopes}).json()["key"]
        now = int(time.time() * 1000)
        payload = json.dumps({"order": 17, "text": "<script>alert(1)</script>"})
        messages = [
            {"topic": f"topic-{number % 3}", "payload": payload, "deliver_at": now + DAY_MS + number * 60_000,
             "key": f"key-{number}", "labels": ["vip", "<b>"], "headers": {"trace": "4711"}}
            for number in range(120)
        ]  # fmt: skip
        assert site.call("POST", "/v1/messages:batch", {"messages": messages}).status_code == 200
        soon = int(time.time() * 1000) + 1_500
        expired = [site.send("expiring", deliver_at=soon, expires_at=soon, key=f"e-{n}") for n in range(4)]
        server.kill()
        wait_for(lambda: time.time() * 1000 > soon, "messages to expire while the server is away")
        server.start()
        site.send("delivered", deliver_after="1ms")
        site.bury("dlq.billing", 30)
        wait_for(lambda: all(site.status(id_) == "dead" for id_ in expired), "dead letters")
        yield site
        assert server.stop() == 0
