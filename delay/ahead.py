"""Sealed messages are read in a thread before they are needed: a row in a delay file takes milliseconds."""

from __future__ import annotations

from collections.abc import Sequence

from duemq.delay.batch import Batch, View
from duemq.delay.threads import in_thread
from duemq.model.errors import DamagedFile
from duemq.model.key import KEY_BYTES, first_key_at, last_key_at
from duemq.model.message import Change
from duemq.model.plain import ByName
from duemq.storage.rows import Ended
from duemq.storage.store import ShardStore

_MOST_KEYS = 32  # about 0.1 s of reading: so long what is due meanwhile waits


class ReadAhead(View):
    """A store whose sealed messages were read before, as far as `read` was asked for them.

    What a file holds never changes, so a row found stays right whatever happens to the file; whether its message is
    still pending is looked up when it is asked for.
    """

    def __init__(self, store: ShardStore) -> None:
        self._store, self._version = store, store.far.version
        self._known: dict[bytes, bytes | None] = {}

    async def read(self, keys: Sequence[bytes]) -> None:
        """Read those of the keys whose message may be in a file. Raises DamagedFile."""
        store = self._store
        while wanted := store.far.by_file(key for key in store.sealed(keys) if self._known.get(key) is None):
            version = store.far.version
            try:
                found = await in_thread(store.far.reader.rows, wanted)
            except DamagedFile:
                if version == store.far.version:
                    raise
                continue  # a file was removed, for its rows are elsewhere
            self._known.update((key, found.get(key)) for _, some in wanted for key in some)
            self._version = version
            return

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
    speak: list[tuple[int, bytes]] = []
    for offset, other in batch.others.items():
        if isinstance(other, Change):
            speak.append((offset, other.first_key))
        elif isinstance(other, ByName) and (holder := store.names([other.name])[0]) is not None:
            speak.append((offset, holder[:KEY_BYTES]))
    moved = store.moved([first for _, first in speak])
    speak += [(offset, now) for (offset, _), now in zip(speak, moved, strict=True) if now is not None]
    sealed = set(store.sealed([key for _, key in speak]))
    wanted = sorted(some for some in speak if some[1] in sealed)
    if len(wanted) > _MOST_KEYS and not whole:
        batch = batch.before(wanted[_MOST_KEYS][0])
        wanted = wanted[:_MOST_KEYS]
    ahead = ReadAhead(store)
    await ahead.read([key for _, key in wanted])
    return batch, ahead


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
