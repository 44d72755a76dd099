"""A replica that stayed behind the logs, rebuilt from a peer over HTTP on the loopback."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from duemq.cluster.topics.internal_topics import BUFFER, LEDGER
from duemq.delay.api import snapshots
from duemq.delay.api.snapshots import PATH, HttpSnapshotSource, routes
from duemq.delay.core.limits import CycleLimits
from duemq.delay.recovery.replica_snapshot import SnapshotGone, SnapshotServer, fetch
from duemq.model.errors import Behind, Unavailable
from duemq.model.messages.key import make_key
from duemq.model.messages.message import CANCEL, Change, Draft
from duemq.storage.checkpoint.checkpoint import make_checkpoint
from tests.support.http.http_site import served
from tests.support.shard.shard_world import SHARD, START, SimNode, World
from tests.support.shard.snapshot_world import Peer, contents


def serving(server: SnapshotServer) -> AbstractAsyncContextManager[str]:
    return served(Starlette(routes=routes(server)))


def server_of(node: SimNode, folder: Path) -> SnapshotServer:
    async def checkpoint(shard: int, into: Path) -> None:
        await asyncio.to_thread(make_checkpoint, node.store, into)

    return SnapshotServer(folder / "snapshots", checkpoint)


def test_a_replica_that_the_logs_no_longer_reach_is_rebuilt_and_follows(tmp_path: Path) -> None:
    async def run() -> None:
        world = World(tmp_path, CycleLimits(max_messages=3, dead_letter_topic="dlq"), {"orders": 1, "dlq": 1})
        await world.start(2)
        master, standby = world.nodes
        try:
            await master.promote()
            await world.produce([Draft("orders", b"%d" % number, START + number) for number in range(1, 40)])
            await world.produce([Change(CANCEL, make_key(START + 5, 4, 0), 0)])
            world.now += 20
            while await world.tick(master) == 0:
                pass
            position = master.store.position
            await world.producer.trim(BUFFER, SHARD, position.entry.applied)
            await world.producer.trim(LEDGER, SHARD, position.ledger_offset)
            await world.produce([Draft("orders", b"later", START + 30)])
            await world.tick(master)
            with pytest.raises(Behind):
                await standby.follow()
            standby.store.close()
            async with serving(server_of(master, tmp_path)) as url:
                source = HttpSnapshotSource(url)
                manifest = await fetch(source, SHARD, standby.path, lambda done, total: None)
                await source.close()
            assert manifest.entry == master.replica.entry.number
            world.now += 11
            while await world.tick(master) == 0:
                pass
            standby.open()
            assert standby.replica.entry.number == manifest.entry < master.replica.entry.number
            await standby.follow()
            assert standby.replica.entry == master.replica.entry
            assert standby.contents() == master.contents()
            world.check(standby)
            await standby.promote()
            world.now += 100
            while await world.tick(standby) == 0:
                pass
            world.check(standby)
        finally:
            world.close()

    asyncio.run(run())


def test_nothing_but_files_of_a_snapshot_is_served(tmp_path: Path) -> None:
    peer = Peer(tmp_path)
    peer.grow()
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "id.key").write_bytes(b"secret")

    async def run() -> None:
        transport = httpx.ASGITransport(Starlette(routes=routes(peer.server)))
        source = HttpSnapshotSource("http://peer", transport=transport)
        manifest = await source.begin(3)
        for snapshot in (manifest.id, "..", ".", "%2e%2e", "none"):
            for file in ("../id.key", "..%2Fid.key", "../../id.key", "id.key", "%2e%2e", "\0", "/id.key"):
                with pytest.raises(SnapshotGone):
                    await peer.server.read(snapshot, file, 0, 9)
                with pytest.raises(Unavailable):
                    await source.read(snapshot, file, 0, 9)
        held = next(held for held in manifest.files if held.size)
        async with httpx.AsyncClient(transport=transport, base_url="http://peer") as http:
            path = f"{PATH}/{manifest.id}/{held.name}"
            for span in (None, "bytes=5-4", "bytes=-5", "bytes=0-", "bytes=0-1,3-4", "lines=0-1"):
                refused = await http.get(path, headers={"Range": span} if span else {})
                assert refused.status_code == 400, span
            span = f"bytes={held.size - 1}-{held.size + 9}"
            last = await http.get(path, headers={"Range": span})
            assert (last.status_code, len(last.content)) == (206, 1)
            assert last.headers["Content-Range"] == f"bytes {held.size - 1}-{held.size - 1}/*"
            after = await http.get(path, headers={"Range": f"bytes={held.size}-{held.size}"})
            assert after.status_code == 416
            busy = await http.post(f"{PATH}/4")
            assert (busy.status_code, busy.json()["code"], busy.headers["Retry-After"]) == (503, "unavailable", "1")
        await source.end(manifest.id)
        with pytest.raises(SnapshotGone):
            await source.read(manifest.id, held.name, 0, 1)
        await source.close()

    asyncio.run(run())
    peer.store.close()


def test_a_lost_connection_costs_one_part_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "_AGAIN_S", (0, 0))
    lost = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal lost
        if lost < 2:
            lost += 1
            raise httpx.ReadError("reset")
        return httpx.Response(206, content=b"part")

    async def run() -> None:
        nonlocal lost
        source = HttpSnapshotSource("http://peer", transport=httpx.MockTransport(answer))
        assert await source.read("s", "f", 0, 4) == b"part"
        lost = -1
        with pytest.raises(Unavailable, match="reset"):
            await source.read("s", "f", 0, 4)
        await source.close()

    asyncio.run(run())


def test_a_peer_that_is_gone_or_is_none_is_unavailable(tmp_path: Path) -> None:
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        gone = HttpSnapshotSource(f"http://127.0.0.1:{port}")
        with pytest.raises(Unavailable, match=f"{port}{PATH}/3"):
            await fetch(gone, 3, tmp_path / "003", lambda done, total: None)
        await gone.close()
        page = httpx.MockTransport(lambda request: httpx.Response(200, text="<html>"))
        stranger = HttpSnapshotSource("http://elsewhere", transport=page)
        with pytest.raises(Unavailable, match="not the manifest"):
            await stranger.begin(3)
        await stranger.close()

    asyncio.run(run())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("old_side", ["none", "the one that serves"])
def test_nodes_of_two_versions_copy_each_other(tmp_path: Path, old_side: str) -> None:
    """An older one knows neither `least` nor `sums`, and wants every checksum in the manifest."""
    peer = Peer(tmp_path)
    peer.grow()
    app = Starlette(routes=routes(peer.server))
    asked: list[httpx.URL] = []

    class Transport(httpx.ASGITransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            asked.append(request.url)
            if old_side != "none":
                query = request.url.params
                request.url = request.url.copy_with(params={"held": query["held"]} if "held" in query else {})
            return await super().handle_async_request(request)

    async def run() -> None:
        source = HttpSnapshotSource("http://peer", transport=Transport(app))
        manifest = await source.begin(3, None, 0)
        assert {len(file.sha256) for file in manifest.files} == {0 if old_side == "none" else 64}
        await source.end(manifest.id)
        manifest = await fetch(source, 3, tmp_path / "copy", lambda done, total: None, least=0)
        assert any("sum" in url.params for url in asked) == (old_side == "none")
        if old_side != "none":
            with pytest.raises(Unavailable, match="would not help"):
                await fetch(source, 3, tmp_path / "copy", lambda done, total: None, least=manifest.ledger_offset + 1)
        await source.close()

    asyncio.run(run())
    assert contents(tmp_path / "copy")[0] == 0
    peer.store.close()


def test_an_offset_that_is_none_or_was_not_reached_is_refused(tmp_path: Path) -> None:
    peer = Peer(tmp_path)
    peer.grow()

    async def run() -> None:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(Starlette(routes=routes(peer.server))), base_url="http://peer"
        ) as http:
            for least in ("-1", "x", "1e3", ""):
                refused = await http.post(f"{PATH}/3", params={"least": least})
                assert (refused.status_code, refused.json()["field"]) == (400, "least")
            early = await http.post(f"{PATH}/3", params={"least": "9"})
            assert (early.status_code, early.json()["code"]) == (503, "unavailable")

    asyncio.run(run())
    peer.store.close()
