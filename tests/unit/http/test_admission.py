"""How much an application takes in at a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest

from duemq.model.errors import Rejected, Unavailable
from duemq.model.messages.message import Draft
from duemq.proxy.gateway.base import Receipt
from duemq.web.admission.admission import (
    STRANGER_BODY_S,
    STRANGERS,
    STRANGERS_BYTES,
    STRANGERS_OF_ADDRESS,
    Admission,
    Share,
)
from duemq.web.settings import HttpSettings
from tests.support.http.http_site import ORDER, TEXT, Ask, FakeGateway, refused, with_app
from tests.support.virtual_loop import VirtualLoop
from tests.unit.http.test_http_access import Site, with_site

MIB = 1 << 20


class Held:
    """Makes a gateway hold the messages it is sent back until `go` is set."""

    def __init__(self, gateway: FakeGateway) -> None:
        self.go, self.sending, self._send = asyncio.Event(), 0, gateway.send
        gateway.send = self.send  # type: ignore[method-assign]

    async def send(self, drafts: Sequence[Draft]) -> list[Receipt | Rejected]:
        self.sending += 1
        await self.go.wait()
        return await self._send(drafts)

    async def until(self, sending: int) -> None:
        while self.sending < sending:  # noqa: ASYNC110  # a condition of the test's own loop
            await asyncio.sleep(0)


class Body:
    """A body of chunks that notes how much of it was asked for."""

    def __init__(self, chunks: int) -> None:
        self._chunks, self.read = chunks, 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(self._chunks):
            self.read += 1
            yield b"x" * (64 << 10)


def test_bodies_for_which_there_is_no_room_are_refused_unread_and_later_taken() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        held = Held(gateway)
        first = asyncio.create_task(ask("POST", "/v1/messages", content=b"x" * (MIB - 1000), headers=TEXT))
        await held.until(1)
        unread = Body(16)
        answer = await ask("POST", "/v1/messages", content=unread, headers=TEXT | {"Content-Length": str(MIB)})
        refused(answer, 503, "unavailable")
        assert answer.headers["Retry-After"] == "1" and unread.read == 0
        small = asyncio.create_task(ask("POST", "/v1/messages", content=b"x" * 900, headers=TEXT))
        await held.until(2)
        held.go.set()
        assert [(await each).status_code for each in (first, small)] == [201, 201]
        answer = await ask("POST", "/v1/messages", content=b"x" * MIB, headers=TEXT)
        assert answer.status_code == 201

    with_app(scenario, HttpSettings(max_inflight_bytes=MIB))


def test_a_body_in_chunks_is_refused_when_it_becomes_too_much() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        held = Held(gateway)
        first = asyncio.create_task(ask("POST", "/v1/messages", content=b"x" * (MIB - (256 << 10)), headers=TEXT))
        await held.until(1)
        body = Body(12)
        refused(await ask("POST", "/v1/messages", content=body, headers=TEXT), 503, "unavailable")
        assert body.read <= 6  # it fits four
        held.go.set()
        assert (await first).status_code == 201

    with_app(scenario, HttpSettings(max_inflight_bytes=MIB))


def test_one_request_alone_may_be_larger_than_the_bound_for_all() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        body = {"messages": [ORDER | {"payload": "x" * MIB}]}
        assert (await ask("POST", "/v1/messages:batch", json=body)).status_code == 200

    with_app(scenario, HttpSettings(max_inflight_bytes=MIB))


def test_requests_beyond_the_bound_are_refused_and_health_is_answered() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        held = Held(gateway)
        waiting = [asyncio.create_task(ask("POST", "/v1/messages", content=b"x", headers=TEXT)) for _ in range(3)]
        await held.until(3)
        answer = await ask("GET", "/v1/messages/m1")
        refused(answer, 503, "unavailable")
        assert answer.headers["Retry-After"] == "1" and answer.headers["X-Request-ID"]
        for path in ("/livez", "/healthz", "/readyz", "/metrics"):
            assert (await ask("GET", path)).status_code == 200
        held.go.set()
        assert [(await each).status_code for each in waiting] == [201] * 3
        assert (await ask("GET", "/v1/messages/m1")).status_code == 200

    with_app(scenario, HttpSettings(max_requests=3))


def test_large_bodies_and_pages_that_nobody_reads_leave_room_for_small_bodies() -> None:
    """Under abuse six of a hundred honest batches were refused: batches of 32 MiB and pages had taken all there was."""
    admission = Admission(max_bytes=64 * MIB)

    def share() -> Share:
        return admission.enter({"path": "/v1/messages"})

    share().reserve_body(32 * MIB)
    share().take(15 * MIB)
    for take in (share().reserve_body, share().take):
        with pytest.raises(Unavailable):
            take(2 * MIB)
    small = [share() for _ in range(64)]
    for each in small:
        each.reserve_body(256 << 10)
    with pytest.raises(Unavailable):
        share().reserve_body(2 * MIB)
    assert admission.left == MIB
    for each in small:
        each.close()


async def never() -> AsyncIterator[bytes]:
    """A body whose rest does not come."""
    yield b"k"
    await asyncio.Event().wait()


async def half_sent(ask: Ask, path: str, number: int, headers: dict[str, str]) -> list[asyncio.Task[httpx.Response]]:
    tasks = [asyncio.create_task(ask("POST", path, content=never(), headers=headers)) for _ in range(number)]
    for _ in range(20):
        await asyncio.sleep(0)
    return tasks


def test_bodies_that_do_not_come_give_way_to_new_requests_the_oldest_first() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        waiting = await half_sent(ask, "/v1/messages", 3, TEXT)
        refused(await ask("GET", "/v1/messages/m1"), 503, "unavailable")  # they may be under way still
        await asyncio.sleep(2)
        assert (await ask("GET", "/v1/messages/m1")).status_code == 200
        refused(await waiting[0], 503, "unavailable")
        await asyncio.sleep(0)
        assert [task.done() for task in waiting] == [True, False, False]
        for task in waiting[1:]:
            task.cancel()

    with_app(scenario, HttpSettings(max_requests=3), in_virtual_time=True)


def test_a_large_body_that_does_not_come_gives_way_to_one_that_does() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        (waiting,) = await half_sent(ask, "/v1/messages", 1, TEXT | {"Content-Length": str(MIB)})
        await asyncio.sleep(2)
        answer = await ask("POST", "/v1/messages", content=b"x" * (MIB // 2), headers=TEXT)
        assert answer.status_code == 201
        refused(await waiting, 503, "unavailable")

    with_app(scenario, HttpSettings(max_inflight_bytes=MIB), in_virtual_time=True)


def test_strangers_have_few_places_and_seconds_and_take_none_from_callers() -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded", "Content-Length": "4096"}

    async def scenario(site: Site) -> None:
        key = await site.key("read")

        async def ask(method: str, path: str, **more: Any) -> httpx.Response:
            return await site.http.request(method, path, **more)

        counted = Counter[str]()
        site.app.admission.on_stranger_refused = lambda: counted.update(["refused"])
        site.app.admission.on_body_ended = lambda: counted.update(["ended"])
        waiting = await half_sent(ask, "/console/login", STRANGERS_OF_ADDRESS + 4, form)
        assert [task.result().status_code for task in waiting if task.done()] == [503] * 4
        assert (await site.ask("GET", "/v1/limits", key)).status_code == 200
        assert (await site.ask("GET", "/livez")).status_code == 200
        await asyncio.sleep(1.5)
        assert (await site.ask("GET", "/console/login")).status_code == 200  # the oldest gave way
        await asyncio.sleep(0.1)
        assert sum(task.done() for task in waiting) == 5
        await asyncio.sleep(STRANGER_BODY_S)
        assert [(await task).status_code for task in waiting] == [503] * len(waiting)
        assert counted == {"refused": 4, "ended": STRANGERS_OF_ADDRESS}

    with asyncio.Runner(loop_factory=VirtualLoop) as loop:
        loop.run(Site().run(scenario))


def test_a_login_of_more_than_4_kib_is_refused_unread() -> None:
    async def scenario(site: Site) -> None:
        await site.key("read")
        answer = await site.http.post("/console/login", content=never(), headers={"Content-Length": "4097"})
        assert answer.status_code == 413

    with_site(scenario)


def test_a_body_that_was_refused_takes_nothing_of_what_strangers_share() -> None:
    admission = Admission(max_bytes=MIB)
    held = admission.enter({"path": "/v1/messages"})
    held.take(MIB)
    for _ in range(2 * STRANGERS_BYTES // 4096):
        stranger = admission.enter({"path": "/console/login"})
        stranger.count_as_stranger("10.0.0.1")
        with pytest.raises(Unavailable, match="max_inflight_bytes"):
            stranger.reserve_body(4096)
        stranger.close()
    held.close()
    assert (admission.bytes, admission.strangers.bytes, admission.strangers.requests) == (0, 0, 0)


def test_strangers_of_several_addresses_share_one_pool() -> None:
    async def scenario() -> None:
        admission = Admission()
        shares = []
        for number in range(STRANGERS):
            shares.append(admission.enter({"path": "/console/login"}))
            shares[-1].count_as_stranger(f"10.0.0.{number}")
        last = admission.enter({"path": "/console/login"})
        with pytest.raises(Unavailable):
            last.count_as_stranger("10.1.0.0")
        shares.pop().close()
        last.count_as_stranger("10.1.0.0")
        with pytest.raises(Unavailable):
            last.reserve_body(STRANGERS_BYTES + 1)
        for share in (*shares, last):
            share.close()
        assert (admission.requests, admission.bytes, admission.strangers.requests) == (0, 0, 0)
        assert admission.strangers.bytes == 0

    asyncio.run(scenario())
