"""A damaged delay file, found wherever it is read: with a peer the shard is rebuilt and goes on, alone it stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.cluster.shards.shard_reader import Query
from duemq.delay.imports.file_copies import NoPeers
from duemq.delay.node import Node, NodeOptions
from duemq.delay.node_backend import NodeBackend
from duemq.delay.recovery.replica_snapshot import SnapshotServer, fetch
from duemq.delay.tiering.tiering_policy import TieringPolicy
from duemq.election.base import Election, NodeState
from duemq.election.single import SingleElection
from duemq.model.errors import Unavailable
from duemq.model.messages.ids import peek
from duemq.model.messages.message import CANCEL, Draft
from duemq.model.timing import WINDOW_MS
from duemq.model.topics.cluster_identity import ClusterIdentity
from duemq.proxy.gateway.base import Receipt
from duemq.proxy.gateway.gateway import CommandGateway
from duemq.storage.data_folder import Folder
from duemq.storage.delay_files.catalog import FOLDER

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("tiering_work_in_thread")]

COUNT, WAIT_S = 40, 300.0
NOW = time.time_ns() // 1_000_000
FIRST = (NOW // WINDOW_MS + 5) * WINDOW_MS
WINDOWS = (FIRST, FIRST + WINDOW_MS)
POLICY = TieringPolicy(rows=10, quiet_ms=0, rewrite_rows=5)


@dataclass
class Site:
    """A log, and the nodes beside it. `now`: the clock of all."""

    folder: Path
    shards: int = 1
    now: int = NOW
    log: MemoryLog = field(init=False)
    fetched: set[str] = field(default_factory=set)
    told_meanwhile: str | None = None  # why the node was not ready while it fetched

    def __post_init__(self) -> None:
        self.log = MemoryLog(lambda: self.now)

    @asynccontextmanager
    async def node(self, name: str, election: Election, peer: Node | None = None) -> AsyncIterator[Node]:
        self.registry = CollectorRegistry()  # of the latest node
        path = self.folder / name
        folder = Folder.open(path, self.shards, ClusterIdentity("site", self.shards, b"s" * 32))

        async def open_bus() -> MemoryBus:
            return MemoryBus(self.log)

        node = Node(
            folder, open_bus, election,
            NodeOptions(delay_files=POLICY, alone=peer is None and isinstance(election, SingleElection), trims=False),
            self.registry, lambda: self.now, None if peer is None else Copies(self, peer, lambda: node),
        )  # fmt: skip
        stop = asyncio.Event()
        running = asyncio.create_task(node.run(stop))
        await asyncio.wait([running, asyncio.create_task(node.ready.wait())], return_when=asyncio.FIRST_COMPLETED)
        try:
            yield node
        finally:
            stop.set()
            await running
            folder.close()


class Standby(SingleElection):
    """A node that is never given anything."""

    async def join(self) -> None:
        pass


class Copies(NoPeers):
    """See `Peers`: one that is in the same process."""

    def __init__(self, site: Site, peer: Node, owner: Callable[[], Node]) -> None:
        self._site, self._peer, self._owner = site, peer, owner
        self._server = SnapshotServer(site.folder / "snapshots", peer.checkpoint)

    def can_copy(self, shard: int) -> bool:
        return self._peer.why_not_ready is None

    async def fetch(self, shard: int, path: Path, least: int, room: Callable[[int], None]) -> bool:
        site, server = self._site, self._server
        site.told_meanwhile = self._owner().why_not_ready

        class Counted(SnapshotServer):
            async def read(self, snapshot: str, file: str, offset: int, count: int) -> bytes:
                site.fetched.add(file)
                return await server.read(snapshot, file, offset, count)

        source = Counted(site.folder / "unused", self._peer.checkpoint)
        source.begin, source.end = server.begin, server.end  # type: ignore[method-assign]
        try:
            await fetch(source, shard, path, lambda done, total: None, least=least, room=room)
        except Unavailable:
            return False
        return True


async def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.01)


def files_of(node: Node, shard: int = 0) -> list[Path]:
    return sorted((node.folder.info.path / "shards" / f"{shard:03d}" / FOLDER).rglob("*.parquet"))


async def filled(site: Site, *nodes: Node) -> list[str]:
    """Ids of the messages of two windows, which are sealed on all nodes, of all shards."""
    gateway = CommandGateway(NodeBackend(nodes[0]))
    drafts = [
        Draft("t", b"%d in %d" % (n, window), window + n, key=b"%d" % n) for window in WINDOWS for n in range(COUNT)
    ]
    sent = await gateway.send(drafts)
    for node in nodes:
        for shard in range(site.shards):
            await until(lambda node=node, shard=shard: len(files_of(node, shard)) == 2, "both windows are sealed")  # type: ignore[misc]
            store = node.shards[shard].store
            await until(lambda store=store: len(store.delay_files.names()) == 2, "the table")  # type: ignore[misc]
    return [receipt.id for receipt in sent if isinstance(receipt, Receipt)]


def damage(file: Path, how: str) -> None:
    content = bytearray(file.read_bytes())
    if how == "missing":
        file.unlink()
        return
    if how == "a bit":
        column = pq.ParquetFile(file).metadata.row_group(0).column(6)
        content[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    else:
        content = content[:-100]
    file.unlink()
    file.write_bytes(content)


Find = Callable[[Site, CommandGateway, list[str]], Awaitable[object]]


async def at_load(site: Site, gateway: CommandGateway, ids: list[str]) -> None:
    site.now = FIRST - 60_000


async def at_look_up(site: Site, gateway: CommandGateway, ids: list[str]) -> None:
    with pytest.raises(Unavailable, match="delay file"):
        for id_ in ids[:COUNT]:
            await gateway.state(id_)


async def at_list(site: Site, gateway: CommandGateway, ids: list[str]) -> None:
    with pytest.raises(Unavailable, match="delay file"):
        await gateway.find(Query(limit=1_000))


async def at_cancel(site: Site, gateway: CommandGateway, ids: list[str]) -> None:
    with suppress(Unavailable):  # it is in the log, and will be decided; or the shard was stopped before
        await CommandGateway(gateway._backend, answer_s=0.01).change(CANCEL, ids[:1])


FOUND = [at_load, at_look_up, at_list, at_cancel]
HOW = ["a bit", "cut off", "missing"]
# Each find and each damage once; the other pairs take minutes.
QUICK = {(at_load, "missing"), (at_look_up, "a bit"), (at_list, "cut off"), (at_cancel, "a bit")}


@pytest.mark.parametrize(
    ("find", "how"),
    [
        pytest.param(find, how, marks=() if (find, how) in QUICK else pytest.mark.slow)
        for find, how in product(FOUND, HOW)
    ],
)
async def test_with_a_peer_the_shard_is_rebuilt_and_goes_on(tmp_path: Path, find: Find, how: str) -> None:
    site = Site(tmp_path)
    async with (
        site.node("b", Standby(1)) as peer,
        site.node("a", SingleElection(1), peer) as node,
    ):
        ids = await filled(site, node, peer)
        gateway = CommandGateway(NodeBackend(node))
        before = node.shards[0].store
        damage(files_of(node)[0], how)
        await find(site, gateway, ids)
        await until(lambda: node.shards[0].store is not before and node.shards[0].leading, "it is rebuilt")
        assert node.why_not_ready is None
        assert "000001.parquet" in str(site.told_meanwhile), "another node was to be master meanwhile"
        if find is not at_load:  # the peer has loaded it, too
            delay_files = {name for name in site.fetched if name.startswith(FOLDER)}
            assert delay_files == {f"{FOLDER}/{FIRST}/000001.parquet"}, "what is here and whole is not fetched"
        cancelled = 1 if find is at_cancel else 0
        await until(lambda: node.shards[0].replica.entry.pending == 2 * COUNT - cancelled, "the cancel")
        page = await gateway.find(Query(limit=1_000))
        assert [state.id for state in page.messages] == ids[cancelled:]
        site.now = FIRST + WINDOW_MS - 700_000
        await until(lambda: node.shards[0].replica.entry.outcomes.delivered == COUNT - cancelled, "delivery")


async def test_damage_found_at_rewriting_is_mended_by_a_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path)
    async with (
        site.node("b", Standby(1)) as peer,
        site.node("a", SingleElection(1), peer) as node,
    ):
        ids = await filled(site, node, peer)
        gateway, (file, _) = CommandGateway(NodeBackend(node)), files_of(node)
        # Its other half is read by nothing but the rewriting.
        keep = file.read_bytes()
        async with node.tiering_turn:
            before = node.shards[0].store
            assert len(await gateway.change(CANCEL, ids[: COUNT // 2 + 1])) == COUNT // 2 + 1
            damage(file, "a bit")
            assert file.read_bytes() != keep
        await until(lambda: node.shards[0].store is not before and node.shards[0].leading, "it is rebuilt")
        # By this node, or by the peer before its replica was copied.
        await until(lambda: not node.shards[0].store.delay_files.drop_counts().get(WINDOWS[0]), "it is rewritten")
        page = await gateway.find(Query(limit=1_000))
        assert [state.id for state in page.messages] == ids[COUNT // 2 + 1 :]


async def test_a_peer_with_the_same_damage_does_not_help_for_ever(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with (
        site.node("b", Standby(1)) as peer,
        site.node("a", SingleElection(1), peer) as node,
    ):
        ids = await filled(site, node, peer)
        gateway = CommandGateway(NodeBackend(node))
        for one in (node, peer):
            damage(files_of(one)[0], "cut off")
        await at_look_up(site, gateway, ids)
        await until(lambda: len(site.fetched) and node.shards[0].leading, "it is rebuilt")
        await at_look_up(site, gateway, ids)
        await until(lambda: node.why_not_ready is not None, "it takes itself out")
        assert "000001.parquet" in str(node.why_not_ready)


@pytest.mark.parametrize(
    "find", [at_load, at_cancel, *(pytest.param(find, marks=pytest.mark.slow) for find in (at_look_up, at_list))]
)
async def test_alone_the_shard_stops_and_the_others_go_on(tmp_path: Path, find: Find) -> None:
    site = Site(tmp_path, shards=2)
    election = SingleElection(2)
    async with site.node("a", election) as node:
        ids = await filled(site, node)
        backend = NodeBackend(node)
        gateway = CommandGateway(backend)
        mine = [id_ for id_ in ids[:COUNT] if peek(id_).shard == 0]
        damage(files_of(node, 0)[0], "a bit")
        await find(site, gateway, mine)
        await until(lambda: node.why_not_ready is not None, "it is not ready")
        assert f"{FOLDER}/{FIRST}/000001.parquet" in str(backend.why_not_ready())
        assert backend.why_closed() is None, "requests are served"
        await until(lambda: election.members()[0].health.reason == node.why_not_ready, "the others are told")
        assert election.members()[0].health.state is NodeState.OUT
        seen = generate_latest(site.registry).decode()
        assert 'duemq_shard_stopped{shard="0"} 1.0' in seen and 'duemq_shard_stopped{shard="1"} 0.0' in seen
        site.now = FIRST + WINDOW_MS - 700_000
        await until(lambda: node.shards[1].replica.entry.outcomes.delivered == COUNT - len(mine), "the other delivers")
        assert node.shards[0].replica.entry.outcomes.delivered == 0


async def test_alone_a_node_starts_with_a_shard_that_has_to_stop(tmp_path: Path) -> None:
    site = Site(tmp_path, shards=2)
    async with site.node("a", SingleElection(2)) as node:
        await filled(site, node)
        damage(files_of(node, 1)[1], "missing")
    site.now = FIRST + 2 * WINDOW_MS
    async with site.node("a", SingleElection(2)) as node:
        await until(lambda: "000001.parquet" in str(node.why_not_ready), "its shard stops")
        await until(lambda: node.shards[0].replica.entry.pending == 0, "the other delivers all")
        assert node.shards[1].replica.entry.outcomes.delivered < COUNT, "nothing of the damaged window"
