"""Reads messages before they are needed: in bounded amounts, and sealed ones in a thread, because reading a row from a
delay file takes milliseconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from duemq.delay.core.command_batch import CommandBatch, Other, View
from duemq.delay.threads import in_thread
from duemq.model.errors import CorruptStore, DamagedFile
from duemq.model.messages.ended import EndedMessage
from duemq.model.messages.key import KEY_BYTES, first_key_at, last_key_at
from duemq.model.messages.message import CANCEL, Change
from duemq.model.messages.plain import ByName
from duemq.model.messages.row import without_payload
from duemq.storage.shard.store import ROWS_TOGETHER, ShardStore

_MAX_BYTES = 32 << 20  # in memory, and in row groups of files: reading takes 0.1 s, which delays due messages
_COPIES = 6  # of a changed row: the old and the new row, and copies in the batches and memory of the store and the log
_ALL = 1 << 62
_CHANGES = 4  # the most changes of one message in a cycle, because each of them writes its row again
_SLICE = 256  # commands examined together; further ones are examined only if bytes are left to read


class PrefetchedView(View):
    """A view of a store, with the sealed messages that `read` has loaded.

    Delay files never change, so a row that was read remains valid even if its file is removed. Whether the message is
    still pending is looked up on each call.
    """

    def __init__(self, store: ShardStore) -> None:
        self._store, self._version = store, store.delay_files.version
        self._rows: dict[bytes, bytes | None] = {}
        self._heads: set[bytes] = set()  # keys whose rows in `_rows` end before the payload
        self._rows_of_ended: dict[bytes, bytes] = {}

    async def read(self, keys: Sequence[bytes], most: int = _ALL, *, payload: bool = True) -> tuple[int, int]:
        """Read the rows of those keys whose messages may be in a file, in order, while their row groups fit into `most`
        bytes. Returns the number of keys done, and the number of bytes. Raises DamagedFile.

        Without `payload` the rows end before the payload, which makes reading three times as fast.
        """
        delay_files = self._store.delay_files
        while True:
            version = delay_files.version
            sealed = set(self._store.sealed_keys(keys))
            lookups = [
                (key, delay_files.files_of(key))
                for key in keys
                if key in sealed and (not self._rows.get(key) or (payload and key in self._heads))
            ]
            if not lookups:
                return len(keys), 0
            try:
                rows, count, size = await in_thread(
                    partial(delay_files.reader.rows_in_order, lookups, most, payload=payload)
                )
            except DamagedFile:
                if version == delay_files.version:
                    raise
                continue  # a file was removed, because its rows are in the store or in another file now
            keys_read = [key for key, _ in lookups[:count]]
            self._rows.update((key, rows.get(key)) for key in keys_read)
            (self._heads.difference_update if payload else self._heads.update)(keys_read)
            self._version = version
            return (len(keys) if count == len(lookups) else keys.index(lookups[count][0])), size

    def rows(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if self._version != self._store.delay_files.version:  # keys that were missing may be in a new file
            self._rows = {key: row for key, row in self._rows.items() if row is not None}
        return self._store.rows(keys, self._rows)

    def heads(self, keys: Sequence[bytes]) -> list[tuple[bytes, EndedMessage | None, bytes | None]]:
        """The keys, the endings of their messages, and their rows, all without payloads. Only a few payloads are in
        memory at a time."""
        heads: list[tuple[bytes, EndedMessage | None, bytes | None]] = []
        for start in range(0, len(keys), ROWS_TOGETHER):
            some = keys[start : start + ROWS_TOGETHER]
            for key, ended, row in zip(some, self.endings(some), self.rows(some), strict=True):
                cut = ended and ended._replace(row=ended.row and without_payload(ended.row))
                heads.append((key, cut, row and without_payload(row)))
        return heads

    async def read_endings(self, keys: Sequence[bytes]) -> None:
        """Read the rows of those messages whose endings lack them, because they were cancelled in delay files.

        Raises DamagedFile, and CorruptStore if no file has such a row.
        """

        def rowless() -> list[bytes]:
            return [key for key, ended in zip(keys, self.endings(keys), strict=True) if ended and not ended.row]

        await self._read_rows_of_ended(rowless)

    async def read_unread(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The rows, without payloads, of messages that were cancelled in delay files without reading their rows, even
        if their endings are forgotten. Raises the errors of `read_endings`."""

        def missing() -> list[bytes]:
            return [key for key in self._store.unread_keys(keys) if key not in self._rows_of_ended]

        await self._read_rows_of_ended(missing)
        return {key: self._rows_of_ended[key] for key in self._store.unread_keys(keys)}

    async def _read_rows_of_ended(self, unread: Callable[[], list[bytes]]) -> None:
        """Read rows until `unread` returns no more keys."""
        while rowless := unread():
            delay_files = self._store.delay_files
            version = delay_files.version
            try:
                by_file = delay_files.by_file(rowless)
                self._rows_of_ended |= await in_thread(partial(delay_files.reader.rows, by_file, payload=False))
            except DamagedFile:
                if version == delay_files.version:
                    raise
                continue  # a file was removed: by then the endings had their rows
            if version == delay_files.version and (missing := rowless - self._rows_of_ended.keys()):
                raise CorruptStore(f"message {min(missing).hex()} was cancelled in a delay file, and is in none")

    def endings(self, keys: Sequence[bytes]) -> list[EndedMessage | None]:
        rows = self._rows_of_ended
        return [
            ended._replace(row=rows[key]) if ended is not None and not ended.row and key in rows else ended
            for key, ended in zip(keys, self._store.endings(keys), strict=True)
        ]

    def current_keys(self, first_keys: Sequence[bytes]) -> list[bytes | None]:
        return self._store.current_keys(first_keys)

    def names(self, names: Sequence[bytes]) -> list[bytes | None]:
        return self._store.names(names)

    def contents(self, sums: Sequence[str]) -> list[int | None]:
        return self._store.contents(sums)


