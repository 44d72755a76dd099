"""Why there is no connection, in words of the caller; and answers of other services."""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from duemq.client import AsyncClient, Client, Unreachable
from duemq.client.http.errors import UnexpectedAnswer
from tests.support.tls.certificates import Authority

Failure = Callable[..., Any]


def blocking_failure(url: str, **options: Any) -> Exception:
    with Client(url, retries=0, **options) as client, pytest.raises((Unreachable, UnexpectedAnswer)) as caught:
        client.send("orders", "x")
    return caught.value


def async_failure(url: str, **options: Any) -> Exception:
    async def call() -> Exception:
        async with AsyncClient(url, retries=0, **options) as client:
            with pytest.raises((Unreachable, UnexpectedAnswer)) as caught:
                await client.send("orders", "x")
        return caught.value

    return asyncio.run(call())


@pytest.fixture(params=[blocking_failure, async_failure], ids=["sync", "async"])
def failure(request: pytest.FixtureRequest) -> Failure:
    kind: Failure = request.param
    return kind


@contextmanager
def listening(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    """The port of a server that does this with each connection, and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    with listener.accept()[0] as connection, suppress(OSError):
                        answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def plain(connection: socket.socket) -> None:
    connection.recv(65_536)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_nobody_listens(failure: Failure, host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    error = failure(f"http://{host}:{port}")
    assert str(error) == (
        f"cannot connect to http://{host}:{port}: no server listens there; start one with `duemq serve`, or name "
        "another (--url, DUEMQ_URL)"
    )
    assert not error.outcome_unknown


def test_an_error_that_the_caller_handles_is_no_reason(failure: Failure, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    try:
        raise ConnectionRefusedError
    except ConnectionRefusedError:
        error = failure("http://duemq.example:8787")
    assert "Network is unreachable" in str(error) and "no server listens" not in str(error)


def test_the_name_has_no_address(failure: Failure, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    error = failure("http://dumq.example:8787")
    sentence = "no address is known for dumq.example: Name or service not known"
    assert str(error) == f"cannot connect to http://dumq.example:8787: {sentence}"
    assert not error.outcome_unknown


def test_https_is_said_to_a_server_without_tls(failure: Failure) -> None:
    with listening(plain) as port:
        error = failure(f"https://127.0.0.1:{port}")
    sentence = f"it does not speak TLS: say http://127.0.0.1:{port}"
    assert str(error) == f"cannot connect to https://127.0.0.1:{port}: {sentence}"
    assert not error.outcome_unknown


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        ("stranger", r"is not trusted \(.*\); name the file with its authority \(ca_file, --ca-file, DUEMQ_CA_FILE\)"),
        ("other name", r"is for another name: .*127\.0\.0\.1"),
        ("old", "is not accepted: .*expired"),
    ],
)
def test_the_certificate_of_the_server_is_no_good(failure: Failure, tmp_path: Path, shown: str, reason: str) -> None:
    authority, stranger = Authority.make(tmp_path), Authority.make(tmp_path / "b")
    files = {
        "stranger": stranger.issue("server"),
        "other name": authority.issue("other", "duemq.example"),
        "old": authority.issue("old", valid=-timedelta(days=1)),
    }[shown]
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.cert, files.key)
    with listening(lambda connection: context.wrap_socket(connection, server_side=True).close()) as port:
        error = failure(f"https://127.0.0.1:{port}", ca_file=str(authority.ca))
    assert re.search(f"^cannot connect to https://127.0.0.1:{port}: its certificate {reason}", str(error)), error
    assert not error.outcome_unknown


def test_a_host_that_says_nothing(failure: Failure) -> None:
    def silent(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectTimeout("", request=request)

    error = failure("http://10.0.0.1", timeout=2.5, transport=httpx.MockTransport(silent))
    assert str(error) == "cannot connect to http://10.0.0.1: no answer within 2.5 s"


OTHER_SERVICES = {
    "a page": (httpx.Response(200, text="<html>Welcome"), "of another service: '<html>Welcome'; check the URL"),
    "no page": (httpx.Response(404, text="<html>404"), "HTTP 404 is not an answer of duemq but of another service"),
    "other JSON": (httpx.Response(200, json={"hello": 1}), "HTTP 200 is not an answer of duemq"),
    "a JSON list": (httpx.Response(200, json=[1]), "HTTP 200 is not an answer of duemq"),
    "a redirect": (
        httpx.Response(308, headers={"Location": "https://duemq.example/v1/messages"}),
        "HTTP 308: the server is at https://duemq.example/v1/messages: use that URL",
    ),
}


@pytest.mark.parametrize("service", OTHER_SERVICES)
def test_an_answer_of_another_service_is_told_apart(failure: Failure, service: str) -> None:
    answer, sentence = OTHER_SERVICES[service]

    def copy(_: httpx.Request) -> httpx.Response:
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)

    error = failure("http://duemq.test", transport=httpx.MockTransport(copy))
    assert isinstance(error, UnexpectedAnswer) and sentence in str(error)
