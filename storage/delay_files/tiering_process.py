"""The work of sealing and loading windows, in a process of its own: the shard's event loop has other things to do.

    python -m duemq.storage.delay_files.tiering_process

One job as a line of JSON on standard input, its results as lines of JSON on standard output:

    {"work": "seal", "checkpoint": path, "shard": number, "windows": [[start, path], ...]}
        what each file says of itself, in the order of the windows; null for a window without rows
    {"work": "load", "files": [{"path": path, "about": ...}, ...], "secret": hex, "dropped": path, "sst": path}
        how many rows the SST has
    {"work": "rewrite", "shard": number, "secret": hex, "dropped": path,
     "windows": [[start, path, files], ...]}
        what each new file says of itself; null where nothing is left of a window

On failure a sentence on standard error, and exit code 2 where the disk fails, 3 where a delay file is damaged, 4 where
the store is.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict
from heapq import merge
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import orjson
from rocksdict import AccessType, Options, Rdict, SstFileWriter

from duemq.model.errors import CorruptStore, DamagedFile, DuemqError
from duemq.model.ids import IdCodec
from duemq.model.key import KEY_BYTES, first_key_at
from duemq.model.rocksdb_errors import translated
from duemq.model.timing import WINDOW_MS
from duemq.storage.delay_files.catalog import Sealed, open_file
from duemq.storage.delay_files.sealed_file import About, DelayFile, Part, parts_of, write
from duemq.storage.fsync import sync_folder
from duemq.storage.jobs.child import job_of_parent
from duemq.storage.shard.keyspace import ROW
from duemq.storage.shard.rocksdb import sorted_file_options

FAILED, DAMAGED, CORRUPT = 2, 3, 4  # 1 is what Python ends with on its own

Job = Mapping[str, Any]


def described(folder: Path, sealed: Sealed) -> Job:
    """A file of a job."""
    return {"path": str(folder / sealed.name), "about": asdict(sealed.about)}


def perform(job: Job) -> Iterator[Any]:
    """Do a job; its results as they come."""
    match job["work"]:
        case "seal":
            yield from _seal(Path(job["checkpoint"]), job["shard"], job["windows"])
        case "load":
            yield _load(job["files"], _ids(job), Path(job["dropped"]), Path(job["sst"]))
        case "rewrite":
            yield from _rewrite(job["shard"], _ids(job), Path(job["dropped"]), job["windows"])
        case other:
            raise ValueError(f"{other} is no work")


def _ids(job: Job) -> IdCodec:
    """What issues the ids of imported messages: their rows are made of the files here."""
    return IdCodec(bytes.fromhex(job["secret"]))


def _seal(checkpoint: Path, shard: int, windows: list[tuple[int, str]]) -> Iterator[Job | None]:
    """Write the rows that a checkpoint holds of each window into a delay file, and read it once to be sure."""
    with translated(checkpoint):
        database = Rdict(str(checkpoint), Options(raw_mode=True), access_type=AccessType.read_only())
    try:
        for window, file in windows:
            yield _written(Path(file), shard, window, parts_of(_rows_of(database, checkpoint, window)))
    finally:
        database.close()
    _sync_folders(Path(file) for _, file in windows)


def _written(file: Path, shard: int, window: int, parts: Iterator[Part]) -> Job | None:
    """What the file says of itself; None, and no file, for no rows."""
    first = next(parts, None)
    if first is None:
        return None
    about = write(file, shard, window, chain([first], parts))
    for _ in DelayFile(file).whole():
        pass
    return asdict(about)


def _sync_folders(files: Iterable[Path]) -> None:
    """The folders of the windows may be new themselves, and the one they are in."""
    parents = {file.parent.parent for file in files}
    for folder in parents | {parent.parent for parent in parents}:
        with translated(folder):
            if folder.exists():  # a run that wrote nothing makes none
                sync_folder(folder)


def _rows_of(database: Rdict, path: Path, window: int) -> Iterator[tuple[bytes, bytes]]:
    end = ROW + first_key_at(window + WINDOW_MS)
    with translated(path):
        rows = database.iter()
        rows.seek(ROW + first_key_at(window))
        while rows.valid() and (key := rows.key()) < end:
            yield key[1:], rows.value()
            rows.next()
        rows.status()  # a damaged block ends an iteration without a word


def _load(files: list[Job], ids: IdCodec, dropped: Path, sst: Path) -> int:
    """Write what the files hold, without the dropped keys, into a sorted file that RocksDB takes in as it is."""
    count = 0
    with translated(sst):
        writer = SstFileWriter(sorted_file_options())
        writer.open(str(sst))
        for key, row in _left(files, ids, _keys_in(dropped)):
            writer[ROW + key] = row
            count += 1
        if count:
            writer.finish()
    return count


def _rewrite(
    shard: int, ids: IdCodec, dropped: Path, windows: list[tuple[int, str, list[Job]]]
) -> Iterator[Job | None]:
    """Write what is left of each window's files into a new one."""
    gone = _keys_in(dropped)
    for window, file, files in windows:
        yield _written(Path(file), shard, window, parts_of(_left(files, ids, gone)))
    _sync_folders(Path(file) for _, file, _ in windows)


def _left(files: list[Job], ids: IdCodec, gone: Collection[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """What files hold together, in order, without the keys that are gone. Reads each of them to its end.

    The files of a window stand beside one another, and earlier windows before later ones.
    """
    for _, of_window in groupby(files, lambda file: file["about"]["window"]):
        for key, row in merge(*(_each(file, ids) for file in of_window)):
            if key not in gone:
                yield key, row


def _each(file: Job, ids: IdCodec) -> Iterator[tuple[bytes, bytes]]:
    opened = open_file(Path(file["path"]), About(**file["about"]), ids)
    for keys, rows in opened.whole():
        yield from zip(keys, rows, strict=True)


def _keys_in(file: Path) -> frozenset[bytes]:
    with translated(file):
        raw = file.read_bytes()
    return frozenset(raw[at : at + KEY_BYTES] for at in range(0, len(raw), KEY_BYTES))


def main() -> int:
    try:
        for result in perform(job_of_parent()):
            print(orjson.dumps(result).decode(), flush=True)
    except DuemqError as error:
        print(error, file=sys.stderr)
        return DAMAGED if isinstance(error, DamagedFile) else CORRUPT if isinstance(error, CorruptStore) else FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
