"""The notes of `layer.c`, in the order of what they tell of."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

_HEAD = struct.Struct("=4I6Q")


class Kind(IntEnum):
    CREATE = 1  # a file
    FOLDER = 2
    WRITE = 3
    RESIZE = 4
    RENAME = 5
    LINK = 6
    REMOVE = 7
    SYNC_BEGIN = 8
    SYNC_END = 9


class Note(NamedTuple):
    """`inode`: what it is about. `folder` and `name`: where it is from now on, or no longer; `from_*`: where it was.

    Of a write or resize, which is about to be: `offset` and `length`, the `size` before, and the `old` bytes from
    `offset` on that it overwrites or cuts off. Of a sync: `offset` is the same number at its begin and its end.
    """

    kind: Kind
    inode: int
    folder: int
    from_folder: int
    offset: int
    length: int
    size: int
    name: str
    from_name: str
    old: bytes


def read_trace(path: Path) -> Iterator[Note]:
    """All whole notes: the last one may have been cut short."""
    raw = path.read_bytes()
    at = 0
    while at + _HEAD.size <= len(raw):
        kind, name_length, from_length, old_length, *numbers = _HEAD.unpack_from(raw, at)
        name_at = at + _HEAD.size
        from_at = name_at + name_length
        old_at = from_at + from_length
        at = old_at + old_length
        if at > len(raw):
            return
        name, from_name = raw[name_at:from_at].decode(), raw[from_at:old_at].decode()
        inode, folder, from_folder, offset, length, size = numbers
        yield Note(Kind(kind), inode, folder, from_folder, offset, length, size, name, from_name, raw[old_at:at])
