"""A replica fetched from a peer, on real disks: resumed, verified, and put in place wholly or not at all."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from duemq.delay.recovery import replica_snapshot
from duemq.delay.recovery.replica_snapshot import SnapshotGone, fetch
from duemq.model.errors import CorruptStore, Unavailable
from duemq.storage.checkpoint.checkpoint import CheckpointManifest
from duemq.storage.checkpoint.replica_swap import PartialReplica, finish_replacement, finish_replacements
from duemq.storage.manifest import ListedFile
from tests.support.patience import SERVERS_S
from tests.support.shard.snapshot_world import SHARD, Peer, Wire, contents

PART = 4096


class Crash(BaseException):
    """The process ends here: nothing that handles errors sees it."""


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_snapshot, "PART_BYTES", PART)


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    peer = Peer(tmp_path / "peer")
    for _ in range(3):
        peer.grow()
    yield peer
    peer.store.close()


@pytest.fixture
def into(tmp_path: Path) -> Path:
    """The folder of an older replica."""
    old = Peer(tmp_path / "own", seed=2)
    old.grow()
    old.store.close()
    return old.store.path


def run_fetch(wire: Wire, into: Path) -> list[tuple[int, int]]:
    """Returns the progress that was reported."""
    reported: list[tuple[int, int]] = []
    asyncio.run(fetch(wire, SHARD, into, lambda done, total: reported.append((done, total))))
    return reported


def rows_of(peer: Peer) -> tuple[int, list[tuple[bytes, bytes]]]:
    return peer.store.position.entry.number, list(peer.store.each(b"p"))


def test_a_fetched_replica_replaces_the_old_one_and_leaves_nothing_behind(peer: Peer, into: Path) -> None:
    wire = Wire(peer)
    reported = run_fetch(wire, into)
    assert contents(into) == rows_of(peer)
    assert [path.name for path in into.parent.iterdir()] == ["003"]
    assert not list((peer.folder / "snapshots").iterdir())
    assert wire.manifest is not None and reported == sorted(reported)
    assert reported[-1] == (wire.manifest.total_bytes, wire.manifest.total_bytes)


def test_a_fetch_for_an_empty_folder_makes_it(peer: Peer, tmp_path: Path) -> None:
    run_fetch(Wire(peer), tmp_path / "new" / "shards" / "003")
    assert contents(tmp_path / "new" / "shards" / "003") == rows_of(peer)


@pytest.mark.parametrize("sums", [True, False])
def test_an_interrupted_fetch_goes_on_where_it_was(peer: Peer, into: Path, sums: bool) -> None:
    wire, before = Wire(peer, sums=sums), contents(into)
    for _ in range(50):
        wire.breaks_after = 2
        try:
            run_fetch(wire, into)
            break
        except Unavailable:
            assert contents(into) == before
    assert wire.manifest is not None and len(wire.sent) > 3
    assert wire.sent == {file.name: file.size for file in wire.manifest.files if file.size}, "nothing twice"
    assert contents(into) == rows_of(peer)


@pytest.mark.parametrize("sums", [True, False])
def test_a_later_snapshot_of_the_same_peer_needs_only_what_is_new(peer: Peer, into: Path, sums: bool) -> None:
    wire = Wire(peer, sums=sums)
    wire.breaks_after = 12  # in the third of the rows' files
    with pytest.raises(Unavailable):
        run_fetch(wire, into)
    there, first, before = wire.sent, wire.manifest, asyncio.run(wire.files())
    peer.now += 61
    peer.grow()
    wire.sent, wire.breaks_after, wire.keeps = {}, None, True
    run_fetch(wire, into)
    assert contents(into) == rows_of(peer)
    assert first is not None and wire.manifest is not None and wire.manifest.id != first.id
    files = asyncio.run(wire.files())
    shared = before & files
    assert len([file for file in shared if there.get(file.name)]) >= 3
    for file in files:
        assert wire.sent.get(file.name, 0) == file.size - (there.get(file.name, 0) if file in shared else 0)


def test_another_peer_may_take_over(peer: Peer, into: Path, tmp_path: Path) -> None:
    wire = Wire(peer)
    wire.breaks_after = 9
    with pytest.raises(Unavailable):
        run_fetch(wire, into)
    other = Peer(tmp_path / "other", seed=3)
    other.grow()
    second = Wire(other)
    run_fetch(second, into)
    assert contents(into) == rows_of(other)
    assert second.manifest is not None and sum(second.sent.values()) == second.manifest.total_bytes, "nothing mixed"
    other.store.close()


def test_bytes_damaged_on_the_way_are_fetched_again(peer: Peer, into: Path) -> None:
    wire = Wire(peer)
    wire.damages = 1
    run_fetch(wire, into)
    assert contents(into) == rows_of(peer)
    assert wire.manifest is not None
    assert sum(wire.sent.values()) > wire.manifest.total_bytes


def test_bytes_damaged_twice_stop_the_fetch_and_spare_the_old_replica(peer: Peer, into: Path) -> None:
    wire, before = Wire(peer), contents(into)
    wire.damages = 99
    with pytest.raises(CorruptStore, match="checksum, twice"):
        run_fetch(wire, into)
    assert contents(into) == before
    wire.damages = 0
    run_fetch(wire, into)
    assert contents(into) == rows_of(peer)


def test_bytes_damaged_on_the_own_disk_between_two_attempts_are_found(peer: Peer, into: Path) -> None:
    wire = Wire(peer)
    wire.breaks_after = 9
    with pytest.raises(Unavailable):
        run_fetch(wire, into)
    held = next((into.parent / "003.partial" / "files").glob("*.sst"))
    held.write_bytes(b"\0" * held.stat().st_size)
    wire.breaks_after = None
    run_fetch(wire, into)
    assert contents(into) == rows_of(peer)


def test_delay_files_that_are_here_are_taken_and_not_fetched(tmp_path: Path) -> None:
    partial = PartialReplica(tmp_path / "003")
    held = tmp_path / "003" / "far" / "1800000" / "000001.parquet"
    held.parent.mkdir(parents=True)
    held.write_bytes(b"content")
    wanted = ListedFile("far/1800000/000007.parquet", 7, hashlib.sha256(b"content").hexdigest())
    partial.begin(CheckpointManifest("id", 3, 0, 0, b"", 0, (wanted,)))
    taken = partial.folder / "files" / wanted.name
    taken.parent.mkdir(parents=True)
    taken.write_bytes(b"cont")  # of an earlier attempt, from a peer
    assert partial.link(wanted)
    assert taken.read_bytes() == b"content" and taken.stat().st_ino == held.stat().st_ino
    assert not partial.link(replace(wanted, sha256=hashlib.sha256(b"CONTENT").hexdigest()))
    assert not partial.link(replace(wanted, size=8))
    assert not partial.link(replace(wanted, name="000007.sst")), "RocksDB's own files are not for sharing"


def crash_at(wire: Wire, into: Path, number: int) -> str | None:
    """Fetch until the process ends after step `number`, counted from 0; its name, or None if there are fewer."""
    steps: list[str] = []

    def step(name: str) -> None:
        steps.append(name)
        if len(steps) > number:
            raise Crash

    try:
        asyncio.run(fetch(wire, SHARD, into, lambda done, total: None, step))
    except Crash:
        return steps[-1]
    return None


def test_a_crash_at_any_step_leaves_the_old_replica_or_the_new_one(peer: Peer, into: Path, tmp_path: Path) -> None:
    old, new, original = contents(into), rows_of(peer), tmp_path / "original"
    shutil.copytree(into.parent, original)
    seen: dict[str, bool] = {}  # by step: was the new one there after a restart?
    for number in range(1_000):
        shutil.rmtree(into.parent)
        shutil.copytree(original, into.parent)
        step = crash_at(Wire(peer), into, number)
        if step is None:
            break
        finish_replacements(into.parent)
        found = contents(into)
        assert found in (old, new)
        assert seen.setdefault(step, found == new) == (found == new)
        run_fetch(Wire(peer), into)
        assert contents(into) == new
        assert [path.name for path in into.parent.iterdir()] == ["003"]
        peer.now += 61
    before, after = ("begun", "part", "file", "durable"), ("ready", "emptied", "aside", "in_place")
    assert seen == dict.fromkeys(before, False) | dict.fromkeys(after, True)


def test_a_fetch_that_is_cancelled_while_it_replaces_the_replica_leaves_it_at_rest(peer: Peer, into: Path) -> None:
    async def run() -> None:
        durable, go_on = threading.Event(), threading.Event()

        def step(name: str) -> None:
            if name == "durable":
                durable.set()
                assert go_on.wait(SERVERS_S)

        fetching = asyncio.create_task(fetch(Wire(peer), SHARD, into, lambda done, total: None, step))
        assert await asyncio.to_thread(durable.wait, 10)
        fetching.cancel()
        asyncio.get_running_loop().call_later(0.05, go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await fetching
        assert go_on.is_set()
        assert [path.name for path in into.parent.iterdir()] == ["003"]

    asyncio.run(run())
    assert contents(into) == rows_of(peer)


def test_a_replica_that_was_only_set_aside_comes_back(into: Path) -> None:
    before = contents(into)
    into.rename(into.with_name("003.old"))
    finish_replacement(into)
    assert contents(into) == before


def test_the_server_bounds_what_it_holds(tmp_path: Path) -> None:
    peer = Peer(tmp_path, most=1)

    async def run() -> None:
        server = peer.server
        with pytest.raises(Unavailable, match="nothing of shard 3"):
            await server.begin(SHARD)
        peer.grow()
        with pytest.raises(Unavailable, match="not held"):
            await server.begin(4)
        manifest = await server.begin(SHARD)
        assert await server.begin(SHARD, manifest.id) == manifest
        with pytest.raises(Unavailable, match="copied from this node already"):
            await server.begin(SHARD)
        peer.now += 50
        name = next(file.name for file in manifest.files if file.size > PART)
        assert len(await server.read(manifest.id, name, 0, 1 << 30)) == PART
        peer.now += 50
        await server.expire()
        assert await server.read(manifest.id, name, 0, 1), "it is in use"
        peer.now += 61
        other = await server.begin(SHARD, manifest.id)
        assert other.id != manifest.id
        with pytest.raises(SnapshotGone):
            await server.read(manifest.id, name, 0, 1)
        assert [path.name for path in (tmp_path / "snapshots").iterdir()] == [other.id]
        await server.close()
        assert not list((tmp_path / "snapshots").iterdir())

    asyncio.run(run())
    peer.store.close()
