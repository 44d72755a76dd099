"""The work of sealing and loading a window, in a process of its own: the shard's event loop has other things to do.

    python -m duemq.storage.far_process seal CHECKPOINT SHARD WINDOW FILE     prints what the file says of itself
    python -m duemq.storage.far_process load DROPPED SST FILE...              prints how many rows the SST has

Exit code 1 with a sentence on standard error where the store or a file is damaged, 2 where the disk fails.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from heapq import merge
from pathlib import Path

from rocksdict import AccessType, Options, Rdict, SstFileWriter

from duemq.model.errors import CorruptStore, DuemqError
from duemq.model.foreign import translated
from duemq.model.key import KEY_BYTES, first_key_at
from duemq.storage.adopted_file import AdoptedFile
from duemq.storage.delay_file import ROWS_PER_GROUP, About, DelayFile, Part, write
from duemq.storage.rocks import sorted_file_options
from duemq.storage.rows import ROW, WINDOW_MS

_NICE = 10
CORRUPT, FAILED = 1, 2


def seal(checkpoint: Path, shard: int, window: int, file: Path) -> About:
    """Write the rows that a checkpoint holds of a window into a delay file, and read it once to be sure."""
    with translated(checkpoint):
        database = Rdict(str(checkpoint), Options(raw_mode=True), access_type=AccessType.read_only())
    try:
        about = write(file, shard, window, _rows_of(database, checkpoint, window))
    finally:
        database.close()
    for _ in DelayFile(file).whole():
        pass
    return about


def _rows_of(database: Rdict, path: Path, window: int) -> Iterator[Part]:
    end = ROW + first_key_at(window + WINDOW_MS)
    keys: list[bytes] = []
    values: list[bytes] = []
    with translated(path):
        rows = database.iter()
        rows.seek(ROW + first_key_at(window))
        while rows.valid() and (key := rows.key()) < end:
            keys.append(key[1:])
            values.append(rows.value())
            if len(keys) == ROWS_PER_GROUP:
                yield keys, values
                keys, values = [], []
            rows.next()
        rows.status()  # a damaged block ends an iteration without a word
    if keys:
        yield keys, values


def load(dropped: Path, sst: Path, opened: Sequence[DelayFile | AdoptedFile]) -> int:
    """Write what the files hold, without the dropped keys, into a sorted file that RocksDB takes in as it is."""
    gone = _keys_in(dropped)
    count = 0
    with translated(sst):
        writer = SstFileWriter(sorted_file_options())
        writer.open(str(sst))
        for key, row in merge(*(_each(file) for file in opened)):
            if key not in gone:
                writer[ROW + key] = row
                count += 1
        if count:
            writer.finish()
    return count


def _each(file: DelayFile | AdoptedFile) -> Iterator[tuple[bytes, bytes]]:
    for keys, rows in file.whole():
        yield from zip(keys, rows, strict=True)


def _keys_in(file: Path) -> frozenset[bytes]:
    with translated(file):
        raw = file.read_bytes()
    return frozenset(raw[at : at + KEY_BYTES] for at in range(0, len(raw), KEY_BYTES))


def main(arguments: list[str]) -> int:
    os.nice(_NICE)
    try:
        match arguments:
            case ["seal", checkpoint, shard, window, file]:
                print(seal(Path(checkpoint), int(shard), int(window), Path(file)).encode().decode())
            case ["load", dropped, sst, *files]:
                print(load(Path(dropped), Path(sst), [DelayFile(Path(file)) for file in files]))
            case _:
                print(__doc__, file=sys.stderr)
                return 64
    except DuemqError as error:
        print(error, file=sys.stderr)
        return CORRUPT if isinstance(error, CorruptStore) else FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