class CycleView(PrefetchedView):
    """A view of the store for one cycle.

    Only cycles change which messages are pending, so nothing must be read twice: a row may move during the cycle, but
    it does not change.
    """

    def __init__(self, store: ShardStore) -> None:
        super().__init__(store)
        self._near: dict[bytes, bytes] = {}
        self._ended: dict[bytes, EndedMessage | None] = {}

    async def look_up(self, keys: Sequence[bytes], most: int = _ALL) -> tuple[int, int]:
        """Look up which of the keys are in files, in order, without reading rows: `rows` then returns empty ones.

        Returns the number of keys done, at least one, and the cost in bytes. Raises DamagedFile.
        """
        delay_files = self._store.delay_files
        while True:
            version = delay_files.version
            lookups = [(key, delay_files.files_of(key)) for key in self._store.undropped_keys(keys)]
            if not lookups:
                return len(keys), 0
            try:
                present_keys, count, size = await in_thread(delay_files.reader.found_in_order, lookups, most)
            except DamagedFile:
                if version == delay_files.version:
                    raise
                continue  # a file was removed, because its rows are in the store or in another file now
            for key, _ in lookups[:count]:
                if not self._rows.get(key):
                    self._rows[key] = b"" if key in present_keys else None
            self._version = version
            return (len(keys) if count == len(lookups) else keys.index(lookups[count][0])), size

    def read_near(self, keys: Sequence[bytes], most: int) -> tuple[list[bytes], int, int]:
        """Read the rows that are in RocksDB, in order, until changing them would take `most` bytes.

        Returns the keys without a row in RocksDB, the number of keys done (at least one), and the number of bytes.
        """
        missing: list[bytes] = []
        done = size = 0
        while done < len(keys) and (size < most or not done):
            some = keys[done : done + ROWS_TOGETHER]
            for key, row in zip(some, self._store.near(some), strict=True):
                if row is None:
                    missing.append(key)
                else:
                    self._near[key] = row
                    size += _COPIES * len(row)
            done += len(some)
        return missing, done, size

    def read_ended(self, keys: Sequence[bytes], most: int) -> tuple[int, int]:
        """Read the endings of messages, in order, until changing them would take `most` bytes: the endings of dead
        letters have payloads. Returns the number of keys done (at least one), and the number of bytes."""
        done = size = 0
        while done < len(keys) and (size < most or not done):
            some = keys[done : done + ROWS_TOGETHER]
            size += _COPIES * sum(len(ended.row) for ended in self.endings(some) if ended is not None)
            done += len(some)
        return done, size

    def endings(self, keys: Sequence[bytes]) -> list[EndedMessage | None]:
        missing = [key for key in keys if key not in self._ended]
        self._ended.update(zip(missing, super().endings(missing), strict=True))
        return [self._ended[key] for key in keys]

    def rows(self, keys: Sequence[bytes]) -> list[bytes | None]:
        rows = [self._near.get(key) or self._rows.get(key) for key in keys]
        if missing := [key for key, row in zip(keys, rows, strict=True) if row is None]:
            file_rows = dict(zip(missing, super().rows(missing), strict=True))
            rows = [file_rows[key] if row is None else row for key, row in zip(keys, rows, strict=True)]
        return rows


class _Reference(NamedTuple):
    """A key under which a file may have the message that the command at `offset` changes. `whole`: its row is
    needed."""

    offset: int
    key: bytes
    whole: bool


