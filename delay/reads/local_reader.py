"""Reads from the shards in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, overload

from duemq.bus.base import Bus
from duemq.cluster.shards.shard_reader import MessageState, NamedMessage, Query, SearchPart
from duemq.cluster.topics.internal_topics import BUFFER
from duemq.cluster.topics.topic_states import TopicStates
from duemq.delay.reads.shard_reads import Reads
from duemq.delay.shard.shard import Shard
from duemq.delay.threads import in_thread
from duemq.delay.tiering.completion import complete_windows
from duemq.model.errors import DamagedFile, LogFailed, Rejected, Unavailable
from duemq.model.messages.key import KEY_BYTES, due_of
from duemq.storage.shard.records import PENDING, REJECTED, ImportRecord
from duemq.storage.shard.topic_counts import TopicCount

_LOOK_AGAIN_S, _LOOK_LATER_S = 0.05, 0.8
_UNREAD = 2_000  # the most rows of messages cancelled in delay files that a count reads first: it takes 0.2 s
_TOGETHER = 500  # imports decoded before other tasks run


class ShardHolder(Protocol):
    """An object with replicas, such as a `Node`. Replicas that are being rebuilt or have failed cannot be read."""

    @property
    def bus(self) -> Bus: ...
    @property
    def shards(self) -> Mapping[int, Shard]: ...
    @property
    def topic_states(self) -> TopicStates: ...
    @property
    def clock(self) -> Callable[[], int]: ...


@overload
def _add_reason(shard: Shard, import_record: ImportRecord) -> ImportRecord: ...
@overload
def _add_reason(shard: Shard, import_record: ImportRecord | None) -> ImportRecord | None: ...
def _add_reason(shard: Shard, import_record: ImportRecord | None) -> ImportRecord | None:
    """Add the reason why it is still pending to a pending file's record."""
    if import_record is None or import_record.state != PENDING:
        return import_record
    return replace(import_record, reason=shard.why_pending(import_record.offset))


