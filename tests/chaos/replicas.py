"""What the replicas of a shard hold at rest, read from the stores of stopped nodes."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from duemq.model.log.ledger import Entry
from duemq.model.messages.row import count_topics
from duemq.storage.keyspace import ENDED, MOVED, NAME, ROW, WINDOW
from duemq.storage.rocksdb import Memory
from duemq.storage.shard.store import ShardStore


class Holding(NamedTuple):
    """The last ledger entry of a store, and how many rows of each kind it has, with a digest over them."""

    entry: Entry
    rows: dict[str, tuple[int, str]]


def holding(path: Path) -> Holding:
    store = ShardStore(path, Memory(16 << 20, 16 << 20))
    try:
        rows = {}
        for prefix in (ROW, ENDED, MOVED, NAME, WINDOW):
            digest, count = blake2b(digest_size=16), 0
            for key, value in store.each(prefix):
                digest.update(len(key).to_bytes(2, "big") + key + len(value).to_bytes(4, "big") + value)
                count += 1
            rows[prefix.decode()] = (count, digest.hexdigest())
        counts, cursor = store.topic_counts, store.position.entry.cursor
        if counts.built and not store.delay_files:
            pending = count_topics(row for key, row in store.each(ROW) if key > cursor)
            assert counts.listed() == {topic.decode(): count for topic, count in pending.items()}, path
        return Holding(store.position.entry, rows)
    finally:
        store.close()


def same_replicas(folders: Iterable[Path], shards: int) -> list[Holding]:
    """Fail unless all folders hold the same of every shard; what that is, by shard."""
    held: list[Holding] = []
    stores = [folder / "shards" for folder in folders]
    for shard in range(shards):
        first, *others = [(path, holding(path / f"{shard:03d}")) for path in stores]
        for path, other in others:
            assert other == first[1], f"shard {shard} differs: {first[0]} {first[1]}, {path} {other}"
        entry = first[1].entry
        outcomes = entry.outcomes
        assert outcomes.accepted == outcomes.delivered + outcomes.cancelled + outcomes.dead + entry.pending, (
            shard,
            entry,
        )
        held.append(first[1])
    return held
