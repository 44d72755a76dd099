"""Seals, loads and rewrites windows in a child process, so that the work does not block the shard's event loop.

    python -m duemq.storage.tiering.tiering_process

It reads one job as a line of JSON from standard input, and writes its answers as lines to standard output: see
`storage/jobs/jobs.py`. If the job asks for it, a line about once a second reports how many rows have been read. If the
job fails, the process writes a sentence to standard error, and exits with 2 if the disk failed, 3 if a delay file is
damaged (the sentence is then a line of JSON, see `Damage`), or 4 if the store is damaged.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain, groupby
from pathlib import Path

from rocksdict import AccessType, Options, Rdict, SstFileWriter

from duemq.model.errors import CorruptStore, DamagedFile, DuemqError
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.key import KEY_BYTES, first_key_at
from duemq.model.rocksdb_errors import translate_errors
from duemq.model.timing import WINDOW_MS
from duemq.storage.delay_files.about import About, Part
from duemq.storage.delay_files.catalog import open_file
from duemq.storage.delay_files.sealed_file import DelayFile, parts_of, write
from duemq.storage.fsync import sync_folder
from duemq.storage.jobs.child import RowProgress, job_of_parent
from duemq.storage.jobs.jobs import (
    CORRUPT,
    DAMAGED,
    FAILED,
    BadJob,
    Damage,
    JobFile,
    LoadJob,
    RewriteJob,
    SealJob,
    TieringJob,
    encode,
    tiering_job,
)
from duemq.storage.keyspace import ROW
from duemq.storage.rocksdb import sorted_file_options

CountRows = Callable[[int], None]
"""Called with the number of rows read since the last call."""


def _count_nothing(rows: int) -> None:
    pass


def perform(job: TieringJob, count_rows: CountRows = _count_nothing) -> Iterator[About | int | None]:
    """Do a job, and yield its answers."""
    match job:
        case SealJob():
            yield from _seal(Path(job.checkpoint), job.shard, job.windows, count_rows)
        case LoadJob():
            yield _load(job.files, _ids(job.secret), Path(job.dropped), Path(job.sst), count_rows)
        case RewriteJob():
            yield from _rewrite(job.shard, _ids(job.secret), Path(job.dropped), job.windows, count_rows)


def _ids(secret: str) -> IdCodec:
    """The issuer for the ids of imported messages, whose rows this process builds from their files."""
    return IdCodec(bytes.fromhex(secret))


def _seal(
    checkpoint: Path, shard: int, windows: Sequence[tuple[int, str]], count_rows: CountRows
) -> Iterator[About | None]:
    """Write a checkpoint's rows into one delay file per window, and read each file once to verify it."""
    with translate_errors(checkpoint):
        database = Rdict(str(checkpoint), Options(raw_mode=True), access_type=AccessType.read_only())
    try:
        for window, file in windows:
            yield _write_file(Path(file), shard, window, parts_of(_rows_of(database, checkpoint, window)), count_rows)
    finally:
        database.close()
    _sync_folders(Path(file) for _, file in windows)


def _write_file(file: Path, shard: int, window: int, parts: Iterator[Part], count_rows: CountRows) -> About | None:
    """Write a file, and return its metadata. If there are no rows, no file is written, and None is returned."""
    first = next(parts, None)
    if first is None:
        return None
    about = write(file, shard, window, _counted(chain([first], parts), count_rows))
    for _ in _counted(DelayFile(file).whole(), count_rows):
        pass
    return about


def _counted(parts: Iterable[Part], count_rows: CountRows) -> Iterator[Part]:
    for part in parts:
        count_rows(len(part[0]))
        yield part


def _sync_folders(files: Iterable[Path]) -> None:
    """Sync the parent folder of the windows' folders, and its own parent, because all of these may be new."""
    parents = {file.parent.parent for file in files}
    for folder in parents | {parent.parent for parent in parents}:
        with translate_errors(folder):
            if folder.exists():  # a run without rows does not create it
                sync_folder(folder)


def _rows_of(database: Rdict, path: Path, window: int) -> Iterator[tuple[bytes, bytes]]:
    end = ROW + first_key_at(window + WINDOW_MS)
    with translate_errors(path):
        rows = database.iter()
        rows.seek(ROW + first_key_at(window))
        while rows.valid() and (key := rows.key()) < end:
            yield key[1:], rows.value()
            rows.next()
        rows.status()  # raises if a damaged block has ended the iteration


def _load(files: Sequence[JobFile], ids: IdCodec, dropped: Path, sst: Path, count_rows: CountRows) -> int:
    """Write the files' rows, without the dropped keys, into a sorted file that RocksDB can ingest."""
    count = 0
    with translate_errors(sst):
        writer = SstFileWriter(sorted_file_options())
        writer.open(str(sst))
        for key, row in _rest_of(files, ids, _keys_in(dropped), count_rows):
            writer[ROW + key] = row
            count += 1
        if count:
            writer.finish()
    return count


def _rewrite(
    shard: int,
    ids: IdCodec,
    dropped: Path,
    windows: Sequence[tuple[int, str, Sequence[JobFile]]],
    count_rows: CountRows,
) -> Iterator[About | None]:
    """Write the remaining rows in each window's files into a new file."""
    dropped_keys = _keys_in(dropped)
    for window, file, files in windows:
        rest = parts_of(_rest_of(files, ids, dropped_keys, count_rows))
        yield _write_file(Path(file), shard, window, rest, count_rows)
    _sync_folders(Path(file) for _, file, _ in windows)


def _rest_of(
    files: Sequence[JobFile], ids: IdCodec, dropped_keys: Collection[bytes], count_rows: CountRows
) -> Iterator[tuple[bytes, bytes]]:
    """The merged rows of files, in order, without the dropped keys. Reads each file to its end.

    The files must be grouped by window, earlier windows first.
    """
    for _, of_window in groupby(files, lambda file: file.about.window):
        for key, row in merge(*(_each(file, ids, count_rows) for file in of_window)):
            if key not in dropped_keys:
                yield key, row


def _each(file: JobFile, ids: IdCodec, count_rows: CountRows) -> Iterator[tuple[bytes, bytes]]:
    source = open_file(Path(file.path), file.about, ids)
    for keys, rows in _counted(source.whole(), count_rows):
        yield from zip(keys, rows, strict=True)


def _keys_in(file: Path) -> frozenset[bytes]:
    with translate_errors(file):
        raw = file.read_bytes()
    return frozenset(raw[at : at + KEY_BYTES] for at in range(0, len(raw), KEY_BYTES))


def _say(answer: object) -> None:
    print(encode(answer).decode(), flush=True)


def main() -> int:
    try:
        job = tiering_job(job_of_parent())
        count_rows = RowProgress(_say).more if job.tells else _count_nothing
        for answer in perform(job, count_rows):
            _say(answer)
    except BadJob as error:
        print(error, file=sys.stderr)
        return FAILED
    except DamagedFile as error:
        print(encode(Damage(str(error), error.path)).decode(), file=sys.stderr)
        return DAMAGED
    except DuemqError as error:
        print(error, file=sys.stderr)
        return CORRUPT if isinstance(error, CorruptStore) else FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
