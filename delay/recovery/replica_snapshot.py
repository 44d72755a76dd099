"""Rebuilds a replica from a peer: one node serves a checkpoint of its store, and another node fetches it in parts.

This is needed if the logs no longer reach back to a replica's position. For an empty replica it is faster than
following the logs. The fetched replica then follows the ledger from its own position.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from duemq.delay.threads import in_thread
from duemq.model.errors import CorruptStore, DiskFull, Unavailable
from duemq.model.failpoint import Failpoint, no_failpoint
from duemq.model.rocksdb_errors import translate_errors
from duemq.storage.checkpoint.checkpoint import CheckpointManifest, describe, sha256_of, with_sum
from duemq.storage.checkpoint.replica_swap import PartialFile, PartialReplica, finish_replacement
from duemq.storage.manifest import ListedFile

log = logging.getLogger(__name__)

PART_BYTES: Final = 2 << 20  # the most bytes that one read returns, and so the memory that a transfer takes


class SnapshotGone(Unavailable):
    """The peer no longer has this snapshot, or the snapshot never had this file: start again."""


class _Useless(Unavailable):
    """A snapshot that must be neither used nor resumed."""


class SnapshotSource(Protocol):
    """A peer to copy from. All methods raise Unavailable if the peer is unreachable or cannot serve."""

    async def begin(self, shard: int, resume_id: str | None = None, least: int = 0) -> CheckpointManifest:
        """Make a snapshot of the shard, or resume the one with the id `resume_id` if it still exists.

        `least`: the ledger offset that the snapshot must have reached. A peer with an older version ignores it.
        """
        ...

    async def sha256(self, snapshot: str, file: str) -> str:
        """The checksum, in hex, of a file that has none in the manifest."""
        ...

    async def read(self, snapshot: str, file: str, offset: int, count: int) -> bytes:
        """Up to `count` bytes (at most PART_BYTES) of a file, starting at `offset`; empty at the end of the file."""
        ...

    async def end(self, snapshot: str) -> None:
        """Remove a snapshot that is no longer needed."""
        ...


@dataclass
class _OpenSnapshot:
    manifest: CheckpointManifest
    names: frozenset[str]
    used_at: float
    sums: dict[str, str] = field(default_factory=dict)  # requested checksums, by file
    summing: int = 0  # the number of files that are being hashed


class SnapshotServer:
    """The serving side, itself a `SnapshotSource`. `folder`: contains the snapshots until they are ended or stale.

    `checkpoint(shard, into)` makes a checkpoint of the shard's store, and raises Unavailable if this node has no
    replica of the shard. At most `most` snapshots exist at a time. A snapshot without requests for `idle_s` seconds is
    stale, and `expire`, which must be called regularly, removes it. `clock` returns seconds.
    """

    def __init__(
        self,
        folder: Path,
        checkpoint: Callable[[int, Path], Awaitable[None]],
        most: int = 4,
        idle_s: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._checkpoint, self._most, self._idle_s, self._clock = folder, checkpoint, most, idle_s, clock
        self._open_snapshots: dict[str, _OpenSnapshot] = {}
        self._making = 0

    async def begin(
        self, shard: int, resume_id: str | None = None, least: int = 0, *, sums: bool = True
    ) -> CheckpointManifest:
        """See `SnapshotSource`. With `sums` False the manifest has no checksums, so that not all files must be read."""
        await self.expire()
        open_snapshot = self._open_snapshots.get(resume_id or "")
        if open_snapshot is not None and open_snapshot.manifest.shard == shard:
            if open_snapshot.manifest.ledger_offset >= least:
                open_snapshot.used_at = self._clock()
                return open_snapshot.manifest
            await self.end(open_snapshot.manifest.id)
        if len(self._open_snapshots) + self._making >= self._most:
            raise Unavailable(f"{self._most} snapshots are being copied from this node already", retry_after_s=5)
        path = self._folder / f"{shard:03d}-{secrets.token_hex(8)}"
        self._making += 1
        try:
            await self._checkpoint(shard, path)
            manifest = await asyncio.to_thread(describe, path, shard, sums=sums)
            if manifest.entry < 0:
                raise Unavailable(f"this node holds nothing of shard {shard} itself yet")
            _refuse_old(manifest, least)
            names = frozenset(file.name for file in manifest.files)
            self._open_snapshots[path.name] = _OpenSnapshot(manifest, names, self._clock())
        finally:
            self._making -= 1
            if path.name not in self._open_snapshots:
                await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
        log.info(
            "snapshot of shard %d made at entry %d: %d files, %d MiB", shard, manifest.entry, len(manifest.files),
            manifest.total_bytes >> 20, extra={"action": "snapshot", "shard": shard, "snapshot": manifest.id},
        )  # fmt: skip
        return manifest

    async def sha256(self, snapshot: str, file: str) -> str:
        open_snapshot = self._use(snapshot, file)
        if file not in open_snapshot.sums:
            open_snapshot.summing += 1
            path = self._folder / snapshot / file
            try:
                with _translate_gone(snapshot), translate_errors(path):
                    open_snapshot.sums[file] = await asyncio.to_thread(sha256_of, path)
            finally:
                open_snapshot.summing -= 1
                open_snapshot.used_at = self._clock()
        return open_snapshot.sums[file]

    async def read(self, snapshot: str, file: str, offset: int, count: int) -> bytes:
        self._use(snapshot, file)
        with _translate_gone(snapshot):
            return await asyncio.to_thread(read_part, self._folder / snapshot / file, offset, count)

    def _use(self, snapshot: str, file: str) -> _OpenSnapshot:
        open_snapshot = self._open_snapshots.get(snapshot)
        if open_snapshot is None or file not in open_snapshot.names:
            raise SnapshotGone(f"there is no file {file!r} in a snapshot {snapshot!r} here")
        open_snapshot.used_at = self._clock()
        return open_snapshot

    async def end(self, snapshot: str) -> None:
        if self._open_snapshots.pop(snapshot, None) is not None:
            # Leftover files are removed at the next start.
            await asyncio.to_thread(shutil.rmtree, self._folder / snapshot, ignore_errors=True)

    async def expire(self) -> None:
        now = self._clock()
        stale = [
            name for name, one in self._open_snapshots.items() if not one.summing and now - one.used_at > self._idle_s
        ]
        for snapshot in stale:
            log.warning("snapshot %s was left by its reader", snapshot, extra={"action": "snapshot"})
            await self.end(snapshot)

    async def close(self) -> None:
        for snapshot in list(self._open_snapshots):
            await self.end(snapshot)


@contextmanager
def _translate_gone(snapshot: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise SnapshotGone(f"snapshot {snapshot} has ended") from error


def _refuse_old(manifest: CheckpointManifest, least: int) -> None:
    if manifest.ledger_offset < least:
        raise _Useless(
            f"the snapshot of shard {manifest.shard} at ledger entry {manifest.entry} would not help: it is no further "
            "than the replica there, or the ledger does not reach back to it"
        )


def read_part(path: Path, offset: int, count: int) -> bytes:
    """Bytes of a file, at most PART_BYTES. Blocks. Raises FileNotFoundError and StoreFailed."""
    handle = os.open(path, os.O_RDONLY)
    try:
        with translate_errors(path):
            return os.pread(handle, min(count, PART_BYTES), offset)
    finally:
        os.close(handle)


async def fetch(
    source: SnapshotSource,
    shard: int,
    into: Path,
    progress: Callable[[int, int], None],
    failpoint: Failpoint = no_failpoint,
    *,
    least: int = 0,
    room: Callable[[int], None] = lambda byte_count: None,
) -> CheckpointManifest:
    """Replace the replica in the folder `into`, which must be closed, by a snapshot from a peer.

    `progress` is called with the bytes done and the total. `least`: the ledger offset that the snapshot must have
    reached. `room` raises DiskFull if this disk has no room for that many bytes.

    May be called again after any error or crash: it then resumes the transfer. The old replica remains until the
    transfer is complete. Raises Unavailable if the peer fails or its snapshot would not help (another peer may do),
    DiskFull if this disk has too little space (fetched parts are removed), StoreFailed if this disk fails, and
    CorruptStore if the files do not match their checksums or do not make a replica that can be opened.
    """
    partial = PartialReplica(into, failpoint)
    await asyncio.to_thread(finish_replacement, into)
    partial_manifest = await asyncio.to_thread(partial.manifest)
    manifest = await source.begin(shard, partial_manifest.id if partial_manifest else None, least)
    try:
        if manifest.shard != shard:
            raise _Useless(f"the peer sent a snapshot of shard {manifest.shard}, not of shard {shard}")
        _refuse_old(manifest, least)
        room(await asyncio.to_thread(partial.missing_bytes, manifest))
        await asyncio.to_thread(partial.begin, manifest)
        transfer = _Transfer(source, manifest, partial, progress, room, failpoint)
        for file in manifest.files:
            await transfer.fetch(file)
        await in_thread(partial.complete, manifest)  # waits for the thread, because the folder is opened next
    except (_Useless, DiskFull) as error:
        with suppress(Unavailable):
            await source.end(manifest.id)
        if isinstance(error, DiskFull):
            await in_thread(partial.discard)
        raise
    with suppress(Unavailable):
        await source.end(manifest.id)
    log.info(
        "shard %d rebuilt from a peer's snapshot at entry %d: %d MiB, %d of them fetched now", shard, manifest.entry,
        manifest.total_bytes >> 20, transfer.fetched >> 20, extra={"action": "rebuild", "shard": shard},
    )  # fmt: skip
    return manifest


class _Transfer:
    """One transfer of a snapshot. `done`: bytes that are on this disk, `fetched`: bytes that were transferred."""

    def __init__(
        self,
        source: SnapshotSource,
        manifest: CheckpointManifest,
        partial: PartialReplica,
        progress: Callable[[int, int], None],
        room: Callable[[int], None],
        failpoint: Failpoint,
    ) -> None:
        self._source, self._manifest, self._partial = source, manifest, partial
        self._progress, self._room, self._failpoint = progress, room, failpoint
        self.done = self.fetched = 0

    async def fetch(self, listed_file: ListedFile) -> None:
        if not listed_file.sha256:
            listed_file = with_sum(listed_file, await self._source.sha256(self._manifest.id, listed_file.name))
        if await asyncio.to_thread(self._partial.link, listed_file):
            self._report(listed_file.size)
            self._failpoint("file")
            return
        for _ in range(2):
            before = self.done
            file = await asyncio.to_thread(self._partial.open, listed_file)
            try:
                self._report(file.size)
                self._room(listed_file.size - file.size)  # other writers use this disk, too
                await self._fill(file)
                if await asyncio.to_thread(file.finish):
                    self._failpoint("file")
                    return
            finally:
                await asyncio.to_thread(file.close)
            log.warning(
                "shard %d: file %s of a snapshot arrived damaged", self._manifest.shard, listed_file.name,
                extra={"action": "rebuild", "shard": self._manifest.shard},
            )  # fmt: skip
            self._report(before - self.done)
        raise CorruptStore(
            f"shard {self._manifest.shard}: file {listed_file.name} of snapshot {self._manifest.id} does not have its "
            "checksum, twice: check the network and the disks of both nodes, or copy from another peer"
        )

    async def _fill(self, file: PartialFile) -> None:
        name, size = file.expected.name, file.expected.size
        while file.size < size:
            count = min(PART_BYTES, size - file.size)
            part = await self._source.read(self._manifest.id, name, file.size, count)
            if not 0 < len(part) <= count:
                raise Unavailable(f"the peer sent {len(part)} bytes of {name} instead of {count}")
            await asyncio.to_thread(file.add, part)
            self.fetched += len(part)
            self._report(len(part))
            self._failpoint("part")

    def _report(self, byte_count: int) -> None:
        self.done += byte_count
        self._progress(self.done, self._manifest.total_bytes)
