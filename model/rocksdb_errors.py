"""Translates RocksDB's errors, for the store and the log."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from duemq.model.errors import CorruptStore, DiskFull, DuemqError, FolderRefused, StoreFailed

_NO_SPACE = ("no space left", "enospc", "max allowed space", "disk quota exceeded")
_IN_USE = ("lock hold by current process", "while lock file", "/lock:")


@contextmanager
def translate_errors(what: object) -> Iterator[None]:
    """Raises RocksDB's errors as duemq's errors, with their cause. `what`: where an error happened, as a path or the
    start of a sentence."""
    try:
        yield
    except DuemqError:
        raise
    except Exception as error:
        raise translate(what, error) from error


def translate(what: object, error: Exception) -> DuemqError:
    """duemq's error for an error from RocksDB. RocksDB raises only plain `Exception`s, so the text decides."""
    text = str(error).lower()
    if any(sign in text for sign in _NO_SPACE) or (isinstance(error, OSError) and error.errno == errno.ENOSPC):
        return DiskFull(f"{what}: the disk is full ({error})")
    if any(sign in text for sign in _IN_USE):
        return FolderRefused(f"{what}: another process (or another part of this one) has it open")
    if "corruption" in text or "checksum mismatch" in text:
        return CorruptStore(f"{what}: {error}. Restore it from a backup.")
    return StoreFailed(f"{what}: {error}")
