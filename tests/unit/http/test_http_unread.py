"""Who may call a server: pages of others, foreign names, keys that are none; and what it says of itself."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from typing import Any, cast

import pytest

from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.cli.settings.settings import Settings
from duemq.cli.wiring.http_api import http_api
from duemq.cli.wiring.parts import registry
from duemq.cluster.admin.administration import Administration
from duemq.delay.api.internal_http import create_internal_app
from duemq.delay.node_backend import NodeBackend
from duemq.model.errors import BadConfig
from duemq.proxy.api.endpoint import Endpoint
from duemq.proxy.openapi import describe
from duemq.proxy.table import ENDPOINTS
from duemq.web import open_files
from duemq.web.connection.connections import DRAINING
from duemq.web.server import ServerStop
from duemq.web.settings import HttpSettings
from tests.support.http.http_site import ORDER, Ask, FakeGateway, app_over, refused, with_app

EVIL = {"Origin": "https://evil.example"}


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://duemq"}, True),
        ({"Sec-Fetch-Site": "none"}, True),
        ({"Origin": "http://DUEMQ"}, True),
        ({"Host": "h:80", "Origin": "http://h"}, True),
        ({"Host": "h", "Origin": "https://h"}, True),  # TLS ended before us
        ({"Sec-Fetch-Site": "cross-site", "Origin": "https://app.example"}, True),
        (EVIL, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://duemq:3000"}, False),
        ({"Host": "h:8787", "Origin": "http://h"}, False),
        ({"Host": "h:80", "Origin": "https://h"}, False),
        ({"Origin": "ftp://duemq"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "same-site", "Origin": "http://duemq"}, False),
        ({"Sec-Fetch-Site": "same-origin"} | EVIL, False),
    ],
)
@pytest.mark.parametrize("keys", [(), ("12345678",)])
def test_pages_of_others_change_nothing(headers: dict[str, str], allowed: bool, keys: tuple[str, ...]) -> None:
    sent = {"X-API-Key": "12345678"} | headers

    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        answers = [
            await ask("POST", "/v1/messages", json=ORDER, headers=sent),
            await ask("DELETE", "/v1/messages/m1", headers=sent),
            await ask("POST", "/v1/cluster/nodes/a:drain", headers=sent),
        ]
        if allowed:
            assert [answer.status_code for answer in answers] == [201, 200, 200]
        else:
            for answer in answers:
                refused(answer, 403, "foreign_origin")
            assert gateway.sent == [] == gateway.changes
        assert (await ask("GET", "/v1/cluster", headers=sent)).status_code == 200

    with_app(scenario, settings=HttpSettings(api_keys=keys, origins=("https://app.example",)))


@pytest.mark.parametrize("origin", ["https://app.example", "https://other.example"])
def test_a_page_of_an_allowed_origin_may_send_json_and_keys_and_read_the_answer(origin: str) -> None:
    """A browser asks first, without a key, and wants each answer to name the page's origin."""
    allowed = origin == "https://app.example"

    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        asks = {
            "Origin": origin, "Sec-Fetch-Site": "cross-site", "Access-Control-Request-Method": "PUT",
            "Access-Control-Request-Headers": "authorization, content-type,duemq-topic",
        }  # fmt: skip
        asked = await ask("OPTIONS", "/v1/messages/a", headers=asks)
        sends = {"Origin": origin, "Sec-Fetch-Site": "cross-site"}
        sent = await ask("POST", "/v1/messages", json=ORDER, headers=sends | {"X-API-Key": "in-the-settings"})
        without = await ask("POST", "/v1/messages", json=ORDER, headers=sends)
        if not allowed:
            assert asked.status_code == 401 and sent.status_code == 403
        else:
            assert (asked.status_code, sent.status_code, without.status_code) == (204, 201, 401)
            assert asked.headers["Access-Control-Allow-Headers"] == "authorization, content-type,duemq-topic"
            assert "PUT" in asked.headers["Access-Control-Allow-Methods"]
        for answer in (asked, sent, without):
            assert answer.headers.get("Access-Control-Allow-Origin") == (origin if allowed else None)
            assert "Access-Control-Allow-Credentials" not in answer.headers
        assert "Access-Control-Allow-Origin" not in (await ask("GET", "/livez")).headers

    with_app(scenario, settings=HttpSettings(api_keys=("in-the-settings",), origins=("https://app.example",)))


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1:8787", True),
        ("[::1]:8787", True),
        ("10.1.2.3", True),
        ("localhost:8787", True),
        ("duemq:8787", True),
        ("duemq.prod.svc", True),
        ("duemq.prod.svc.cluster.local.:80", True),
        ("box.internal", True),
        (socket.gethostname(), True),
        ("duemq.example.com", True),
        ("a.b.example.org", True),
        ("EXAMPLE.org", False),
        ("evil.example:8787", False),
        ("127.0.0.1.evil.example", False),
        ("evil.example/.local", False),
        ("[::1].evil.example", False),
        ("localhost@evil.example", False),
    ],
)
def test_without_keys_only_its_own_names_are_answered(host: str, known: bool) -> None:
    hosts = ("duemq.example.com", "*.example.org")
    sent = {"Host": host, "X-API-Key": "12345678"}

    async def open_server(gateway: FakeGateway, ask: Ask) -> None:
        answer = await ask("GET", "/v1/cluster", headers=sent)
        if known:
            assert answer.status_code == 200
        else:
            assert "http.hosts" in refused(answer, 421, "foreign_host")["detail"]
        assert (await ask("GET", "/healthz", headers=sent)).status_code == 200  # a balancer asks by any name

    async def with_keys(gateway: FakeGateway, ask: Ask) -> None:
        assert (await ask("GET", "/v1/cluster", headers=sent)).status_code == 200

    with_app(open_server, settings=HttpSettings(hosts=hosts))
    with_app(with_keys, settings=HttpSettings(api_keys=("12345678",)))


