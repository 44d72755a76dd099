"""Checks before a copy replaces a replica: how far it is, the room for it, and its counts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rocksdict import AccessType, Options, Rdict

from duemq.delay.recovery import replica_snapshot
from duemq.delay.recovery.replica_snapshot import fetch
from duemq.model.errors import CorruptStore, DiskFull, Unavailable
from duemq.storage.checkpoint import checkpoint
from duemq.storage.checkpoint.checkpoint import CheckpointManifest
from duemq.storage.checkpoint.replica_swap import PartialFile
from duemq.storage.keyspace import POSITION, LedgerPosition
from tests.support.patience import SERVERS_S
from tests.support.shard.snapshot_world import SHARD, Peer, Wire, contents


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    peer = Peer(tmp_path / "peer")
    for _ in range(3):
        peer.grow()  # to entry 2, at offset 2 of its ledger
    yield peer
    peer.store.close()


@pytest.fixture
def into(tmp_path: Path) -> Path:
    """The folder of an older replica."""
    own = Peer(tmp_path / "own", seed=2)
    own.grow()
    own.store.close()
    return own.store.path


class OldWire(Wire):
    """To a node that does not know of `least`, and sends all checksums."""

    async def begin(self, shard: int, held: str | None = None, least: int = 0) -> CheckpointManifest:
        return await super().begin(shard, held)


@pytest.mark.parametrize("wire", [Wire, OldWire])
def test_a_snapshot_that_would_not_help_is_not_taken(peer: Peer, into: Path, wire: type[Wire]) -> None:
    before, link = contents(into), wire(peer)
    with pytest.raises(Unavailable, match="at ledger entry 2 would not help"):
        asyncio.run(fetch(link, SHARD, into, lambda done, total: None, least=3))
    assert contents(into) == before and not link.sent
    assert [path.name for path in into.parent.iterdir()] == ["003"]
    assert not list((peer.folder / "snapshots").iterdir()), "and the peer keeps none"
    asyncio.run(fetch(link, SHARD, into, lambda done, total: None, least=2))
    assert contents(into)[0] == 2


def test_a_snapshot_that_the_ledger_has_left_behind_meanwhile_is_made_again(peer: Peer, into: Path) -> None:
    wire = Wire(peer)
    wire.breaks_after = 3
    with pytest.raises(Unavailable, match="the wire broke"):
        asyncio.run(fetch(wire, SHARD, into, lambda done, total: None, least=1))
    assert wire.manifest is not None
    first, wire.breaks_after = wire.manifest.id, None
    peer.grow()
    asyncio.run(fetch(wire, SHARD, into, lambda done, total: None, least=3))
    assert wire.manifest.id != first and contents(into)[0] == 3
    assert not list((peer.folder / "snapshots").iterdir())


def test_the_room_is_known_before_the_first_byte(peer: Peer, into: Path) -> None:
    before, wire, asked = contents(into), Wire(peer, sums=False), []

    def room(byte_count: int) -> None:
        asked.append(byte_count)
        raise DiskFull("a copy takes more than there is")

    with pytest.raises(DiskFull, match="more than there is"):
        asyncio.run(fetch(wire, SHARD, into, lambda done, total: None, room=room))
    assert wire.manifest is not None and asked == [wire.manifest.total_bytes] and not wire.sent
    assert contents(into) == before
    assert [path.name for path in into.parent.iterdir()] == ["003"]


@pytest.mark.parametrize("how", ["said before a file", "met by a write"])
def test_a_disk_that_fills_up_in_the_middle_of_a_copy_gets_its_room_back(
    peer: Peer, into: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, wire, asked = contents(into), Wire(peer), 0

    def room(byte_count: int) -> None:
        nonlocal asked
        asked += 1
        if how == "said before a file" and asked > 3:
            raise DiskFull("others wrote")

    def full(self: PartialFile, part: bytes) -> None:
        raise DiskFull("the disk is full")

    if how == "met by a write":
        monkeypatch.setattr(PartialFile, "add", full)
    with pytest.raises(DiskFull):
        asyncio.run(fetch(wire, SHARD, into, lambda done, total: None, room=room))
    assert wire.sent and contents(into) == before
    assert [path.name for path in into.parent.iterdir()] == ["003"], "nothing is left behind"


def read_anything(path: Path) -> LedgerPosition:
    """As an older version reads a position: its windows may count other messages."""
    database: Any = Rdict(str(path), Options(raw_mode=True), access_type=AccessType.read_only())
    try:
        return LedgerPosition.decode(database.get(POSITION))
    finally:
        database.close()


def test_a_replica_whose_windows_do_not_fit_its_entry_is_neither_offered_nor_taken(
    peer: Peer, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, wire = contents(into), Wire(peer)
    position = peer.store.position
    peer.store.write([], [], position, {1_800_000: 5})  # its entry says that nothing is pending
    with pytest.raises(CorruptStore, match="count 5 pending messages, its ledger entry 2 says 0"):
        asyncio.run(fetch(wire, SHARD, into, lambda done, total: None))
    assert not list((peer.folder / "snapshots").iterdir())
    monkeypatch.setattr(checkpoint, "read_position", read_anything)  # of the peer alone
    with pytest.raises(CorruptStore, match="count 5 pending messages"):
        asyncio.run(fetch(wire, SHARD, into, lambda done, total: None))
    assert wire.sent and contents(into) == before
    assert [path.name for path in into.parent.iterdir()] == ["003"]


def test_a_copy_begins_before_its_bytes_are_hashed(peer: Peer, into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []

    def note(path: Path) -> str:
        hashed.append(path.name)
        return plain(path)

    plain = checkpoint.sha256_of
    monkeypatch.setattr(checkpoint, "sha256_of", note)
    monkeypatch.setattr(replica_snapshot, "sha256_of", note)

    async def run() -> None:
        wire = Wire(peer, sums=False)
        manifest = await wire.begin(SHARD)
        assert not hashed and {file.sha256 for file in manifest.files} == {""}
        with pytest.raises(CorruptStore, match="not the checksum"):
            checkpoint.with_sum(manifest.files[0], "../../elsewhere")
        await fetch(wire, SHARD, into, lambda done, total: None)
        assert sorted(hashed) == sorted(Path(file.name).name for file in manifest.files), "each once"

    asyncio.run(run())
    assert contents(into)[0] == 2


def test_a_snapshot_is_kept_while_a_file_of_it_is_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(tmp_path)
    peer.grow()
    begun, go_on = threading.Event(), threading.Event()

    def slow(path: Path) -> str:
        peer.now += 1_000
        begun.set()
        assert go_on.wait(SERVERS_S)
        return checkpoint.sha256_of(path)

    async def run() -> None:
        monkeypatch.setattr(replica_snapshot, "sha256_of", slow)
        manifest = await peer.server.begin(SHARD, sums=False)
        name = next(file.name for file in manifest.files if file.size)
        summing = asyncio.create_task(peer.server.sha256(manifest.id, name))
        assert await asyncio.to_thread(begun.wait, 300)
        await peer.server.expire()
        go_on.set()
        assert len(await summing) == 64
        await peer.server.expire()
        assert await peer.server.read(manifest.id, name, 0, 1), "it was in use"

    asyncio.run(run())
    peer.store.close()
