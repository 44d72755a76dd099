"""Random histories of one shard that also imports files, with kills at every step."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from duemq.model.messages.import_command import ImportCommand
from duemq.model.messages.message import Draft
from duemq.model.messages.record import pack_headers, unpack_headers
from duemq.model.timing import WINDOW_MS
from duemq.storage.rocksdb import Memory
from duemq.storage.shard.records import LocalFile
from tests.support.shard.shard_oracle import Handed
from tests.support.shard.shard_world import Killed
from tests.support.shard.tiering_schedule import TieringSchedule

_STEPS = ("written", "synced", "named")
SCHEMA = pa.schema([
    pa.field("due_ms", pa.int64()), pa.field("topic", pa.string()), pa.field("payload", pa.binary()),
    pa.field("key", pa.binary()), pa.field("expires_ms", pa.int64()), pa.field("labels", pa.list_(pa.string())),
    pa.field("headers", pa.map_(pa.string(), pa.binary())),
])  # fmt: skip


def write_messages(path: Path, drafts: list[Draft]) -> ImportCommand:
    """A file of these messages, all of one window, and what its command says."""
    rows = [
        {
            "due_ms": draft.due, "topic": draft.topic, "payload": draft.payload, "key": draft.key,
            "expires_ms": draft.expires or None, "labels": list(draft.labels),
            "headers": list(unpack_headers(draft.headers, 0, draft.header_count, len(draft.headers))),
        }
        for draft in drafts
    ]  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path, row_group_size=max(3, len(drafts) // 4))
    content = path.read_bytes()
    first = drafts[0].due or 0
    return ImportCommand(
        str(path), hashlib.sha256(content).hexdigest(), len(content), first - first % WINDOW_MS, len(drafts)
    )  # fmt: skip


class ImportSchedule(TieringSchedule):
    """As `FarSchedule`, with files of messages for windows up to six ahead."""

    def __init__(self, seed: int, folder: Path, memory: Memory) -> None:
        super().__init__(seed, folder, memory)
        self.handed: list[Handed] = []
        self.files = count()

    def actions(self) -> dict[Callable[[], Any], int]:
        return super().actions() | {self.hand_over: 12, self.take_in: 20, self.die_taking_in: 6, self.lose_sources: 2}

    async def hand_over(self) -> None:
        rng = self.rng
        if self.handed and rng.random() < 0.2:
            again = rng.choice(self.handed)
            await self.world.produce([again])
            return
        window = (self.world.now // WINDOW_MS + rng.randint(0, 5)) * WINDOW_MS
        drafts = sorted((self._of_file(window) for _ in range(rng.randint(1, 8))), key=lambda draft: draft.due or 0)
        bad = rng.random() < 0.1
        gone = not bad and rng.random() < 0.1
        if bad:
            drafts[-1] = drafts[-1]._replace(topic="not a topic")
        path = self.world.shared / f"{next(self.files)}.parquet"
        import_command = write_messages(path, drafts)
        if gone:
            path.unlink()
        if rng.random() < 0.05:
            import_command, bad = (
                ImportCommand(
                    import_command.path,
                    import_command.sha256,
                    import_command.size,
                    import_command.window,
                    import_command.rows + 1,
                ),
                True,
            )
        self.handed.append(Handed(import_command, drafts, bad, gone))
        await self.world.produce([self.handed[-1]])

    def _of_file(self, window: int) -> Draft:
        rng = self.rng
        due = window + rng.choice((0, 1, 5, 5, 61_000, WINDOW_MS - 1))
        labels = rng.choice(((), (), ("red",), ("red", "blue")))
        is_null = due % 2 == 1
        number, headers = pack_headers([("h", None if is_null else b"1")] * rng.randint(0, 1))
        expires = due + rng.choice((0, 100)) if rng.random() < 0.1 else 0
        return Draft(
            rng.choice(("one", "two")), rng.randbytes(rng.choice((0, 9))) or (None if is_null else b""), due,
            rng.choice((None, b"", b"k1")), number, headers, labels, expires,
        )  # fmt: skip

    async def take_in(self) -> None:
        node = self.rng.choice(self.world.nodes)
        await node.importer.step()
        if node is self.node and self.rng.random() < 0.5:
            await self.tick()

    async def die_taking_in(self) -> None:
        node = self.rng.choice(self.world.nodes)
        node.import_fault = self.rng.choice(_STEPS)
        try:
            await node.importer.step()
        except Killed:
            node.kill()
            if node is self.node:
                await self.fail_over()
        node.import_fault = None

    async def lose_sources(self) -> None:
        """Whoever handed a file over may remove it once it is imported, and all replicas have it."""
        for handed in self.handed:
            offset = self.world.oracle.contents.get(handed.import_command.sha256, -1)
            if all(isinstance(node.importer.outcomes.get(offset), LocalFile) for node in self.world.nodes):
                os.unlink(handed.import_command.path)
                self.handed.remove(handed)
                return

    async def drain(self) -> None:
        self.world.now += 120_000
        while self.world.oracle.wanted or self.world.oracle.applied < len(self.world.oracle.commands):
            await self.node.importer.step()
            await super().tick()
            self.world.now += 10_000
        await super().drain()
