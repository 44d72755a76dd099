"""A server that resets connections as soon as they are there: what a process leaves that dies with a full backlog."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import uvloop

from duemq.client import AsyncClient, Unreachable
from duemq.client.http.async_http import AsyncHttp

_TRIES = 100


@contextmanager
def resetting_server() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


async def failures(attempt: Callable[[], Coroutine[Any, Any, object]]) -> list[BaseException]:
    """Of many attempts, beside work that takes turns of the loop: the reset is there before the next step."""
    done = False

    async def work() -> None:
        while not done:
            time.sleep(0.0005)  # noqa: ASYNC251
            await asyncio.sleep(0)

    working = asyncio.create_task(work())
    failed: list[BaseException] = []
    for _ in range(_TRIES):
        try:
            await attempt()
        except Exception as error:
            failed.append(error)
    done = True
    await working
    return failed


def test_a_connection_that_is_reset_at_once_is_a_transport_error() -> None:
    async def run(url: str) -> list[BaseException]:
        async with AsyncHttp(trust_env=False) as http:
            return await failures(lambda: http.get(url))

    with resetting_server() as url:
        failed = uvloop.run(run(url))
    assert len(failed) == _TRIES and all(isinstance(error, httpx.TransportError) for error in failed)
    assert any(isinstance(error.__cause__, AttributeError) for error in failed), "httpcore does better: drop AsyncHttp"


def test_the_sdk_says_that_nothing_was_sent() -> None:
    async def run(url: str) -> list[BaseException]:
        async with AsyncClient(url, retries=0) as client:
            return await failures(lambda: client.get("x" * 32))

    with resetting_server() as url:
        failed = uvloop.run(run(url))
    assert len(failed) == _TRIES and all(isinstance(error, Unreachable) for error in failed)


def test_a_fault_of_somebody_elses_is_not_hidden() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        raise AttributeError("a bug")

    async def run() -> None:
        async with AsyncHttp(transport=httpx.MockTransport(handle)) as http:
            with pytest.raises(AttributeError, match="a bug"):
                await http.get("http://nowhere/")

    asyncio.run(run())
