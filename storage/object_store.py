"""Files in an S3-compatible object store: which ones may be imported, and how they are copied to this machine.

An object store is slow, and sometimes unreachable. So a file is copied once, and only the copy is read. The file that
was checked is then the file that is imported, even if the object changes.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from duemq.model.errors import BadDelayFile, DiskFull, Unavailable
from duemq.storage.fsync import make_folder

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

SCHEME: Final = "s3://"
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PART_BYTES: Final = 8 << 20
_SPARE_BYTES: Final = 64 << 20  # must remain free on the disk with the copy
_CONNECT_S: Final = 5.0
_ATTEMPTS: Final = 2  # only a few, because a node retries later


class StoreAway(Unavailable):
    """An object store does not answer, or refuses access. The file is not the cause."""


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """How to reach the object store. The AWS SDK fills empty values from variables, profiles or roles."""

    endpoint: str = ""
    region: str = ""
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)

    def connect(self, attempts: int = _ATTEMPTS) -> S3FileSystem:
        """Connect to the store. `attempts`: the most attempts for one request."""
        from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem  # takes 50 ms, so only if needed

        options: dict[str, Any] = {}
        if self.endpoint:
            split = urlsplit(self.endpoint)
            options |= {"scheme": split.scheme, "endpoint_override": split.netloc}
        if self.region:
            options["region"] = self.region
        if self.access_key:
            options |= {"access_key": self.access_key, "secret_key": self.secret_key}
        if self.session_token:
            options["session_token"] = self.session_token
        retry = AwsStandardS3RetryStrategy(max_attempts=attempts)
        return S3FileSystem(connect_timeout=_CONNECT_S, request_timeout=_CONNECT_S, retry_strategy=retry, **options)


def is_object(path: str) -> bool:
    """Whether this is the URI of an object, not a path."""
    return path.startswith(SCHEME)


def wrong_uri(uri: str, *, prefix: bool = False) -> str | None:
    """The fault of an object's URI, in a few words; None if it is valid. `prefix`: the URI is a prefix of objects.

    No part may be empty, `.` or `..`: stores take these literally, but programs in between may resolve them.
    """
    bucket, slash, key = uri.removeprefix(SCHEME).partition("/")
    if not is_object(uri) or not _BUCKET.fullmatch(bucket):
        return "it must be s3://BUCKET/KEY with a bucket of 3 to 63 characters of a-z 0-9 . -"
    if prefix and not key:
        return None
    parts = key.removesuffix("/").split("/") if prefix else key.split("/")
    if not slash or any(part in ("", ".", "..") for part in parts):
        return "no part of an object's key may be empty, . or .."
    return None


def outside(uri: str, prefixes: Sequence[str]) -> str | None:
    """Why the object may not be imported, as a sentence; None if it may. `prefixes`: URIs that it must be below."""
    if (wrong := wrong_uri(uri)) is not None:
        return f"{_short(uri)}: {wrong}"
    if not any(uri.startswith(f"{prefix.rstrip('/')}/") for prefix in prefixes):
        return f"{_short(uri)} is not below any place that files may be imported from (delay_files.import_from)"
    return None


def bucket_of(uri: str) -> str:
    return uri.removeprefix(SCHEME).partition("/")[0]


def name_of(uri: str) -> str:
    """The last part of a URI, for people."""
    return uri.rpartition("/")[2]


@contextmanager
def fetch_object(
    uri: str,
    into: Path,
    store: ObjectStore,
    prefixes: Sequence[str],
    *,
    size: int | None = None,
    alive: Callable[[], None] = lambda: None,
) -> Iterator[Path]:
    """A copy of an object at `into`, which exists during the block. `size`: the expected size in bytes.

    `alive` is called after each part. Raises BadDelayFile for an object that is missing, has another size, or is below
    none of the prefixes; StoreAway if the store does not serve it; DiskFull if there is no space for it; and the disk's
    OSError.
    """
    if (reason := outside(uri, prefixes)) is not None:
        raise BadDelayFile(reason)
    make_folder(into.parent)
    into.unlink(missing_ok=True)
    try:
        _copy(uri, into, store, size, alive)
        yield into
    finally:
        with suppress(OSError):
            into.unlink(missing_ok=True)


def _copy(uri: str, into: Path, store: ObjectStore, size: int | None, alive: Callable[[], None]) -> None:
    key = uri.removeprefix(SCHEME)
    with _answering(uri):
        files = store.connect()
        info = files.get_file_info(key)
    if not info.is_file:
        raise BadDelayFile(f"{name_of(uri)} cannot be read: no such object", missing=True)
    if size is not None and info.size != size:
        raise BadDelayFile(f"{name_of(uri)} has size {info.size}, its command says {size}")
    if shutil.disk_usage(into.parent).free < info.size + _SPARE_BYTES:
        raise DiskFull(f"{name_of(uri)} has {info.size} bytes, for which the disk of this node has no space")
    alive()
    with _answering(uri):
        source = files.open_input_stream(key)
    with open(os.open(into, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as copy:
        rest_bytes = info.size
        while rest_bytes:
            with _answering(uri):
                part = source.read(min(_PART_BYTES, rest_bytes))
            if not part:
                raise StoreAway(f"{name_of(uri)} was truncated by the store")
            copy.write(part)
            rest_bytes -= len(part)
            alive()
    with suppress(OSError):
        source.close()


@contextmanager
def _answering(uri: str) -> Iterator[None]:
    """Raise StoreAway for all errors of a store's client except a missing object: the file is not their cause."""
    try:
        yield
    except FileNotFoundError as error:
        raise BadDelayFile(f"{name_of(uri)} cannot be read: no such object", missing=True) from error
    except Exception as error:
        raise StoreAway(f"{_short(uri)} cannot be read from its store: {error}") from error


def _short(uri: str) -> str:
    return uri if len(uri) <= 120 else f"...{uri[-117:]}"
