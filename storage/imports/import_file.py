"""Imports delay files from other writers: validates every row, and stores the rows in one form
(storage/delay_files/columns.py).

Everything here blocks, for a second or two per million messages, so run it in a separate process or thread. Some
thousand rows are in memory at a time, whatever the size of the file's row groups.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from duemq.model.errors import BadDelayFile
from duemq.model.failpoint import Failpoint, no_failpoint
from duemq.model.messages.key import make_key
from duemq.model.rocksdb_errors import translate_errors
from duemq.model.timing import window_of
from duemq.storage.delay_files.about import About
from duemq.storage.delay_files.columns import MAX_ROWS, ROWS_PER_GROUP, SCHEMA, check_schema, is_normal, normalise
from duemq.storage.delay_files.sealed_file import GROUP_BYTES
from duemq.storage.fsync import make_folder, sync_folder
from duemq.storage.imports.row_rules import ImportRules
from duemq.storage.imports.source import SourceFile, readable
from duemq.storage.limits import ImportLimits

FORMAT = 1
_ABOUT = b"duemq-adopted"  # the name from format 1
_BATCH_ROWS, _BATCH_BYTES = 4 * ROWS_PER_GROUP, 32 << 20
_READ_BYTES = 1 << 20
_PROBED_GROUPS, _PROBED_ROWS = 8, 64
_NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP}


@dataclass(frozen=True, slots=True)
class ImportedFileInfo:
    """The result of reading a file. `window`, `first_due`, `last_due` in ms. `size` (bytes) and `sha256` are those of
    the source.

    `content`: the SHA-256 of the resulting file, which readers check; empty if no file was made.
    """

    window: int
    rows: int
    first_due: int
    last_due: int
    size: int
    sha256: str
    content: str = ""

    def about(self, shard: int, offset: int) -> About:
        """The file's metadata in the catalog of a shard that imported it with the command at `offset`."""
        first, last = make_key(self.first_due, offset, 0), make_key(self.last_due, offset, self.rows - 1)
        return About(shard, self.window, self.rows, first.hex(), last.hex(), self.content, offset=offset)


def _silent(rows: int) -> None:
    pass


def _still() -> None:
    pass


@dataclass(frozen=True, slots=True)
class FileSummary:
    """The fields of a file that its command needs (see `ImportCommand`)."""

    sha256: str
    size: int
    window: int
    rows: int


def summary_of(path: Path) -> FileSummary:
    """The fields, from a file's first row and its footer. The rows are not validated. Raises BadDelayFile."""
    with SourceFile.open(path) as source, _reading(source):
        with pq.ParquetFile(source.path) as file:
            check_schema(file.schema_arrow)
            rows = file.metadata.num_rows
            first = next(file.iter_batches(1, columns=["due_ms"]), None)
        if first is None or first["due_ms"][0].as_py() is None:
            raise BadDelayFile(f"{source.name} has no rows, or none that says when it is due")
        window = window_of(first["due_ms"][0].as_py())
        return FileSummary(source.sha256(_still), source.state()[1], window, rows)


def inspect(
    path: Path,
    limits: ImportLimits,
    progress: Callable[[int], None] = _silent,
    alive: Callable[[], None] = _still,
    folders: Sequence[Path] | None = None,
    name: str | None = None,
) -> ImportedFileInfo:
    """Validate a file for the window of its first row. Arguments and errors: see `import_file`."""
    with SourceFile.open(path, folders, name) as source, _reading(source):
        before = source.state()
        sha256 = source.sha256(alive)
        rules = ImportRules(limits, None)
        for _ in _valid(source, rules, progress):
            pass
        return _info_of(source, rules, before, sha256)


def import_file(
    path: Path,
    target: Path,
    window: int,
    limits: ImportLimits,
    *,
    size: int | None = None,
    folders: Sequence[Path] | None = None,
    name: str | None = None,
    link: bool = False,
    progress: Callable[[int], None] = _silent,
    alive: Callable[[], None] = _still,
    failpoint: Failpoint = no_failpoint,
) -> ImportedFileInfo:
    """Validate a file for this window, write its rows into a new file, sync the file, and rename it to `target`.

    `size`: the file's expected size in bytes, which is cheaper to check than its content. `folders`: the folders that
    the file must be in, None for any. `name`: the file's name in errors. `link`: if the source already has the right
    form, link it instead of writing a copy; then it must never change. `progress` is called with the number of rows
    done so far, `alive` after each part of a checksum.

    Raises BadDelayFile, DiskFull and StoreFailed. After an error there is no file at `target`.
    """
    temporary = target.with_suffix(".new")
    with translate_errors(target):
        make_folder(target.parent)
        temporary.unlink(missing_ok=True)
        try:
            with SourceFile.open(path, folders, name) as source:
                intake = _import_file(
                    source, temporary, partial(ImportRules, limits, window), size, link, progress, alive
                )
            failpoint("written")
            with temporary.open("rb") as handle:
                os.fsync(handle.fileno())
            failpoint("synced")
            temporary.rename(target)
            temporary.unlink(missing_ok=True)  # renaming does nothing if both names link to the same file
            sync_folder(target.parent)
            failpoint("named")
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
    return intake


