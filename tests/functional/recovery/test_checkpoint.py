"""Checkpoints of a store on a real disk: whole at one position, whatever is written meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from duemq.model.errors import CorruptStore, StoreFailed
from duemq.model.log.ledger import START
from duemq.model.messages.key import make_key
from duemq.storage.checkpoint.checkpoint import CheckpointManifest, describe, make_checkpoint
from duemq.storage.keyspace import ROW, LedgerPosition
from duemq.storage.manifest import ListedFile
from duemq.storage.rocksdb import Memory
from duemq.storage.shard.store import ShardStore

MEMORY = Memory(1 << 20, 1 << 20)  # small buffers: the store flushes now and then while it is written
MANIFEST = CheckpointManifest("003-ab", 3, 7, 9, b"k" * 20, 8, (ListedFile("000008.sst", 5, "0" * 64),))


def write_entry(store: ShardStore, number: int) -> None:
    """Entry n adds row n, so that rows and position of a whole checkpoint agree."""
    position = LedgerPosition(replace(START, number=number, applied=number + 1), number + 1)
    store.write([(ROW + make_key(1_000, number, 0), b"%d" % number * 200)], [], position, {})


def test_a_checkpoint_is_whole_at_its_position_while_the_store_is_written(tmp_path: Path) -> None:
    store = ShardStore(tmp_path / "store", MEMORY)

    async def write_meanwhile(into: Path) -> int:
        """Returns how many entries there were at the call."""
        before = store.position.entry.number
        making = asyncio.create_task(asyncio.to_thread(make_checkpoint, store, into))
        while not making.done():
            write_entry(store, store.position.entry.number + 1)
            await asyncio.sleep(0)
        await making
        return before

    write_entry(store, 0)
    for attempt in range(8):
        into = tmp_path / "snapshots" / str(attempt)
        before = asyncio.run(write_meanwhile(into))
        manifest = describe(into, 3)
        assert before <= manifest.entry <= store.position.entry.number
        assert (manifest.id, manifest.shard) == (str(attempt), 3)
        copy = ShardStore(into, MEMORY)
        numbers = [int(row[: len(row) // 200]) for _, row in copy.each(ROW)]
        assert numbers == list(range(manifest.entry + 1))
        entry, offset = copy.position.entry, copy.position.ledger_offset
        copy.close()
        assert (entry.number, entry.applied, entry.cursor, offset) == (
            manifest.entry, manifest.applied, manifest.cursor, manifest.ledger_offset,
        )  # fmt: skip
    store.close()


def test_describing_a_checkpoint_does_not_change_it(tmp_path: Path) -> None:
    store = ShardStore(tmp_path / "store", MEMORY)
    write_entry(store, 0)
    make_checkpoint(store, tmp_path / "copy")
    first = describe(tmp_path / "copy", 0)
    assert describe(tmp_path / "copy", 0) == first
    assert first.total_bytes == sum(path.stat().st_size for path in (tmp_path / "copy").iterdir())
    with pytest.raises(StoreFailed, match="exists"):
        make_checkpoint(store, tmp_path / "copy")
    store.close()


def test_a_manifest_survives_the_wire() -> None:
    assert CheckpointManifest.decode(MANIFEST.encode()) == MANIFEST


@pytest.mark.parametrize("name", ["../id.key", "a/b", "/etc/passwd", "", ".", "..", ".hidden", "a\\b", "a\0b", "é"])
def test_a_manifest_with_names_that_lead_elsewhere_is_refused(name: str) -> None:
    bad = replace(MANIFEST, files=(ListedFile(name, 5, "0" * 64),))
    with pytest.raises(CorruptStore):
        CheckpointManifest.decode(bad.encode())


@pytest.mark.parametrize(
    "change", [{"format": 2}, {"files": 1}, {"cursor": "xyz"}, {"entry": None}, {"files": [{"name": "a", "size": -1}]}]
)
def test_what_is_no_manifest_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(CorruptStore):
        CheckpointManifest.decode(orjson.dumps(orjson.loads(MANIFEST.encode()) | change))
    with pytest.raises(CorruptStore):
        CheckpointManifest.decode(b"<html>")
    with pytest.raises(CorruptStore):
        CheckpointManifest.decode(replace(MANIFEST, files=MANIFEST.files * 2).encode())
