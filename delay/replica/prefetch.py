"""Messages are read before they are needed: in bounded amounts, and sealed ones in a thread, for a row in a delay file
takes milliseconds."""

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

_MAX_BYTES = 32 << 20  # of memory, and of row groups in files: 0.1 s of reading, which delays what is due
_COPIES = 6  # of a row that is changed: as it was, as it is, in the batches and memory of the store, and of the log
_ALL = 1 << 62
_CHANGES = 4  # of one message in a cycle: each writes its row once more
_SLICE = 256  # commands looked at together: the next ones only where these left bytes to read


class PrefetchedView(View):
    """A store whose sealed messages were read before, as far as `read` was asked for them.

    What a file holds never changes, so a row found stays right whatever happens to the file; whether its message is
    still pending is looked up when it is asked for.
    """

    def __init__(self, store: ShardStore) -> None:
        self._store, self._version = store, store.delay_files.version
        self._rows: dict[bytes, bytes | None] = {}
        self._heads: set[bytes] = set()  # keys whose row in `_rows` ends before the payload
        self._rows_of_ended: dict[bytes, bytes] = {}

    async def read(self, keys: Sequence[bytes], most: int = _ALL, *, payload: bool = True) -> tuple[int, int]:
        """Read those of the keys whose message may be in a file, in order, as long as their row groups have at most so
        many bytes. For how many of the keys it is done, and how many bytes it took. Raises DamagedFile.

        Without `payload` rows end before it, which takes a third of the time.
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
                continue  # a file was removed, for its rows are elsewhere
            keys_read = [key for key, _ in lookups[:count]]
            self._rows.update((key, rows.get(key)) for key in keys_read)
            (self._heads.difference_update if payload else self._heads.update)(keys_read)
            self._version = version
            return (len(keys) if count == len(lookups) else keys.index(lookups[count][0])), size

    def rows(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if self._version != self._store.delay_files.version:  # what was in no file may be in a new one
            self._rows = {key: row for key, row in self._rows.items() if row is not None}
        return self._store.rows(keys, self._rows)

    def heads(self, keys: Sequence[bytes]) -> list[tuple[bytes, EndedMessage | None, bytes | None]]:
        """The keys, how their messages ended, and their rows, all without payloads. Few of these are in memory."""
        heads: list[tuple[bytes, EndedMessage | None, bytes | None]] = []
        for start in range(0, len(keys), ROWS_TOGETHER):
            some = keys[start : start + ROWS_TOGETHER]
            for key, ended, row in zip(some, self.endings(some), self.rows(some), strict=True):
                cut = ended and ended._replace(row=ended.row and without_payload(ended.row))
                heads.append((key, cut, row and without_payload(row)))
        return heads

    async def read_endings(self, keys: Sequence[bytes]) -> None:
        """Read what is kept of those of the messages that were cancelled in delay files without their rows.

        Raises DamagedFile, and CorruptStore where no file has a row.
        """

        def rowless() -> list[bytes]:
            return [key for key, ended in zip(keys, self.endings(keys), strict=True) if ended and not ended.row]

        await self._read_rows_of_ended(rowless)

    async def read_unread(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The rows, without payloads, of those of the messages that were cancelled in delay files without their rows,
        also where how they ended is forgotten. Raises what `read_endings` raises."""

        def missing() -> list[bytes]:
            return [key for key in self._store.unread_keys(keys) if key not in self._rows_of_ended]

        await self._read_rows_of_ended(missing)
        return {key: self._rows_of_ended[key] for key in self._store.unread_keys(keys)}

    async def _read_rows_of_ended(self, unread: Callable[[], list[bytes]]) -> None:
        """Read rows until none of these is left."""
        while rowless := unread():
            delay_files = self._store.delay_files
            version = delay_files.version
            try:
                by_file = delay_files.by_file(rowless)
                self._rows_of_ended |= await in_thread(partial(delay_files.reader.rows, by_file, payload=False))
            except DamagedFile:
                if version == delay_files.version:
                    raise
                continue  # a file was removed, and its endings have their rows
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
    """What a cycle reads of its store.

    Only cycles change which messages are pending, so what was read needs no second look: where a row lies may change
    meanwhile, but not the row.
    """

    def __init__(self, store: ShardStore) -> None:
        super().__init__(store)
        self._near: dict[bytes, bytes] = {}
        self._ended: dict[bytes, EndedMessage | None] = {}

    async def look_up(self, keys: Sequence[bytes], most: int = _ALL) -> tuple[int, int]:
        """Look up which of the keys are in files, in order, and read no rows: `rows` gives empty ones.

        For how many of the keys it is done, one at least, and what it cost in bytes. Raises DamagedFile.
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
                continue  # a file was removed, for its rows are elsewhere
            for key, _ in lookups[:count]:
                if not self._rows.get(key):
                    self._rows[key] = b"" if key in present_keys else None
            self._version = version
            return (len(keys) if count == len(lookups) else keys.index(lookups[count][0])), size

    def read_near(self, keys: Sequence[bytes], most: int) -> tuple[list[bytes], int, int]:
        """Read the rows that are in RocksDB, in order, until a change of them takes `most` bytes.

        Gives the keys that have none there, for how many keys it was done (one at least), and how many bytes it takes.
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
        """Read how messages ended, in order, until a change of them takes `most` bytes: dead letters keep their
        payloads. For how many keys it was done (one at least), and how many bytes it takes."""
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
            far_rows = dict(zip(missing, super().rows(missing), strict=True))
            rows = [far_rows[key] if row is None else row for key, row in zip(keys, rows, strict=True)]
        return rows


class _Reference(NamedTuple):
    """A key under which a file may hold what the command at `offset` speaks of; `whole`: its row is needed."""

    offset: int
    key: bytes
    whole: bool


async def read_for(batch: CommandBatch, store: ShardStore, *, whole: bool) -> tuple[CommandBatch, View]:
    """Make a view with what the commands speak of; and return the commands, without `whole` only the first of many.

    At least one command: what the first one speaks of is read whatever it takes, or a shard could stop before it.
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
        undone, size = await _read_far(view, references, max(left, 0))
        if undone is not None:
            if undone > batch.commands[0].offset:
                return batch.before(undone), view
            await _read_far(view, [one for one in references if one.offset == undone], _ALL)
            return batch.before(undone + 1), view
        left -= size
        if end is not None:
            return batch.before(end), view
    return batch, view


def _few_of_each(batch: CommandBatch) -> CommandBatch:
    """The commands before one that changes a message more often than a cycle does."""
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
    """Read what commands speak of and RocksDB holds, of the first ones as long as it has fewer than so many bytes.

    Gives where files may hold the rest, in the commands' order; the offset of the first command for which it was not
    done, if any; and how many bytes it took.
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


async def _read_far(view: CycleView, references: Sequence[_Reference], most: int) -> tuple[int | None, int]:
    """Read what files hold of the first ones, as long as that costs at most so many bytes.

    Gives the offset of the first command for which it was not done, if any, and what it cost.
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
    """Have the files read in a thread that `ShardStore.scan_part` would read. Raises DamagedFile."""
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