def _import_file(
    source: SourceFile,
    temporary: Path,
    rules_of_file: Callable[[], ImportRules],
    size: int | None,
    link: bool,
    progress: Callable[[int], None],
    alive: Callable[[], None],
) -> ImportedFileInfo:
    """Write the same rows into a new file, or link the file. Returns its `ImportedFileInfo`."""
    rules = rules_of_file()
    with _reading(source):
        before = source.state()
        if size is not None and before[1] != size:
            raise BadDelayFile(f"{source.name} has size {before[1]}, its command says {size}")
        sha256 = source.sha256(alive)
        linked = link and _link(source, temporary)
        if linked and not _is_small(source, rules, progress):
            temporary.unlink()
            linked, rules = False, rules_of_file()
    if not linked:
        _write(source, temporary, rules, progress, {"size": before[1], "sha256": sha256})
    with _reading(source):
        intake = _info_of(source, rules, before, sha256)
    content = sha256 if linked else _sha256(temporary, alive)
    return replace(intake, content=content)


@contextmanager
def _reading(source: SourceFile) -> Iterator[None]:
    """Translate errors into errors about the source. Those from Arrow have no error number, and a damaged footer can
    raise any of them."""
    try:
        with readable(source.name):
            yield
    except (pa.ArrowException, OSError, ValueError, LookupError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise BadDelayFile(f"{source.name} is not Parquet, or damaged: {error}") from error


def _sha256(path: Path, alive: Callable[[], None]) -> str:
    """The SHA-256 of a file that duemq wrote."""
    with SourceFile.open(path) as file:
        return file.sha256(alive)


def _info_of(source: SourceFile, rules: ImportRules, before: tuple[int, int, int], sha256: str) -> ImportedFileInfo:
    if source.state() != before:
        raise BadDelayFile(f"{source.name} was changed while it was read")
    assert rules.window is not None
    return ImportedFileInfo(rules.window, rules.rows, rules.first_due, rules.last_due, before[1], sha256)


def _link(source: SourceFile, temporary: Path) -> bool:
    with pq.ParquetFile(source.path) as file:
        if not is_normal(file):
            return False
    try:
        source.link(temporary)
    except OSError as error:
        if error.errno in _NO_LINKS:
            return False
        raise
    return True


def _valid(source: SourceFile, rules: ImportRules, progress: Callable[[int], None]) -> Iterator[pa.RecordBatch]:
    """All rows in a file, normalised and validated."""
    with pq.ParquetFile(source.path, buffer_size=_READ_BYTES, pre_buffer=False) as file:
        check_schema(file.schema_arrow)
        metadata = file.metadata
        count = metadata.num_rows
        if not 0 < count <= MAX_ROWS:
            raise BadDelayFile(f"{source.name} has {count} rows; it must have 1 to {MAX_ROWS}")
        largest = max(group.total_byte_size // max(group.num_rows, 1) for group in _groups(metadata))
        dictionary_columns = ["payload"] if _is_repeated(file) else None
    with pq.ParquetFile(
        source.path, metadata=metadata, buffer_size=_READ_BYTES, pre_buffer=False, page_checksum_verification=True,
        read_dictionary=dictionary_columns,
    ) as file:  # fmt: skip
        for batch in file.iter_batches(_rows_of(largest), columns=SCHEMA.names, use_threads=False):
            for part in _parts(batch):
                normal = normalise(part)
                rules.check(normal)
                yield normal
                progress(rules.rows)
    if rules.rows != count:
        raise BadDelayFile(f"{source.name} has {rules.rows} rows, but its footer says {count}")


def _is_small(source: SourceFile, rules: ImportRules, progress: Callable[[int], None]) -> bool:
    """Whether all row groups stay small if each message gets its own copy of a shared payload. Validates all rows."""
    with pq.ParquetFile(source.path) as file:
        ends = np.cumsum([group.num_rows for group in _groups(file.metadata)])
    sizes, row = np.zeros(len(ends)), 0
    for batch in _valid(source, rules, progress):
        in_groups = np.searchsorted(ends, np.arange(row, row + batch.num_rows), "right")
        sizes += np.bincount(in_groups, minlength=len(ends)) * (batch.nbytes / batch.num_rows)
        row += batch.num_rows
    return bool((sizes <= 2 * GROUP_BYTES).all())


def _groups(metadata: pq.FileMetaData) -> list[pq.RowGroupMetaData]:
    return [metadata.row_group(number) for number in range(metadata.num_row_groups)]


def _is_repeated(file: pq.ParquetFile) -> bool:
    """Whether the file repeats a few large payloads, so that its rows in memory are far larger than the file states."""
    metadata = file.metadata
    leaf = next(number for number in range(metadata.num_columns) if metadata.schema.column(number).path == "payload")
    for number, group in list(enumerate(_groups(metadata)))[:_PROBED_GROUPS]:
        chunk = group.column(leaf)
        stated_bytes = chunk.total_uncompressed_size // max(group.num_rows, 1)  # bytes of one payload
        if chunk.has_dictionary_page:
            for batch in file.iter_batches(_PROBED_ROWS, [number], ["payload"], use_threads=False):
                payload = batch["payload"]
                actual_bytes = 0 if _is_dictionary(payload) else payload.nbytes // len(payload)
                if actual_bytes > max(2 * stated_bytes, _BATCH_BYTES // _BATCH_ROWS):
                    return True
                break
    return False


def _is_dictionary(column: pa.Array) -> bool:
    return bool(pa.types.is_dictionary(column.type))


def _rows_of(row_bytes: int) -> int:
    """How many rows of this size to process at once."""
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(row_bytes, 1)))


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in parts that are not too large, even if each row has its own copy of its payload."""
    payload, rows = batch["payload"], batch.num_rows
    if _is_dictionary(payload) and len(payload.dictionary):
        rows = _rows_of(pc.max(pc.binary_length(payload.dictionary)).as_py() or 0)
    for at in range(0, batch.num_rows, max(rows, 1)):
        yield batch[at : at + rows]


def earlier_import(
    target: Path,
    window: int,
    sha256: str,
    limits: ImportLimits,
    progress: Callable[[int], None] = _silent,
    alive: Callable[[], None] = _still,
) -> ImportedFileInfo | None:
    """The `ImportedFileInfo` of a file that was imported earlier from a source with this checksum; None if there is no
    such file, or if it is damaged. Reads the whole file."""
    try:
        with SourceFile.open(target) as file:
            with pq.ParquetFile(file.path) as content_of:
                origin = orjson.loads((content_of.metadata.metadata or {}).get(_ABOUT, b"{}"))
            content, size = file.sha256(alive), file.state()[1]
            if "sha256" not in origin:  # it was linked
                origin = {"sha256": content, "size": size}
            if origin["sha256"] != sha256:
                return None
            rules = ImportRules(limits, window)
            for _ in _valid(file, rules, progress):
                pass
    except (pa.ArrowException, OSError, ValueError, BadDelayFile):
        return None
    return ImportedFileInfo(window, rules.rows, rules.first_due, rules.last_due, origin["size"], sha256, content)


def _write(
    source: SourceFile,
    temporary: Path,
    rules: ImportRules,
    progress: Callable[[int], None],
    of: Mapping[str, int | str],
) -> None:
    with pq.ParquetWriter(
        temporary, SCHEMA, compression="zstd", compression_level=1, write_page_checksum=True,
        use_dictionary=["topic", "headers.list.element.name", "labels.list.element"], write_statistics=["due_ms"],
    ) as file:  # fmt: skip
        rest, batches = SCHEMA.empty_table(), _valid(source, rules, progress)
        waiting: list[pa.RecordBatch] = []
        rows = size = 0
        while True:
            with _reading(source):
                batch = next(batches, None)
            if batch is None:
                break
            waiting.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= ROWS_PER_GROUP or size >= GROUP_BYTES:  # collected, because small row groups give small batches
                rest = _write_groups(file, _join(rest, waiting))
                waiting, rows, size = [], rest.num_rows, rest.nbytes
        _write_groups(file, _join(rest, waiting), last=True)
        file.add_key_value_metadata({_ABOUT: orjson.dumps({"format": FORMAT, "window": rules.window, **of})})


def _join(rest: pa.Table, batches: list[pa.RecordBatch]) -> pa.Table:
    more = [pa.Table.from_batches(batches).cast(SCHEMA)] if batches else []
    return pa.concat_tables([rest, *more]).combine_chunks()


def _write_groups(file: pq.ParquetWriter, table: pa.Table, *, last: bool = False) -> pa.Table:
    """Write full row groups. Returns the remaining rows for the next group. `last`: writes these rows, too."""
    while table.num_rows:
        rows = max(1, min(ROWS_PER_GROUP, GROUP_BYTES * table.num_rows // table.nbytes))
        if table.num_rows < rows and not last:
            break
        file.write_table(table[:rows], row_group_size=rows)
        table = table[rows:]
    return table
