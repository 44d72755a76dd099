"""A peer with a store to copy, and a wire to it that counts, breaks and damages."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from duemq.delay.recovery.replica_snapshot import SnapshotServer
from duemq.model.errors import Unavailable
from duemq.model.log.ledger import START
from duemq.model.messages.key import make_key
from duemq.storage.checkpoint.checkpoint import CheckpointManifest, make_checkpoint
from duemq.storage.keyspace import ROW, LedgerPosition
from duemq.storage.manifest import ListedFile
from duemq.storage.rocksdb import Memory
from duemq.storage.shard.store import ShardStore

MEMORY = Memory(1 << 20, 4 << 20)
SHARD = 3


class Peer:
    """A node that holds one shard; `now` is its clock in seconds."""

    def __init__(self, folder: Path, seed: int = 1, most: int = 4) -> None:
        self.folder, self.now = folder, 0.0
        self.store = ShardStore(folder / "shards" / "003", MEMORY)
        self.store.db.set_options({"disable_auto_compactions": "true"})
        self._random = random.Random(seed)
        self.server = SnapshotServer(
            folder / "snapshots", self._checkpoint, most=most, idle_s=60.0, clock=lambda: self.now
        )

    async def _checkpoint(self, shard: int, into: Path) -> None:
        if shard != SHARD:
            raise Unavailable(f"shard {shard} is not held here")
        make_checkpoint(self.store, into)

    def grow(self) -> None:
        """One more ledger entry of twenty rows, in a separate file."""
        number = self.store.position.entry.number + 1
        rows = [(ROW + make_key(1_000 + number, row, 0), self._random.randbytes(500)) for row in range(20)]
        self.store.write(rows, [], LedgerPosition(replace(START, number=number, applied=number), number), {})
        self.store.flush()


class Wire:
    """`sent`: bytes per file. Breaks after `breaks_after` parts; damages the first `damages` parts of SST files.

    `sums`: whether the checksums of files come with the manifest, as from an older peer.
    """

    def __init__(self, peer: Peer, *, sums: bool = True) -> None:
        self._server, self._sums = peer.server, sums
        self.sent: dict[str, int] = {}
        self.manifest: CheckpointManifest | None = None
        self.breaks_after: int | None = None
        self.damages = 0
        self.keeps = False  # does not let the peer end a snapshot

    async def files(self) -> set[ListedFile]:
        """Those of the latest snapshot, with their checksums."""
        assert self.manifest is not None
        name = self.manifest.id
        return {replace(file, sha256=await self.sha256(name, file.name)) for file in self.manifest.files}

    async def begin(self, shard: int, held: str | None = None, least: int = 0) -> CheckpointManifest:
        self.manifest = await self._server.begin(shard, held, least, sums=self._sums)
        return self.manifest

    async def sha256(self, snapshot: str, file: str) -> str:
        return await self._server.sha256(snapshot, file)

    async def read(self, snapshot: str, file: str, offset: int, count: int) -> bytes:
        if self.breaks_after is not None:
            if self.breaks_after == 0:
                raise Unavailable("the wire broke")
            self.breaks_after -= 1
        part = await self._server.read(snapshot, file, offset, count)
        self.sent[file] = self.sent.get(file, 0) + len(part)
        if self.damages and file.endswith(".sst"):
            self.damages -= 1
            part = bytes([part[0] ^ 1]) + part[1:]
        return part

    async def end(self, snapshot: str) -> None:
        if not self.keeps:
            await self._server.end(snapshot)


def contents(path: Path) -> tuple[int, list[tuple[bytes, bytes]]]:
    """The last entry of the store in a folder, and its rows."""
    store = ShardStore(path, MEMORY)
    found = store.position.entry.number, list(store.each(ROW))
    store.close()
    return found
