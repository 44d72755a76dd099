"""Between nodes: a replica is copied from a peer by mutual TLS, and from no one else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.applications import Starlette

from duemq.delay.api.peers import HttpPeers
from duemq.delay.api.snapshots import routes
from duemq.delay.core.limits import CycleLimits
from duemq.delay.recovery.replica_snapshot import SnapshotServer
from duemq.election.base import Member, NodeHealth, NodeState
from duemq.model.messages.message import Draft
from duemq.storage.checkpoint.checkpoint import make_checkpoint
from duemq.tls.contexts import client_context, node_context
from duemq.tls.files import TlsFiles
from duemq.web.server import ServerStop, listen_on, serve_http, url_of
from duemq.web.tls.server_tls import ServerTls
from tests.support.shard.shard_world import SHARD, START, World
from tests.support.tls.certificates import Authority


class View:
    """One peer."""

    def __init__(self, member: Member) -> None:
        self._member = member

    def members(self) -> list[Member]:
        return [self._member]

    def masters(self) -> dict[int, str]:
        return {}


@asynccontextmanager
async def serving(app: Starlette, files: TlsFiles) -> AsyncIterator[str]:
    listener, stop, ready = listen_on("127.0.0.1:0"), ServerStop(), asyncio.Event()
    url = url_of(listener, secure=True)
    tls = ServerTls(node_context(files, "required", "127.0.0.1"), files.cert, "node.cert_file")

    async def companion(url: str, stop: asyncio.Event) -> None:
        ready.set()

    async def at_once() -> None:
        return

    async def work(shut: asyncio.Event) -> None:
        await shut.wait()

    serving = asyncio.create_task(serve_http(app, listener, url, 1, stop, at_once, work, companion, tls=tls))
    try:
        await ready.wait()
        yield url
    finally:
        stop.set()
        await serving


def test_a_replica_comes_by_mutual_tls_or_not_at_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority, stranger = Authority.make(tmp_path / "own"), Authority.make(tmp_path / "other")
    server, own, foreign = authority.issue("a"), authority.issue("b"), stranger.issue("b")

    async def run() -> None:
        world = World(tmp_path, CycleLimits(max_messages=3, dead_letter_topic="dlq"), {"orders": 1, "dlq": 1})
        await world.start(1)
        (master,) = world.nodes
        try:
            await master.promote()
            await world.produce([Draft("orders", b"%d" % number, START + 10_000) for number in range(9)])
            await world.tick(master)

            async def checkpoint(shard: int, into: Path) -> None:
                await asyncio.to_thread(make_checkpoint, master.store, into)

            app = Starlette(routes=routes(SnapshotServer(tmp_path / "snapshots", checkpoint)))
            async with serving(app, server) as url:

                async def fetched(files: TlsFiles | None, address: str, into: str) -> bool:
                    member = Member("a", address, health=NodeHealth(NodeState.READY))
                    tls = None if files is None else client_context(files)
                    peers = HttpPeers(cast(Any, View(member)), "b", tls=tls)
                    try:
                        return await peers.fetch(SHARD, tmp_path / into, 0, lambda byte_count: None)
                    finally:
                        await peers.close()

                assert await fetched(own, url, "good")
                assert (tmp_path / "good").is_dir()
                for number, (files, address) in enumerate(
                    (
                        (TlsFiles(own.ca), url),
                        (TlsFiles(own.ca, foreign.cert, foreign.key), url),
                        (TlsFiles(foreign.ca, own.cert, own.key), url),
                        (None, url),
                        (own, url.replace("https", "http")),
                        (own, url.replace("127.0.0.1", "127.0.0.2")),
                    )
                ):
                    assert not await fetched(files, address, f"bad-{number}")
        finally:
            world.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert "is not reached by TLS" in caplog.text and "certificate required" in caplog.text
