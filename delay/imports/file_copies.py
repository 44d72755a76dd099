"""Imported files on other replicas: how many replicas have a file, and how this replica gets a copy."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from duemq.delay.threads import in_thread
from duemq.model.errors import Unavailable
from duemq.model.rocksdb_errors import translate_errors
from duemq.storage.checkpoint.replica_swap import PartialFile
from duemq.storage.fsync import sync_folder
from duemq.storage.manifest import ListedFile

PART_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class FileCopy:
    """An imported file on another replica. `checksum`: the checksum of its keys, None if it was compared long ago.
    `size` (bytes) and `sha256` (hex) are those of the file on that replica."""

    rows: int
    checksum: int | None
    size: int
    sha256: str


class FilePeers(Protocol):
    """The other nodes that have a replica of a shard."""

    def have(self, shard: int) -> bool:
        """Whether there is another node with a replica of the shard."""
        ...

    async def copies(self, shard: int, offsets: Sequence[int]) -> Mapping[str, Mapping[int, FileCopy]]:
        """For each node that answers: which of these import commands' files it has durably."""
        ...

    async def read_copy(self, shard: int, node: str, offset: int, at: int, count: int) -> bytes:
        """Up to `count` bytes (at most PART_BYTES) of a node's copy, starting at the byte `at`. Raises Unavailable."""
        ...


class NoPeers:
    """The `FilePeers` of a node without peers."""

    def have(self, shard: int) -> bool:
        return False

    async def copies(self, shard: int, offsets: Sequence[int]) -> Mapping[str, Mapping[int, FileCopy]]:
        return {}

    async def read_copy(self, shard: int, node: str, offset: int, at: int, count: int) -> bytes:
        raise Unavailable("there is no other node")


async def fetch_copy(peers: FilePeers, shard: int, node: str, offset: int, copy: FileCopy, target: Path) -> None:
    """Fetch a peer's copy of a file, verify its checksum, and rename it to `target` last.

    After an error, another call resumes the transfer. Raises Unavailable.
    """
    part = target.with_suffix(".part")
    file = await in_thread(PartialFile, part, ListedFile(target.name, copy.size, copy.sha256))
    try:
        while file.size < copy.size:
            raw = await peers.read_copy(shard, node, offset, file.size, min(PART_BYTES, copy.size - file.size))
            if not raw:
                raise Unavailable(f"the copy of node {node} is shorter than it said")
            await in_thread(file.add, raw)
        sound = await in_thread(file.finish)
    finally:
        await in_thread(file.close)
    if not sound:
        raise Unavailable(f"the copy of node {node} arrived damaged")
    await in_thread(_name, part, target)


def _name(part: Path, target: Path) -> None:
    with translate_errors(target):
        os.replace(part, target)
        sync_folder(target.parent)
