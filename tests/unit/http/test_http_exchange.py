"""How an answer is written to its connection: over a transport that only keeps what it gets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
import uvicorn
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from duemq.model.callers.access import EVERYTHING
from duemq.model.errors import Rejected
from duemq.proxy.api.endpoint import Router, route_path
from duemq.proxy.table import ENDPOINTS
from duemq.web.connection.connections import ConnectionLimits, Connections
from duemq.web.connection.exchange import respond
from duemq.web.connection.protocol import HttpProtocol, connection_class
from duemq.web.json_response import JsonResponse
from tests.support.http.raw_site import until

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


class KeptWrites(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def connected(app: ASGIApp, keep_alive_s: int = 75) -> tuple[HttpProtocol, KeptWrites]:
    """A connection of a server with this application."""
    made = connection_class(Connections(ConnectionLimits()))
    config = uvicorn.Config(
        app, http=made, ws="none", lifespan="off", log_config=None, access_log=False, timeout_keep_alive=keep_alive_s
    )
    config.load()
    connection, transport = made(config, ServerState(), {}), KeptWrites()
    connection.connection_made(transport)
    return connection, transport


def written(response: Response, request: bytes, send: Callable[..., Awaitable[None]]) -> tuple[list[bytes], bool]:
    """What is written, and whether the connection is closed behind it."""

    async def app(scope: Scope, receive: Receive, asgi_send: Send) -> None:
        await send(response, scope, receive, asgi_send)

    async def run() -> tuple[list[bytes], bool]:
        connection, transport = connected(app)
        connection.data_received(request)
        await until(lambda: transport.closed or (connection.cycle is not None and connection.cycle.response_complete))
        connection.connection_lost(None)
        return transport.writes, transport.closed

    return asyncio.run(run())


@pytest.mark.parametrize(
    "response",
    [
        JsonResponse({"id": "m1"}, 201),
        JsonResponse({}, 202, {"Location": "../messages/m1"}),
        Response(status_code=204),
        Response(b"", media_type="text/plain"),
        Response("ä" * 1000),
    ],
    ids=lambda response: str(response.status_code),
)
@pytest.mark.parametrize(
    "request_",
    [GET, GET.replace(b"GET", b"HEAD"), GET.replace(b"1.1", b"1.0"), GET[:-2] + b"Connection: close\r\n\r\n"],
    ids=["get", "head", "1.0", "close"],
)
def test_a_finished_answer_has_the_bytes_that_two_sends_write(response: Response, request_: bytes) -> None:
    async def asgi(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
        await response(scope, receive, send)

    (whole, closed), (parts, closed_too) = written(response, request_, respond), written(response, request_, asgi)
    assert b"".join(whole) == b"".join(parts)
    assert closed == closed_too
    if response.body and not request_.startswith(b"HEAD"):
        assert len(whole) == 1


def test_a_header_cannot_end_its_line() -> None:
    response = JsonResponse({})
    response.raw_headers.append((b"location", b"a\r\nset-cookie: b"))
    writes, closed = written(response, GET, respond)
    assert closed
    assert writes == []


def test_an_idle_connection_is_closed_and_one_that_is_served_is_not() -> None:
    async def run() -> None:
        answers = asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] == "/slow":
                await answers.wait()
            await respond(JsonResponse({}), scope, receive, send)

        connection, transport = connected(app, keep_alive_s=1)
        connection.data_received(GET)
        await until(lambda: len(transport.writes) == 1)
        connection.data_received(GET.replace(b" / ", b" /slow "))
        await until(lambda: connection.timeout_keep_alive_task is None)  # the time of the first answer is over
        assert not transport.closed
        answers.set()
        await until(lambda: len(transport.writes) == 2)
        assert not transport.closed
        await until(lambda: transport.closed)

    asyncio.run(run())


def test_a_connection_is_closed_when_it_was_idle_since_its_last_answer() -> None:
    async def run() -> None:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await respond(JsonResponse({}), scope, receive, send)

        connection, transport = connected(app, keep_alive_s=1)
        for answers in (1, 2):
            connection.data_received(GET)
            await until(lambda answers=answers: len(transport.writes) == answers)  # type: ignore[misc]
        last = connection.since
        await until(lambda: transport.closed)
        assert asyncio.get_running_loop().time() - last >= 1

    asyncio.run(run())


def test_a_lost_connection_leaves_no_timer() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(JsonResponse({}), scope, receive, send)

    async def run() -> None:
        connection, transport = connected(app)
        connection.data_received(GET)
        await until(lambda: len(transport.writes) == 1)
        timer = connection.timeout_keep_alive_task
        assert timer is not None
        connection.connection_lost(OSError())
        assert timer.cancelled()

    asyncio.run(run())


def test_each_path_is_found_as_starlette_finds_it() -> None:
    router = Router(ENDPOINTS)
    routes = [Route(route_path(one.path), one.handler, methods=[one.method]) for one in ENDPOINTS]
    paths = {one.path.replace("{", "").replace("}", "") for one in ENDPOINTS}
    paths |= {path + more for path in paths for more in ("/", "/x", ":x", "/a/b")} | {"", "/", "*", "//v1/messages"}
    for path in sorted(paths):
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"):
            scope: dict[str, Any] = {"type": "http", "method": method, "path": path, "query_string": b""}
            scope["headers"] = [(b"content-type", b"application/json")]
            found = [route.matches(scope) for route in routes]
            full = next((child for match, child in found if match is Match.FULL), None)
            try:
                request = cast(Any, type("Asked", (), {"scope": scope}))
                match = router.open(request, router.find(request), EVERYTHING)
            except Rejected:
                match = None
            assert match is not None
            assert (match.handler is None) == (full is None), (method, path)
            if full is not None:
                assert scope["path_params"] == full["path_params"]
                assert match.handler is full["endpoint"] or method in ("GET", "HEAD")
            else:
                some = {one for route, (kind, _) in zip(routes, found, strict=True) if kind is Match.PARTIAL
                        for one in route.methods or ()}  # fmt: skip
                assert match.allowed == tuple(sorted(some))