class LocalReader:
    """See `ShardReader`. `wait_s`: how long a call waits for its shard to catch up."""

    def __init__(self, holder: ShardHolder, wait_s: float = 2.0) -> None:
        self._holder, self._wait_s = holder, wait_s

    async def state(self, shard: int, first_key: bytes, offset: int) -> MessageState | None:
        return self._with_reason(first_key, await (await self._reads_after(shard, offset)).state(first_key))

    async def messages_by_name(
        self, shard: int, names: Sequence[bytes], offset: int | None = None
    ) -> list[NamedMessage | None]:
        if offset is None:
            await self._catch_up(shard)
        else:
            await self._reads_after(shard, offset)
        local_shard = self._shard(shard)
        pairs = zip(names, local_shard.store.names(names), strict=True)
        holders = {name: holder for name, holder in pairs if holder is not None}
        states = await Reads(local_shard).heads([holder[:KEY_BYTES] for holder in holders.values()])
        messages = {
            name: NamedMessage(holder[KEY_BYTES:], state)
            for (name, holder), state in zip(holders.items(), states, strict=True)
            if state is not None
        }
        return [messages.get(name) for name in names]

    def _with_reason(self, first_key: bytes, state: MessageState | None) -> MessageState | None:
        """To the state of an overdue message, add the trouble that its topic has."""
        if state is None or state.status != "scheduled":
            return state
        now = self._holder.clock()
        if state.attempt == 0 and due_of(first_key) > now:
            return state
        trouble = self._holder.topic_states.trouble(state.topic, now)
        return state if trouble is None else replace(state, reason=trouble)

    async def when_ended(self, shard: int, first_keys: Sequence[bytes], offset: int) -> list[int]:
        return await (await self._reads_after(shard, offset)).when_ended(first_keys)

    async def topics(self, shard: int, first_keys: Sequence[bytes], offset: int) -> list[str | None]:
        return await (await self._reads_after(shard, offset)).topics(first_keys)

    async def holder(self, shard: int, name: bytes) -> bytes | None:
        await self._catch_up(shard)
        first_key = self._holder_of(shard, name)
        if first_key is None:  # only sure once the log's end is sure: a former leader may report a lower end
            try:
                await self._catch_up(shard, sure=True)
            except LogFailed as error:
                raise Unavailable(f"shard {shard} may not have reached the end of its log: {error.detail}") from error
            first_key = self._holder_of(shard, name)
        return first_key

    async def topic_count(self, shard: int, topic: str) -> TopicCount | None:
        await self._catch_up(shard)
        local_shard = self._shard(shard)
        store = local_shard.store
        if 0 < store.delay_files.unread() <= _UNREAD:
            try:
                await complete_windows(store, store.delay_files.rowless_counts())
            except DamagedFile as error:
                local_shard.lose(store, error)
                raise Unavailable(f"shard {shard}: {error}", retry_after_s=5) from error
        return self._shard(shard).store.topic_counts.of(topic)

    async def import_record(self, shard: int, command_offset: int, offset: int) -> ImportRecord | None:
        await self._reads_after(shard, offset)
        local_shard = self._shard(shard)
        return _add_reason(local_shard, local_shard.store.imports.get(command_offset))

    async def import_of(self, shard: int, sha256: str, offset: int) -> ImportRecord | None:
        await self._reads_after(shard, offset)
        local_shard = self._shard(shard)
        store = local_shard.store
        (command_offset,) = store.contents([sha256])
        return None if command_offset is None else _add_reason(local_shard, store.imports.get(command_offset))

    async def imports(
        self, shard: int, state: str | None, below: str = "", limit: int | None = None, after: int | None = None
    ) -> tuple[int, list[ImportRecord]]:
        count, records = 0, list[ImportRecord]()
        last = -1 if after is None else after
        while True:
            local_shard = self._shard(shard)  # again for each part, because the shard may have been closed
            imports = local_shard.store.imports
            if state == PENDING:
                part, next_last = [one for one in imports.pending.values() if one.offset > last], None
            else:
                part, next_last = imports.part(last, _TOGETHER, below)
            for record in part:
                if (state is None or record.state == state) and record.import_command.path.startswith(below):
                    count += 1
                    if limit is None or len(records) < limit:
                        records.append(_add_reason(local_shard, record))
            if after is not None and len(records) == limit:
                return len(records), records
            if next_last is None:
                return count, records
            last = next_last
            await asyncio.sleep(0)  # decoding the files of a year takes longer than the event loop may be blocked

    async def imported_ids(self, shard: int, command_offset: int, first: int, most: int) -> bytes | None:
        await self._reads_after(shard, command_offset)
        local_shard = self._shard(shard)
        store = local_shard.store
        import_record = store.imports.get(command_offset)
        if import_record is None:
            return None
        if import_record.state == PENDING:
            raise Unavailable(f"{import_record.import_command.path} is being imported")
        if import_record.state == REJECTED:
            raise Rejected("no_ids", f"{import_record.import_command.path} was rejected: {import_record.reason}", "id")
        command, codec = import_record.import_command, local_shard.replica.ids
        rows = range(first, min(first + most, command.rows))
        if not rows:
            return b""
        from duemq.storage.delay_files.imported_file import ids_of  # pyarrow: see about.py

        for file in sorted(store.delay_files.of(command.window), key=lambda file: file.about.offset is None):
            if file.about.offset not in (None, command_offset):
                continue
            try:
                ids = await in_thread(ids_of, store.path / file.name, file.about, codec, command_offset, rows)
            except DamagedFile as error:
                if file in store.delay_files.of(command.window):
                    local_shard.lose(store, error)
                raise Unavailable(f"shard {shard}: {error}", retry_after_s=5) from error
            if ids is not None:
                return ids
        raise Rejected(
            "no_ids", f"{command.path} is no longer kept: its messages are due, or many of them were cancelled", "id"
        )

    async def search(self, query: Query, after: Mapping[int, bytes]) -> Mapping[int, SearchPart]:
        await asyncio.gather(*map(self._catch_up, after))
        return {shard: await Reads(self._shard(shard)).find(query, start) for shard, start in after.items()}

    def _shard(self, number: int) -> Shard:
        shard = self._holder.shards.get(number)
        if shard is None or shard.rebuilding or shard.stopped:
            raise Unavailable(f"shard {number} cannot be read here")
        return shard

    def _holder_of(self, shard: int, name: bytes) -> bytes | None:
        (holder,) = self._shard(shard).store.names([name])
        return None if holder is None else holder[:KEY_BYTES]

    async def _reads_after(self, shard: int, offset: int) -> Reads:
        """The shard's reads, once the command at `offset` is applied."""
        if not await self._shard(shard).progress.wait_until_applied(offset, self._wait_s):
            raise Unavailable(f"shard {shard} is catching up")
        return Reads(self._shard(shard))

    async def _catch_up(self, shard: int, *, sure: bool = False) -> None:
        """Wait until every command that is in the log now is applied."""
        bus = self._holder.bus
        end = await (bus.sure_end(BUFFER, shard) if sure else bus.end_offset(BUFFER, shard))
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + self._wait_s, _LOOK_AGAIN_S
        while True:
            progress = self._shard(shard).progress
            if progress.applied >= end or await self._only_markers_before(end, bus, shard, progress.applied):
                return
            progress.check()
            left = deadline - loop.time()
            if left <= 0:
                raise Unavailable(f"shard {shard} is catching up")
            await progress.wait_until_applied(end - 1, min(left, pause))
            pause = min(2 * pause, _LOOK_LATER_S)  # many callers may wait, and each check reads the log

    async def _only_markers_before(self, end: int, bus: Bus, shard: int, applied: int) -> bool:
        """Whether no commands are left before `end`: transactions of other producers use offsets that are never
        read."""
        if bus.reach(BUFFER, shard) < end:
            return False
        left = await bus.read(BUFFER, shard, applied, 1)
        return not left or left[0].offset >= end