async def read_for(batch: CommandBatch, store: ShardStore, *, whole: bool) -> tuple[CommandBatch, View]:
    """Read the commands' messages into a view. Returns the commands and the view.

    Without `whole`, only the first of many commands are returned, but at least one: its messages are read whatever
    their size, or the shard could get stuck at it.
    """
    if not batch.others:
        return batch, store
    batch = batch if whole else _few_of_each(batch)
    view, left = CycleView(store), _ALL if whole else _MAX_BYTES
    others = iter(batch.others.items())
    while some := list(islice(others, _SLICE)):
        if left <= 0:
            return batch.before(some[0][0]), view
        references, end, size = _read_near(view, some, store, left)
        left -= size
        undone, size = await _read_files(view, references, max(left, 0))
        if undone is not None:
            if undone > batch.commands[0].offset:
                return batch.before(undone), view
            await _read_files(view, [one for one in references if one.offset == undone], _ALL)
            return batch.before(undone + 1), view
        left -= size
        if end is not None:
            return batch.before(end), view
    return batch, view


def _few_of_each(batch: CommandBatch) -> CommandBatch:
    """The commands before the first one that would exceed the changes allowed for one message in a cycle."""
    counts = Counter[bytes]()
    for offset, other in batch.others.items():
        if isinstance(other, (Change, ByName)):
            message = other.first_key if isinstance(other, Change) else other.name
            counts[message] += 1
            if counts[message] > _CHANGES:
                return batch.before(offset)
    return batch


def _read_near(
    view: CycleView, others: Sequence[tuple[int, Other]], store: ShardStore, most: int
) -> tuple[list[_Reference], int | None, int]:
    """Read those of the commands' messages that are in RocksDB, for the first commands, within a limit in bytes.

    Returns the places where files may have the other messages, in the commands' order; the offset of the first command
    not done, if any; and the number of bytes.
    """
    firsts: dict[bytes, int] = {}
    whole: set[bytes] = set()
    for offset, other in others:
        if isinstance(other, Change):
            first_key = other.first_key
        elif isinstance(other, ByName) and (holder := store.names([other.name])[0]) is not None:
            first_key = holder[:KEY_BYTES]
        else:
            continue
        firsts.setdefault(first_key, offset)
        if other.kind != CANCEL:
            whole.add(first_key)
    keys = list(firsts)
    missing, done, size = view.read_near(keys, most)
    ends = [firsts[keys[done]]] if done < len(keys) else []
    moves = zip(missing, store.current_keys(missing), strict=True) if missing else ()
    moved = {first: now for first, now in moves if now is not None}
    elsewhere, done, more = view.read_near(list(moved.values()), max(most - size, 1))
    if done < len(moved):
        ends.append(firsts[list(moved)[done]])
    size, not_near = size + more, set(elsewhere)
    rowless = [first for first in missing if first not in moved or moved[first] in not_near]
    done, more = view.read_ended([moved.get(first, first) for first in rowless], max(most - size, 1))
    if done < len(rowless):
        ends.append(firsts[rowless[done]])
    end = min(ends, default=None)
    if not store.delay_files:
        return [], end, size + more
    references = [_Reference(firsts[first], first, first in whole) for first in missing]
    references += [_Reference(firsts[first], now, first in whole) for first, now in moved.items() if now in not_near]
    return sorted(one for one in references if end is None or one.offset < end), end, size + more


async def _read_files(view: CycleView, references: Sequence[_Reference], most: int) -> tuple[int | None, int]:
    """Read the first references from files, within a cost of `most` bytes.

    Returns the offset of the first command not done, if any, and the cost.
    """
    undone: list[int] = []
    size = 0
    for whole, read, copies in ((False, view.look_up, 1), (True, view.read, _COPIES)):
        if some := [one for one in references if one.whole is whole]:
            done, cost = await read([one.key for one in some], max(most - size, 0) // copies)
            size += cost * copies
            undone += [some[done].offset] if done < len(some) else []
    return min(undone, default=None), size


async def prefetch_part(store: ShardStore, after: bytes, through: bytes) -> None:
    """Read the files that `ShardStore.scan_part` needs, in a thread. Raises DamagedFile."""
    delay_files = store.delay_files
    window = delay_files.next_after(after) if delay_files else None
    if window is None or first_key_at(window) > through or after < last_key_at(window - 1):
        return
    version = delay_files.version
    try:
        for file in list(delay_files.of(window)):
            if not delay_files.reader.has_part(file, after):
                await in_thread(delay_files.reader.part, file, after, 1)
    except DamagedFile:
        if version == delay_files.version:
            raise
