"""Distinguishes a torn end of RocksDB's write-ahead log from damage.

A power cut may leave the last write incomplete: pages that did not reach the disk read as zeros, even if later pages
did reach it. RocksDB treats this as damage and refuses to open, unless the file merely ends too early. This module
treats it as a torn end, which may be cut off, if

* the first unreadable fragment has a missing sector: 512 zeros, or zeros up to a sector's end;
* no record begins after that fragment. The log writes one record, syncs it, and only then writes the next. So after the
  last acknowledged record there is at most one incomplete record.

Everything else is damage. One kind of damage cannot be distinguished from a torn end: zeros in a sector of the last
record, after it was acknowledged.

The format is described in https://github.com/facebook/rocksdb/wiki/Write-Ahead-Log-File-Format
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_BLOCK_BYTES, _SECTOR_BYTES = 32 << 10, 512
_HEADER = struct.Struct("<IHB")  # masked crc32c of kind and payload, length of the payload, kind
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_MASK = 0xA282EAD8


class _Fragment(NamedTuple):
    """A part of a record. `good`: it is intact. `end`: if it is intact, where the next fragment begins."""

    start: int
    end: int
    kind: int
    good: bool


def cut_torn_end(folder: Path) -> int:
    """Durably cut off an incomplete last write; return its size in bytes, 0 if the log has no torn end.

    Use it for a log that RocksDB refuses to open and that no process has open. Raises OSError.
    """
    logs = [path for path in sorted(folder.glob("*.log"), key=lambda path: int(path.stem)) if path.stat().st_size]
    if not logs:
        return 0
    content = logs[-1].read_bytes()
    whole = _torn_at(content)
    if whole is None:
        return 0
    with logs[-1].open("r+b") as file:
        file.truncate(whole)
        os.fsync(file.fileno())
    return len(content) - whole


def _torn_at(content: bytes) -> int | None:
    """The end of the intact records before a torn end; None if the end is damaged instead of torn."""
    whole = start = 0  # the end of the last intact record; the start of the current one
    fragments = _fragments(content)
    for fragment in fragments:
        if not fragment.good:
            break
        if fragment.kind in (_FULL, _FIRST):
            start = fragment.start
        if fragment.kind not in (_FIRST, _MIDDLE):
            whole = fragment.end
    else:
        return None
    if not _has_missing_sector(content, fragment):
        return None
    begins = (later.kind in (_FULL, _FIRST) for later in fragments if later.good and later.start > start)
    return None if any(begins) else whole


def _fragments(content: bytes) -> Iterator[_Fragment]:
    """All fragments of a file. After a bad fragment, reading continues at the next block, because each block begins
    with a fragment."""
    from aiokafka.record.util import calc_crc32c  # imported here because only this function needs it

    at = 0
    while at + _HEADER.size <= len(content):
        block_end = min(at - at % _BLOCK_BYTES + _BLOCK_BYTES, len(content))
        if block_end - at < _HEADER.size:
            at = block_end  # the rest of the block is padded with zeros
            continue
        checksum, length, kind = _HEADER.unpack_from(content, at)
        end = at + _HEADER.size + length
        good = kind != 0 and end <= block_end and _mask(calc_crc32c(content[at + 6 : end])) == checksum
        yield _Fragment(at, end, kind, good)
        at = end if good else block_end


def _mask(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def _has_missing_sector(content: bytes, fragment: _Fragment) -> bool:
    """Whether a fragment contains, or begins in, a sector of zeros."""
    block_end = fragment.start - fragment.start % _BLOCK_BYTES + _BLOCK_BYTES
    end = min(fragment.end, block_end, len(content)) if fragment.kind else min(block_end, len(content))
    at = fragment.start
    while at < end:
        next_sector = at - at % _SECTOR_BYTES + _SECTOR_BYTES
        part = content[at : min(next_sector, end)]
        if next_sector <= end and not any(part):
            return True
        at = next_sector
    return False
