"""Imported files from one node to another, by the real routes and the real client, over HTTP on the loopback."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from prometheus_client import CollectorRegistry

from duemq.cluster.shards.codec import TOKEN_HEADER
from duemq.delay.api.imported_files import routes
from duemq.delay.api.internal_http import create_internal_app
from duemq.delay.api.peers import HttpPeers
from duemq.delay.imports.file_copies import PART_BYTES, FileCopy, fetch_copy
from duemq.delay.node_backend import NodeBackend
from duemq.delay.reads.local_reader import ShardHolder
from duemq.election.base import Member, NodeHealth, NodeState
from duemq.model.errors import Unavailable
from tests.support.http.http_site import served

pytestmark = pytest.mark.anyio

TOKEN = "secret"
CONTENT = os.urandom(2 * PART_BYTES + 12_345)
COPY = FileCopy(7, 99, len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
OFFSET = 5  # of the import command in the buffer
READY = NodeHealth(NodeState.READY)


@dataclass
class View:
    """See `ClusterView`."""

    nodes: list[Member]

    def members(self) -> Sequence[Member]:
        return self.nodes

    def masters(self) -> Mapping[int, str]:
        return {}


@dataclass
class FakeShard:
    """The files of import commands that a shard took in, by offset."""

    files: dict[int, tuple[Path, FileCopy]] = field(default_factory=dict)
    rebuilding: bool = False

    def copy(self, offset: int) -> tuple[Path, FileCopy] | None:
        return self.files.get(offset)


def node_of(shard: FakeShard) -> AbstractAsyncContextManager[str]:
    """The URL of a node with this one shard."""
    backend = SimpleNamespace(reader=None, why_not_ready=lambda: None)
    holder = cast(ShardHolder, SimpleNamespace(shards={0: shard}))
    return served(create_internal_app(cast(NodeBackend, backend), CollectorRegistry(), TOKEN, routes(holder)))


@asynccontextmanager
async def peers_of(*nodes: Member, token: str = TOKEN) -> AsyncIterator[HttpPeers]:
    """As the node `me` sees them."""
    peers = HttpPeers(View([Member("me", "http://127.0.0.1:1", health=READY), *nodes]), "me", token)
    yield peers
    await peers.close()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def shard(tmp_path: Path) -> FakeShard:
    path = tmp_path / "theirs.parquet"
    path.write_bytes(CONTENT)
    return FakeShard({OFFSET: (path, COPY)})


async def test_a_file_comes_in_parts_and_is_named_when_it_is_whole(shard: FakeShard, tmp_path: Path) -> None:
    target = tmp_path / "mine.parquet"
    async with node_of(shard) as url, peers_of(Member("a", url, health=READY)) as peers:
        assert await peers.copies(0, [4, OFFSET]) == {"a": {OFFSET: COPY}}
        await fetch_copy(peers, 0, "a", OFFSET, COPY, target)
    assert target.read_bytes() == CONTENT
    assert names(tmp_path) == ["mine.parquet", "theirs.parquet"]


async def test_a_copy_that_breaks_off_goes_on_where_it_was(shard: FakeShard, tmp_path: Path) -> None:
    target = tmp_path / "mine.parquet"
    asked: list[int] = []

    class Breaking(HttpPeers):
        async def read_copy(self, shard: int, node: str, offset: int, at: int, count: int) -> bytes:
            asked.append(at)
            if asked == [0, PART_BYTES]:
                raise Unavailable("the node went away")
            return await super().read_copy(shard, node, offset, at, count)

    async with node_of(shard) as url:
        peers = Breaking(View([Member("a", url, health=READY)]), "me", TOKEN)
        with pytest.raises(Unavailable, match="went away"):
            await fetch_copy(peers, 0, "a", OFFSET, COPY, target)
        assert not target.exists()
        await fetch_copy(peers, 0, "a", OFFSET, COPY, target)
        await peers.close()
    assert asked == [0, PART_BYTES, PART_BYTES, 2 * PART_BYTES]
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("damage", ["another byte", "cut off", "gone"])
async def test_what_is_not_the_file_is_never_named(shard: FakeShard, tmp_path: Path, damage: str) -> None:
    target, (source, _) = tmp_path / "mine.parquet", shard.files[OFFSET]
    if damage == "another byte":
        source.write_bytes(CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]))
    elif damage == "cut off":
        source.write_bytes(CONTENT[:PART_BYTES])
    else:
        source.unlink()
    async with node_of(shard) as url, peers_of(Member("a", url, health=READY)) as peers:
        with pytest.raises(Unavailable):
            await fetch_copy(peers, 0, "a", OFFSET, COPY, target)
        assert not target.exists()
        source.write_bytes(CONTENT)  # mended there
        await fetch_copy(peers, 0, "a", OFFSET, COPY, target)
    assert target.read_bytes() == CONTENT


async def test_only_nodes_that_answer_count(shard: FakeShard) -> None:
    """Neither this node itself, nor one that is out, is being rebuilt, has other shards, or is not there at all."""
    rebuilt = FakeShard(shard.files, rebuilding=True)
    async with node_of(shard) as url, node_of(rebuilt) as elsewhere:
        good = Member("a", url, health=READY)
        others = [
            replace(good, name="out", health=NodeHealth(NodeState.OUT)),
            replace(good, name="rebuilt", url=elsewhere),
            replace(good, name="else", holds=frozenset({1})),
            replace(good, name="dead", url="http://127.0.0.1:1"),
        ]
        async with peers_of(good, *others) as peers:
            assert await peers.copies(0, [OFFSET]) == {"a": {OFFSET: COPY}}
            for name in ("out", "else", "dead", "nobody", "me"):
                with pytest.raises(Unavailable):
                    await peers.read_copy(0, name, OFFSET, 0, 10)
        async with peers_of(good, token="wrong") as strangers:
            assert await strangers.copies(0, [OFFSET]) == {}
            with pytest.raises(Unavailable, match="401"):
                await strangers.read_copy(0, "a", OFFSET, 0, 10)


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("0/copies", {}, 400), ("0/copies?offsets=x", {}, 400), ("0/copies?offsets=-1", {}, 400),
        ("0/copies?offsets=" + ",".join(["1"] * 2_001), {}, 400), ("7/copies?offsets=1", {}, 503),
        ("0/copies/5", {}, 400), ("0/copies/5", {"Range": "bytes=x"}, 400), ("0/copies/4", {"Range": "bytes=0-9"}, 404),
        ("0/copies/5", {"Range": f"bytes={len(CONTENT)}-{len(CONTENT) + 9}"}, 416),
        ("0/copies/5", {"Range": "bytes=0-9"}, 206),
    ],
)  # fmt: skip
async def test_wrong_requests_get_an_answer(shard: FakeShard, path: str, headers: dict[str, str], status: int) -> None:
    async with node_of(shard) as url, httpx.AsyncClient() as http:
        answer = await http.get(f"{url}/internal/shards/{path}", headers={TOKEN_HEADER: TOKEN, **headers}, timeout=60)
    assert answer.status_code == status, answer.text
    if status == 206:
        assert answer.content == CONTENT[:10]
        assert answer.headers["Content-Range"] == "bytes 0-9/*"
    elif status != 416:
        said: dict[str, Any] = answer.json()
        assert said["detail"] and "Traceback" not in answer.text


@pytest.mark.parametrize(
    "body",
    [
        b"no JSON", b"[]", b"{}", b'{"copies": []}', b'{"copies": {"x": {}}}', b'{"copies": {"5": {"rows": 1}}}',
        b'{"copies": {"5": {"rows": "1", "checksum": 1, "size": 2, "sha256": "x"}}}',
    ],
)  # fmt: skip
async def test_a_node_that_answers_nonsense_has_no_copies(body: bytes) -> None:
    async def nonsense(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async with peers_of(Member("a", "http://node", health=READY)) as peers:
        await peers.http.aclose()
        peers.http = httpx.AsyncClient(transport=httpx.ASGITransport(app=nonsense))
        assert await peers.copies(0, [OFFSET]) == {}
