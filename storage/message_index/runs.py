"""Sorted runs of the index: entries in pages, and the merging of runs.

An entry in a run has 36 bytes: its hash and its place (`model/messages/place.py`).

    page = number of entries in the whole run (u32) | n hashes (u64) | n places: all first bytes, all second bytes, ...

A page has up to 256 entries. Because the places are transposed, zstd compresses each entry to about 18 bytes.

Each run belongs to a group, which is dropped as a whole. A group is a class of waiting times, in powers of two of
windows, and a bucket of placement times, which is a quarter as long as the longest wait in its class.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from duemq.model.messages.place import LATEST_MS, PLACE_BYTES
from duemq.model.timing import WINDOW_MS
from duemq.storage.keyspace import U32
from duemq.storage.message_index.terms import ENTRY_BYTES, HASH_BYTES

PAGE_ENTRIES = 256

_PLACED = np.dtype([("hash", ">u8"), ("placed", ">u8"), ("due", ">u8"), ("offset", ">u8"), ("row", ">u4")])
_WRITTEN = np.dtype([("hash", ">u8"), ("due", ">u8"), ("offset", ">u8"), ("row", ">u4")])
_LOWEST_CLASS = 3  # waits of up to 7 windows are one class

Entries = npt.NDArray[np.void]
"""Shape (n,), dtype `_PLACED`."""


class RunGroup(NamedTuple):
    """Identifies runs that are dropped together."""

    wait_class: int
    bucket: int

    @property
    def end_ms(self) -> int:
        """The end (ms) of the time in which its rows were placed."""
        return (self.bucket + 1) * _span(self.wait_class) * WINDOW_MS

    @property
    def last_window(self) -> int:
        """The start (ms) of the last window in which its rows may be due."""
        return self.end_ms + ((1 << self.wait_class) - 2) * WINDOW_MS


def _span(wait_class: int) -> int:
    """The length of a bucket, in windows."""
    return 1 << (wait_class - 2)


def first_kept_bucket(wait_class: int, horizon: int) -> int:
    """The first bucket of a class that may have rows due at or after `horizon` ms."""
    return max((horizon // WINDOW_MS - (1 << wait_class) + 1) // _span(wait_class), 0)


def written_entries(raw: bytes, placed_ms: int) -> Entries:
    """The entries as a cycle wrote them (`terms.py`), with the placement time added."""
    written = np.frombuffer(raw, _WRITTEN)
    entries = np.empty(len(written), _PLACED)
    for name in _WRITTEN.names or ():
        entries[name] = written[name]
    entries["placed"] = LATEST_MS - placed_ms
    return entries


def in_written(raw: bytes, hash_: bytes) -> Iterator[bytes]:
    """The keys in those of a cycle's entries that have this hash."""
    at = raw.find(hash_)
    while at >= 0:
        if at % ENTRY_BYTES == 0:
            yield raw[at + HASH_BYTES : at + ENTRY_BYTES]
        at = raw.find(hash_, at + 1)


def merge(parts: Sequence[Entries]) -> Entries:
    """The entries of all parts in order, without repetitions."""
    entries = np.concatenate(parts, dtype=_PLACED)  # without the dtype, it would get the machine's byte order
    entries = entries[np.argsort(entries["hash"].astype(np.uint64), kind="stable")]
    hashes = entries["hash"]
    same = hashes[1:] == hashes[:-1]
    if not same.any():
        return entries
    repeated = np.zeros(len(entries), np.bool_)
    repeated[1:] |= same
    repeated[:-1] |= same
    some = entries[repeated]
    columns = [some[name].astype(np.uint64) for name in ("row", "offset", "due", "placed", "hash")]
    entries[repeated] = some[np.lexsort(columns)]
    twice = np.zeros(len(entries), np.bool_)
    twice[1:] = entries[1:] == entries[:-1]
    return entries[~twice]


def groups_of(entries: Entries) -> Iterator[tuple[RunGroup, Entries]]:
    """The entries in each group, in the given order."""
    placed = (LATEST_MS - entries["placed"].astype(np.uint64)).astype(np.int64) // WINDOW_MS
    waits = np.maximum(entries["due"].astype(np.int64) // WINDOW_MS - placed, 0)
    classes = np.maximum(np.frexp(waits.astype(np.float64))[1], _LOWEST_CLASS).astype(np.int64)
    buckets = placed >> (classes - 2)
    numbers = classes << 32 | buckets
    for number in np.unique(numbers).tolist():
        yield RunGroup(number >> 32, number & 0xFFFF_FFFF), entries[numbers == number]


def pages_of(entries: Entries) -> Iterator[tuple[bytes, bytes]]:
    """The pages of a run, with the suffixes of their keys. The first suffix is below any hash."""
    count = U32.pack(len(entries))
    raw = entries.view(np.uint8).reshape(len(entries), _PLACED.itemsize)
    for number, start in enumerate(range(0, len(entries), PAGE_ENTRIES)):
        part = raw[start : start + PAGE_ENTRIES]
        hashes = part[:, :HASH_BYTES].tobytes()
        first = hashes[:HASH_BYTES] if number else bytes(HASH_BYTES)
        yield first + U32.pack(number), count + hashes + part[:, HASH_BYTES:].T.tobytes()


def count_in(page: bytes) -> int:
    """How many entries the run of a page has."""
    return int(U32.unpack_from(page)[0])


def entries_in(page: bytes) -> Entries:
    """All entries of a page."""
    count = _size(page)
    entries = np.empty((count, _PLACED.itemsize), np.uint8)
    raw = np.frombuffer(page, np.uint8, offset=U32.size)
    split = count * HASH_BYTES
    entries[:, :HASH_BYTES] = raw[:split].reshape(count, HASH_BYTES)
    entries[:, HASH_BYTES:] = raw[split:].reshape(PLACE_BYTES, count).T
    return entries.reshape(-1).view(_PLACED)


def in_page(page: bytes, hash_: bytes) -> list[bytes]:
    """The places of the entries with this hash, in order."""
    count = _size(page)
    if page.find(hash_, U32.size, U32.size + count * HASH_BYTES) < 0:  # as for most pages; ten times as fast as numpy
        return []
    hashes = np.frombuffer(page, ">u8", count, U32.size).astype(np.uint64)
    number = np.uint64(int.from_bytes(hash_, "big"))
    start, end = np.searchsorted(hashes, number, "left"), np.searchsorted(hashes, number, "right")
    if start == end:
        return []
    places = np.frombuffer(page, np.uint8, offset=U32.size + count * HASH_BYTES).reshape(PLACE_BYTES, count)
    raw = places[:, start:end].T.tobytes()
    return [raw[at : at + PLACE_BYTES] for at in range(0, len(raw), PLACE_BYTES)]


def _size(page: bytes) -> int:
    return (len(page) - U32.size) // _PLACED.itemsize
