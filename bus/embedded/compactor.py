"""Frees the disk space of trimmed records in the background."""

from __future__ import annotations

import asyncio
import logging

from rocksdict import Rdict

log = logging.getLogger(__name__)

# RocksDB frees a deleted range only by compacting it; smaller ranges are not worth a compaction.
WORTH_BYTES = 64 << 20


class Compactor:
    def __init__(self, db: Rdict, worth_bytes: int = WORTH_BYTES) -> None:
        self._db, self._worth_bytes = db, worth_bytes
        self._bytes = 0
        self._ranges: dict[bytes, bytes] = {}
        self.task: asyncio.Task[None] | None = None
        self._closed = False

    def record_trim(self, begin: bytes, end: bytes, size: int) -> None:
        """Record that `size` bytes of records in this key range were deleted. `begin` is always the same for one
        partition."""
        self._ranges[begin] = end
        self._bytes += size
        if self._bytes >= self._worth_bytes and self.task is None and not self._closed:
            self._start(self._worth_bytes)

    async def now(self) -> None:
        """Compact all trimmed ranges, however small."""
        if self.task is None and self._bytes and not self._closed:
            self._start(1)
        if self.task is not None:
            await asyncio.wait([self.task])

    def _start(self, least: int) -> None:
        self.task = asyncio.get_running_loop().create_task(self._run(least), name="log compaction")

    async def close(self) -> bool:
        """Stop compacting. Returns whether a compaction was running: then RocksDB's background work was stopped for
        good."""
        self._closed = True
        if (running := self.task) is None:
            return False
        await asyncio.to_thread(self._db.cancel_all_background, True)
        await running
        return True

    async def _run(self, least: int) -> None:
        while self._bytes >= least and not self._closed:
            ranges, self._ranges, self._bytes = self._ranges, {}, 0
            for begin, end in ranges.items():
                if self._closed:
                    break
                try:
                    await asyncio.to_thread(self._db.compact_range, begin, end)
                except Exception as error:
                    # No space is lost: a later compaction frees it.
                    log.warning("log: compaction stopped: %s", error, extra={"action": "log_compaction"})
        self.task = None
