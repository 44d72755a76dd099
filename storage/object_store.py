"""Files in an S3-compatible store: which may be taken from there, and how one comes onto this machine.

A store is slow, and now and then it is away. So a file is copied once, and only the copy is read: what was checked is
what is kept, whatever becomes of the object meanwhile.
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
_SPARE_BYTES: Final = 64 << 20  # left free on the disk that a copy comes to
_CONNECT_S: Final = 5.0
_ATTEMPTS: Final = 2  # a node comes again later


class StoreAway(Unavailable):
    """An object store does not answer, or refuses whoever asks: that says nothing about the file."""


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """How the store is reached. What is empty is for the AWS SDK to find: variables, profiles, roles."""

    endpoint: str = ""
    region: str = ""
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)

    def connect(self, attempts: int = _ATTEMPTS) -> S3FileSystem:
        """`attempts`: of one request."""
        from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem  # 50 ms that files of a folder do without

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
    """Whether it is the URI of an object, and no path."""
    return path.startswith(SCHEME)


def wrong_uri(uri: str, *, prefix: bool = False) -> str | None:
    """What is wrong with the URI of an object, in a few words; None for a right one. `prefix`: of many of them.

    No part is empty, `.` or `..`: stores take these as they are, and what lies between may resolve them.
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
    """Why no object may be taken from there, in a sentence; None where it may. `prefixes`: URIs it must be below."""
    if (wrong := wrong_uri(uri)) is not None:
        return f"{_short(uri)}: {wrong}"
    if not any(uri.startswith(f"{prefix.rstrip('/')}/") for prefix in prefixes):
        return f"{_short(uri)} is below none of the places that files may be imported from (delay_files.import_from)"
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
    """A copy of an object at `into`, for the time of the block. `size`: how many bytes it must have.

    `alive` is called after each part. Raises BadDelayFile for an object that is not there, has another size, or lies
    elsewhere; StoreAway for a store that does not serve it; DiskFull where there is no room for it; the disk's OSError.
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
        raise DiskFull(f"{name_of(uri)} has {info.size} bytes, for which the disk of this node has no room")
    alive()
    with _answering(uri):
        source = files.open_input_stream(key)
    with open(os.open(into, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as copy:
        rest_bytes = info.size
        while rest_bytes:
            with _answering(uri):
                part = source.read(min(_PART_BYTES, rest_bytes))
            if not part:
                raise StoreAway(f"{name_of(uri)} was cut short by the store")
            copy.write(part)
            rest_bytes -= len(part)
            alive()
    with suppress(OSError):
        source.close()


@contextmanager
def _answering(uri: str) -> Iterator[None]:
    """Raise StoreAway for whatever a store's client raises: nothing of that is about the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise BadDelayFile(f"{name_of(uri)} cannot be read: no such object", missing=True) from error
    except Exception as error:
        raise StoreAway(f"{_short(uri)} cannot be had of its store: {error}") from error


def _short(uri: str) -> str:
    return uri if len(uri) <= 120 else f"...{uri[-117:]}"
