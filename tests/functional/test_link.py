"""The links between nodes: what proves a death, and what does not. On both event loops, whose transports differ."""

from __future__ import annotations

import asyncio

import pytest

from duemq.election.link import Link, Peer, Talk, talk_to

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

    own, other, stranger = (Link(name, name, on_dead) for name in ("own", "other", "stranger"))
    port = await other.open("127.0.0.1", 0)
    met = Peer("other", f"127.0.0.1:{port}", 1, "other")
    taken_for_another = Peer("third", f"127.0.0.1:{port}", 1, "third")
    never_met = Peer("nobody", "127.0.0.1:1", 1, "nobody")
    assert await talk_to(met, stay=False) is Talk.ENDED
    assert await talk_to(taken_for_another, stay=False) is Talk.STRANGER
    assert await talk_to(never_met, stay=False) is Talk.REFUSED
    own.follow([met, taken_for_another, never_met])
    first = await called(other)
    first.abort()  # a connection that breaks proves nothing while the peer answers
    assert await called(other) is not first
    assert dead == []
    await other.close()
    async with asyncio.timeout(300):
        await told.wait()
    await own.close()
    await stranger.close()
    assert set(dead) == {met}


async def called(link: Link) -> asyncio.Transport:
    """Somebody who follows it and stays."""
    for _ in range(500):
        before = set(link.callers)
        await asyncio.sleep(0.02)
        if staying := before & link.callers:
            return staying.pop()
    raise AssertionError("nobody called")
