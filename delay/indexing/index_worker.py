"""Maintains the index of one shard in the background: merges runs, and indexes older messages.

Each replica does this independently, as with delay files: it is not in the ledger.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from time import thread_time

from duemq.background.loop import Loop, OutageOptions
from duemq.delay.replica.prefetch import PrefetchedView, prefetch_part
from duemq.delay.replica.replica import Replica
from duemq.delay.threads import in_thread
from duemq.model.messages.ended import EndedMessage
from duemq.model.messages.key import HIGHEST, LOWEST, last_key_at, offset_of
from duemq.model.messages.row import shows_due
from duemq.model.timing import WINDOW_MS
from duemq.storage.keyspace import ENDED
from duemq.storage.message_index.index import MessageIndex
from duemq.storage.message_index.runs import Entries, RunGroup, groups_of, merge, pages_of
from duemq.storage.message_index.state import BuildStage

log = logging.getLogger(__name__)

_LOOK_S = 0.5
_AGAIN_S, _LONGEST_S = 5.0, 300.0
_PART, _PART_BYTES = 500, 4 << 20  # rows indexed before other tasks run

Rows = list[tuple[bytes, bytes]]


class IndexWorker:
    """The shard must keep this `replica` while this runs."""

    def __init__(self, shard: int, replica: Replica) -> None:
        self._shard, self._replica = shard, replica

    async def run(self) -> None:
        """Work until cancelled. Raises Fatal; other errors are retried."""
        pace = OutageOptions(first_s=_AGAIN_S, longest_s=_LONGEST_S)
        await Loop("index", self._turn, f"shard {self._shard}", every_s=_LOOK_S, **pace).run()

    async def _turn(self) -> None:
        began = thread_time()
        while await self.step():
            # Use at most half of a core, because due messages go first.
            await asyncio.sleep(thread_time() - began)
            began = thread_time()

    async def step(self) -> bool:
        """Merge some runs, or index some messages. False if no work is left."""
        store = self._replica.store
        index, state = store.index, store.index.state
        if state is None:
            return False
        if await self._merge_some(index):
            return True
        if state.stage is BuildStage.ROWS:
            rows, last = await self._rows(state.after, HIGHEST)
            rows = [(key, row) for key, row in rows if self._was_before(key, row, state.applied)]
            done = state.at(BuildStage.ENDINGS, LOWEST) if last is None else state.at(BuildStage.ROWS, last)
            index.build(rows, state.since, done)
        elif state.stage is BuildStage.ENDINGS:
            rows, last = await self._endings(state.after, HIGHEST)
            rows = [(key, row) for key, row in rows if self._was_before(key, row, state.applied)]
            index.build(
                rows, state.since, state.at(BuildStage.DONE, LOWEST) if last is None else state.at(state.stage, last)
            )
            if last is None:
                log.info("shard %d: the index is built", self._shard, extra={"action": "index", "shard": self._shard})
        elif index.files:
            await self._index_file(index, min(index.files))
        else:
            return False
        return True

    async def _merge_some(self, index: MessageIndex) -> bool:
        """Merge some runs. False if none are left to merge."""
        to_merge = index.to_merge(self._replica.entry.at)
        if to_merge is None:
            return False
        parts = index.read_chunks(number for number, _ in to_merge.chunks)
        for run in to_merge.runs:
            parts += index.read_run(run)
            await asyncio.sleep(0)
        index.replace(to_merge, await in_thread(_merged, parts))
        return True

    # --- older messages -------------------------------------------------------------------------------------------

    def _was_before(self, key: bytes, row: bytes, applied: int) -> bool:
        """Whether no cycle has indexed this row, and the row is not in a file that is still to be indexed."""
        offset = offset_of(key)
        if offset >= applied or offset in self._replica.store.index.files:
            return False
        return self._was_not_put_off(key, row)

    def _was_not_put_off(self, key: bytes, row: bytes) -> bool:
        """Whether no cycle has deferred the message to this key: that cycle would have indexed it. A deferred message
        has a key with the offset, but not the time, of its acceptance."""
        return shows_due(row, int.from_bytes(key[:8], "big")) or not self._replica.store.index.has(key, row)

    async def _rows(self, after: bytes, through: bytes) -> tuple[Rows, bytes | None]:
        """Keys and rows above `after`, and the last key examined (None at the end)."""
        store = self._replica.store
        await prefetch_part(store, after, through)
        keys, rows, last = store.scan_part(after, through, _PART, _PART_BYTES)
        return list(zip(keys, rows, strict=True)), last

    async def _endings(self, after: bytes, through: bytes) -> tuple[Rows, bytes | None]:
        """Like `_rows`, for messages that were cancelled or dead-lettered."""
        store = self._replica.store
        keys, raws = store.scan(after, through, _PART, _PART_BYTES, ENDED)
        endings = dict(zip(keys, map(EndedMessage.decode, raws), strict=True))
        if rowless := [key for key, ended in endings.items() if not ended.row]:
            view = PrefetchedView(store)
            await view.read_endings(rowless)
            endings.update(
                (key, ended) for key, ended in zip(rowless, view.endings(rowless), strict=True) if ended is not None
            )
        return [(key, ended.row) for key, ended in endings.items() if ended.row], keys[-1] if keys else None

    async def _index_file(self, index: MessageIndex, offset: int) -> None:
        """Index the messages in an imported file: first the pending ones, then those that have ended."""
        record, placed_ms = self._replica.store.imports.get(offset), index.files[offset]
        if record is not None:
            window = record.import_command.window
            for read in (self._rows, self._endings):
                after: bytes | None = last_key_at(window - 1)
                while after is not None:
                    began = thread_time()
                    rows, after = await read(after, last_key_at(window + WINDOW_MS - 1))
                    own = [
                        (key, row) for key, row in rows if offset_of(key) == offset and self._was_not_put_off(key, row)
                    ]
                    assert index.state is not None
                    index.build(own, placed_ms, index.state)
                    await self._merge_some(index)
                    await asyncio.sleep(thread_time() - began)
        index.end_file(offset)


def _merged(parts: Sequence[Entries]) -> list[tuple[RunGroup, int, list[tuple[bytes, bytes]]]]:
    """Runs with all these entries, and the pages of the runs. Call it in a thread."""
    return [(group, len(some), list(pages_of(some))) for group, some in groups_of(merge(parts))]