@pytest.mark.parametrize(
    "keys",
    [
        "",
        " ",
        "12345678,",
        "12345678,,87654321",
        "1234567",
        "1234 5678",
        ["12345678\n"],
        "schlüssel",
        [""],
        ["a,b,c,d,e"],
    ],
)
def test_keys_that_are_none_stop_the_start_and_are_not_printed(keys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(keys, str):
        monkeypatch.setenv("DUEMQ_HTTP__API_KEYS", keys)
    with pytest.raises(BadConfig, match=r"http\.api_keys") as error:
        Settings.load(overrides={} if isinstance(keys, str) else {"http": {"api_keys": keys}})
    given = keys.split(",") if isinstance(keys, str) else keys
    assert not any(key.strip() and key in str(error.value) for key in given)


def test_keys_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUEMQ_HTTP__API_KEYS", "first-key, second-key")
    assert Settings.load().http.api_keys == ("first-key", "second-key")


@pytest.mark.parametrize(
    ("setting", "value"),
    [("hosts", "a b"), ("hosts", "h:80"), ("hosts", "*"), ("origins", "app.example"), ("origins", "https://a/b")],
)
def test_names_and_origins_are_checked(setting: str, value: str) -> None:
    with pytest.raises(BadConfig, match=f"http.{setting}"):
        Settings.load(overrides={"http": {setting: [value]}})


def test_the_start_says_whether_keys_are_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    def told(**settings: Any) -> tuple[int, str]:
        backend: Any = cast(Any, type("Backend", (), {"shards": 1, "clock": lambda: 0, "why_clock_out": None}))
        admin = Administration(lambda: MemoryBus(MemoryLog()), lambda: 0)
        caplog.clear()
        with caplog.at_level(logging.INFO):
            http_api(Settings.load(overrides=settings), backend, registry(), asyncio.Event(), admin)
        return caplog.records[0].levelno, caplog.records[0].getMessage()

    level, sentence = told(http={"api_keys": ["first-key"]})
    assert level == logging.INFO and "are required" in sentence and "first-key" not in sentence
    assert told(listen="127.0.0.1:0")[0] == told(listen="localhost:0")[0] == logging.INFO
    level, sentence = told(listen="0.0.0.0:0")
    assert level == logging.WARNING and "no API keys are set" in sentence


@pytest.mark.parametrize("accept", ["text/plain;version=abc", "application/openmetrics-text;version=x.y", "*/*;q=a"])
def test_an_invalid_accept_header_gets_metrics_in_the_default_format(accept: str) -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        answer = await ask("GET", "/metrics", headers={"Accept": accept})
        assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert b"duemq_pending 3.0" in answer.content

    with_app(scenario)


def test_what_the_server_as_a_whole_knows() -> None:
    async def scenario() -> None:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope: dict[str, Any] = {
            "type": "http",
            "method": "OPTIONS",
            "path": "*",
            "headers": [(b"host", b"x")],
            "query_string": b"",
        }
        await app_over(FakeGateway())(scope, cast(Any, None), send)
        headers = dict(sent[0]["headers"])
        assert sent[0]["status"] == 204 and b"PATCH" in headers[b"allow"] and headers[b"x-request-id"]
        scope |= {"method": "GET", "path": "/readyz", DRAINING: True}
        await app_over(FakeGateway())(scope, cast(Any, None), send)
        assert sent[2]["status"] == 503 and b'"closing"' in sent[3]["body"]

    asyncio.run(scenario())


def test_a_nodes_own_door_names_requests_and_says_what_it_asks_for() -> None:
    async def scenario() -> None:
        app = create_internal_app(
            cast(NodeBackend, type("Backend", (), {"reader": None, "stuck": dict})), registry(), "the-token"
        )
        for path, status in (("/internal/search", 401), ("/nothing", 404), ("/healthz", 200)):
            sent: list[Any] = []

            async def send(message: Any, sent: list[Any] = sent) -> None:
                sent.append(message)

            scope = {
                "type": "http", "method": "GET", "path": path, "headers": [], "query_string": b"", "root_path": "",
            }  # fmt: skip
            await app(scope, cast(Any, None), send)
            headers = dict(sent[0]["headers"])
            assert sent[0]["status"] == status and headers[b"x-request-id"]
            assert (b"www-authenticate" in headers) == (status == 401)

    asyncio.run(scenario())


def test_the_document_knows_both_ways_to_show_a_key_and_whose_id_it_is() -> None:
    document = describe(ENDPOINTS)
    assert {tuple(one) for one in document["security"]} == {(), ("bearer",), ("header",)}
    assert document["components"]["securitySchemes"]["header"]["name"] == "X-API-Key"

    def id_of(path: str) -> str:
        parameters = document["paths"][path]["get"]["parameters"]
        return str(next(one["description"] for one in parameters if one["name"] == "id"))

    assert "import" in id_of("/v1/imports/{id}") and "message" in id_of("/v1/messages/{id}")
    unsafe: list[Endpoint] = [endpoint for endpoint in ENDPOINTS if endpoint.method != "GET"]
    for endpoint in unsafe:
        assert "403" in document["paths"][endpoint.path][endpoint.method.lower()]["responses"]


def test_the_stores_get_their_files_first(caplog: pytest.LogCaptureFixture) -> None:
    assert open_files.connections_within(524_288, 10_000) == 10_000
    assert caplog.records == []
    for files, most in ((1024, 424), (800, 200), (200, 50), (3, 1)):
        assert open_files.connections_within(files, 10_000) == most
        assert f"at most {most} connections" in caplog.records[-1].getMessage()


@pytest.mark.parametrize(
    ("limits", "refuses", "then"),
    [
        ((1024, 4096), False, 4096),
        ((1024, 1024), False, 1024),
        ((1024, resource.RLIM_INFINITY), False, 1 << 20),
        ((1024, resource.RLIM_INFINITY), True, 1024),
        ((1 << 21, 1 << 22), False, 1 << 21),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), False, 1 << 20),
    ],
)
def test_as_many_files_as_may_be(
    limits: tuple[int, int], refuses: bool, then: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def set_to(_: int, wanted: tuple[int, int]) -> None:
        if refuses:
            raise ValueError("current limit exceeds maximum limit")
        assert wanted == (then, limits[1])

    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", set_to)
    assert open_files.raise_limit() == then


def test_a_stop_is_heard_at_once_and_comes_when_it_is_time() -> None:
    stop = ServerStop()
    stop.ask()
    assert stop.request.is_set() and stop.is_set()
    stop = ServerStop()
    stop.drains = True
    stop.ask()
    assert stop.request.is_set() and not stop.is_set()
    stop.ask()
    assert stop.is_set()
    stop = ServerStop()
    stop.set()
    assert stop.request.is_set()
