"""The key of a pending message: `due_ms | offset | row`, 20 bytes, big endian, so that byte order is delivery order.

* `due_ms` (u64): when the message is due, epoch milliseconds.
* `offset` (u64): the offset of the command that set this key (its schedule, or its latest move).
* `row` (u32): the row in an imported file; 0 for every message that came as a command.

Keys are passed as `bytes` on hot paths; only the functions in this module know the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

import numpy as np
import numpy.typing as npt

KEY = Struct(">QQI")
KEY_BYTES = KEY.size
LOWEST = b"\x00" * KEY_BYTES
HIGHEST = b"\xff" * KEY_BYTES

make_key = KEY.pack
read_key = KEY.unpack

_FEW = 24  # up to this many keys, a plain loop is faster than numpy's fixed cost per call

KEY_DTYPE = np.dtype([("due", ">u8"), ("offset", ">u8"), ("row", ">u4")])


def due_of(key: bytes) -> int:
    """The due time (ms) of one key."""
    return int.from_bytes(key[:8], "big")


def offset_of(key: bytes) -> int:
    """The offset of the command that set this key."""
    return int.from_bytes(key[8:16], "big")


def last_key_at(due_ms: int) -> bytes:
    """The highest key that is due at or before `due_ms`."""
    return KEY.pack(due_ms, 0xFFFF_FFFF_FFFF_FFFF, 0xFFFF_FFFF)


def first_key_at(due_ms: int) -> bytes:
    """The lowest key that is due at or after `due_ms`."""
    return KEY.pack(due_ms, 0, 0)


def dues_of(keys: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """The due times (ms) of many keys, shape (n,)."""
    return np.frombuffer(b"".join(keys), KEY_DTYPE)["due"].astype(np.int64)


def checksum(keys: Sequence[bytes]) -> int:
    """A 64-bit sum over a set of keys that does not depend on their order and can be added to and subtracted from.

    Each key is mixed with splitmix64's finaliser, so two replicas with different keys are very unlikely to agree.
    """
    if len(keys) <= _FEW:
        return _mix_few(keys)
    parts = np.frombuffer(b"".join(keys), KEY_DTYPE)
    return _mix(parts["due"].astype(np.uint64), parts["offset"].astype(np.uint64), parts["row"].astype(np.uint64))


def checksum_of_rows(dues: npt.NDArray[np.int64], offset: int, first_row: int) -> int:
    """`checksum` of the keys of an imported file's rows from `first_row` on, without building the keys."""
    rows = np.arange(first_row, first_row + len(dues), dtype=np.uint64)
    return _mix(dues.astype(np.uint64), np.array([offset], np.uint64), rows)


def _mix(dues: npt.NDArray[np.uint64], offsets: npt.NDArray[np.uint64], rows: npt.NDArray[np.uint64]) -> int:
    """The sum of the mixed keys. Changes `dues` in place."""
    x = dues
    x ^= offsets * np.uint64(0x9E3779B97F4A7C15)
    x ^= rows << np.uint64(40)
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return int(x.sum(dtype=np.uint64))


def _mix_few(keys: Sequence[bytes]) -> int:
    """`_mix` without numpy's fixed cost per call."""
    total, mask = 0, CHECKSUM_MASK
    for key in keys:
        due, offset, row = read_key(key)
        x = due ^ (offset * 0x9E3779B97F4A7C15 & mask) ^ (row << 40 & mask)
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
        x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
        total += x ^ x >> 31
    return total & mask


CHECKSUM_MASK = 0xFFFF_FFFF_FFFF_FFFF
