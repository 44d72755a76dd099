"""The links between nodes: what proves a death, and what does not. On both event loops, whose transports differ."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from duemq.election.zookeeper import failure_detector
from duemq.election.zookeeper.failure_detector import ConnectionOutcome, FailureDetector, Peer, talk_to
from duemq.model.errors import BadConfig
from tests.support.patience import SERVERS_S

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


async def test_only_a_refused_peer_that_was_met_before_is_dead() -> None:
    dead: list[Peer] = []
    told = asyncio.Event()

    async def on_dead(peer: Peer) -> None:
        dead.append(peer)
        told.set()

    own, other, stranger = (FailureDetector(name, name, on_dead) for name in ("own", "other", "stranger"))
    port = await other.open("127.0.0.1", 0)
    met = Peer("other", f"127.0.0.1:{port}", 1, "other")
    taken_for_another = Peer("third", f"127.0.0.1:{port}", 1, "third")
    never_met = Peer("nobody", "127.0.0.1:1", 1, "nobody")
    assert await talk_to(met, stay=False) is ConnectionOutcome.ENDED
    assert await talk_to(taken_for_another, stay=False) is ConnectionOutcome.STRANGER
    assert await talk_to(never_met, stay=False) is ConnectionOutcome.REFUSED
    own.follow([met, taken_for_another, never_met])
    first = await called(other)
    first.abort()  # a connection that breaks proves nothing while the peer answers
    assert await called(other) is not first
    assert dead == []
    await other.close()
    async with asyncio.timeout(SERVERS_S):
        await told.wait()
    await own.close()
    await stranger.close()
    assert set(dead) == {met}


@pytest.mark.parametrize("host", ["192.0.2.7", "no-such-host.invalid"])
async def test_a_host_that_is_not_this_machines_is_refused(host: str) -> None:
    """It would else listen on every address, also where strangers are."""
    own = FailureDetector("own", "own", nobody)
    with pytest.raises(BadConfig, match=f"cannot listen at {host}"):
        await own.open(host, 0)
    await own.close()


async def test_what_a_peer_says_beyond_its_greeting_is_not_kept() -> None:
    said = 64 << 20

    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(FailureDetector("peer", "peer", nobody).greeting)
        for _ in range(64):
            writer.write(bytes(said // 64))
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    peer = Peer("peer", f"127.0.0.1:{server.sockets[0].getsockname()[1]}", 1, "peer")
    tracemalloc.start()
    try:
        assert await talk_to(peer) is ConnectionOutcome.ENDED
        assert tracemalloc.get_traced_memory()[1] < said // 4
    finally:
        tracemalloc.stop()
        server.close()
        await server.wait_closed()


async def test_callers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_detector, "_MAX_CALLERS", 2)
    own = FailureDetector("own", "own", nobody)
    port = await own.open("127.0.0.1", 0)
    opened = [await asyncio.open_connection("127.0.0.1", port)]
    assert await opened[0][0].readline() == own.greeting
    opened.append(await asyncio.open_connection("127.0.0.1", port))
    assert await opened[1][0].readline() == own.greeting
    too_many, writer = await asyncio.open_connection("127.0.0.1", port)
    with pytest.raises(ConnectionError):
        if await too_many.read() == b"":
            raise ConnectionResetError
    writer.close()
    assert len(own.callers) == 2
    opened[0][1].close()
    async with asyncio.timeout(SERVERS_S):
        while len(own.callers) == 2:  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.01)
    after, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await after.readline() == own.greeting
    writer.close()
    opened[1][1].close()
    await own.close()


async def nobody(peer: Peer) -> None:
    raise AssertionError(f"{peer} was called dead")


async def called(link: FailureDetector) -> asyncio.Transport:
    """Somebody who follows it and stays."""
    for _ in range(500):
        before = set(link.callers)
        await asyncio.sleep(0.02)
        if staying := before & link.callers:
            return staying.pop()
    raise AssertionError("nobody called")
