"""Sealed messages are read in a thread before they are needed: a row in a delay file takes milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice

from duemq.delay.batch import Batch, Other, View
from duemq.delay.threads import in_thread
from duemq.model.errors import DamagedFile
from duemq.model.key import KEY_BYTES, first_key_at, last_key_at
from duemq.model.message import CANCEL, Change
from duemq.model.plain import ByName
from duemq.storage.rows import Ended
from duemq.storage.store import ShardStore

_MOST_GROUPS = 32  # of rows, in files: less than 0.1 s of reading, and so long what is due meanwhile waits
_HEAD_COST = 1 / 3  # of reading a row group without its payloads
_ALL = 1 << 62
_SLICE = 256  # commands looked at together: the next ones only where reading for these took less than that


class ReadAhead(View):
    """A store whose sealed messages were read before, as far as `read` was asked for them.

    What a file holds never changes, so a row found stays right whatever happens to the file; whether its message is
    still pending is looked up when it is asked for.
    """

    def __init__(self, store: ShardStore) -> None:
        self._store, self._version = store, store.far.version
        self._known: dict[bytes, bytes | None] = {}
        self._heads: set[bytes] = set()  # of these the rows known end before the payload

    async def read(self, keys: Sequence[bytes], most: int = _ALL, *, payload: bool = True) -> tuple[int, int]:
        """Read those of the keys whose message may be in a file, in order, as long as that takes at most so many row
        groups. For how many of the keys it is done, and how many groups it took. Raises DamagedFile.

        Without `payload` rows end before it, which takes a third of the time.
        """
        far = self._store.far
        while True:
            version = far.version
            sealed = set(self._store.sealed(keys))
            wanted = [(key, far.files_of(key)) for key in keys if key in sealed and not self._has(key, payload)]
            if not wanted:
                return len(keys), 0
            try:
                found, count, groups = await in_thread(partial(far.reader.rows_in_order, wanted, most, payload=payload))
            except DamagedFile:
                if version == far.version:
                    raise
                continue  # a file was removed, for its rows are elsewhere
            read = [key for key, _ in wanted[:count]]
            self._known.update((key, found.get(key)) for key in read)
            (self._heads.difference_update if payload else self._heads.update)(read)
            self._version = version
            return (len(keys) if count == len(wanted) else keys.index(wanted[count][0])), groups

    def _has(self, key: bytes, payload: bool) -> bool:
        return self._known.get(key) is not None and not (payload and key in self._heads)

    def rows(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if self._version != self._store.far.version:  # what was in no file may be in a new one
            self._known = {key: row for key, row in self._known.items() if row is not None}
        return self._store.rows(keys, self._known)

    def ended(self, keys: Sequence[bytes]) -> list[Ended | None]:
        return self._store.ended(keys)

    def moved(self, first_keys: Sequence[bytes]) -> list[bytes | None]:
        return self._store.moved(first_keys)

    def names(self, names: Sequence[bytes]) -> list[bytes | None]:
        return self._store.names(names)

    def contents(self, sums: Sequence[str]) -> list[int | None]:
        return self._store.contents(sums)


async def read_for(batch: Batch, store: ShardStore, *, whole: bool) -> tuple[Batch, View]:
    """A view with what the commands speak of; and the commands, if not `whole` then only the first ones of many."""
    if not store.far or not batch.others:
        return batch, store
    ahead, left = ReadAhead(store), float(_ALL if whole else _MOST_GROUPS)
    others = iter(batch.others.items())
    while some := list(islice(others, _SLICE)):
        speak = _spoken_of(some, store)
        # What is cancelled is kept without its payload.
        payload = not all(isinstance(other, Change | ByName) and other.kind == CANCEL for _, other in some)
        cost = 1 if payload else _HEAD_COST
        count, groups = await ahead.read([key for _, key in speak], int(left / cost), payload=payload)
        if count < len(speak):
            return batch.before(speak[count][0]), ahead
        left -= groups * cost
    return batch, ahead


def _spoken_of(others: Sequence[tuple[int, Other]], store: ShardStore) -> list[tuple[int, bytes]]:
    """The keys that commands may find messages under, each with the command's offset, in order."""
    speak: list[tuple[int, bytes]] = []
    for offset, other in others:
        if isinstance(other, Change):
            speak.append((offset, other.first_key))
        elif isinstance(other, ByName) and (holder := store.names([other.name])[0]) is not None:
            speak.append((offset, holder[:KEY_BYTES]))
    moved = store.moved([first for _, first in speak])
    speak += [(offset, now) for (offset, _), now in zip(speak, moved, strict=True) if now is not None]
    return sorted(speak)


async def warm_part(store: ShardStore, after: bytes, through: bytes) -> None:
    """Have the files read in a thread that `ShardStore.scan_part` would read. Raises DamagedFile."""
    far = store.far
    window = far.next_after(after) if far else None
    if window is None or first_key_at(window) > through or after < last_key_at(window - 1):
        return
    version = far.version
    try:
        for file in list(far.of(window)):
            if not far.reader.has_part(file, after):
                await in_thread(far.reader.part, file, after, 1)
    except DamagedFile:
        if version == far.version:
            raise
