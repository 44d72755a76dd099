"""Imports files in a child process.

    python -m duemq.storage.imports.import_process

It reads an `ImportJob` as a line of JSON from standard input, and writes its answers as lines to standard output: see
`storage/jobs/jobs.py`. An object from an object store is first copied next to the target. From a long silence the
parent concludes that a disk or a mount hangs.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from duemq.model.errors import BadDelayFile, DuemqError, Unavailable
from duemq.model.failpoint import Failpoint, no_failpoint
from duemq.model.messages.import_command import cut
from duemq.model.rocksdb_errors import translate_errors
from duemq.storage.delay_files.imported_file import checksum_of, topics_of
from duemq.storage.imports.import_file import ImportedFileInfo, earlier_import, import_file, inspect
from duemq.storage.jobs.child import RowProgress, job_of_parent
from duemq.storage.jobs.jobs import (
    BadJob,
    ImportAnswer,
    ImportFailure,
    ImportFile,
    ImportJob,
    ImportSuccess,
    InspectAnswer,
    InspectionFailure,
    InspectionResult,
    encode,
    import_job,
)
from duemq.storage.limits import ImportLimits
from duemq.storage.object_store import ObjectStore, StoreAway, bucket_of, fetch_object, is_object, name_of

_TRACE_CHARACTERS = 4_000

Answer = ImportAnswer | InspectAnswer


@dataclass(frozen=True, slots=True)
class _Places:
    """The places that files may be imported from."""

    folders: list[Path]
    prefixes: Sequence[str]
    store: ObjectStore


def intake(job: ImportJob, tell: Callable[[Answer], None], failpoint: Failpoint = no_failpoint) -> None:
    """Do a job, and report each file."""
    limits, progress = job.limits, RowProgress(tell)
    places = _Places([Path(folder) for folder in job.folders], job.prefixes, job.store)
    if job.inspect is not None:
        tell(_inspect(job.inspect, limits, places, progress))
    away: dict[str, str] = {}  # unreachable bucket -> reason: trying each of thousands of files would take hours
    for file in job.files:
        bucket = bucket_of(file.source)
        if bucket in away and not Path(file.target).exists():
            tell(ImportFailure(away[bucket], away=True, skipped=True))
            continue
        answer = _answer(file, limits, places, progress, failpoint)
        if isinstance(answer, ImportFailure) and answer.away:
            away[bucket] = answer.reason
        tell(answer)


def _inspect(source: str, limits: ImportLimits, places: _Places, progress: RowProgress) -> InspectAnswer:
    try:
        if not is_object(source):
            return _inspection_of(inspect(Path(source), limits, progress.rows, progress.alive, places.folders))
        with (
            TemporaryDirectory(prefix="duemq-inspect-") as folder,
            fetch_object(source, Path(folder) / "copy", places.store, places.prefixes, alive=progress.alive) as copy,
        ):
            return _inspection_of(inspect(copy, limits, progress.rows, progress.alive, name=name_of(source)))
    except BadDelayFile as error:
        return InspectionFailure(cut(str(error)), error.row, error.column and error.column[:80])
    except StoreAway as error:
        return InspectionFailure(cut(str(error)), away=True)


def _inspection_of(info: ImportedFileInfo) -> InspectionResult:
    return InspectionResult(**asdict(info))


def _answer(
    file: ImportFile, limits: ImportLimits, places: _Places, progress: RowProgress, failpoint: Failpoint
) -> ImportSuccess | ImportFailure:
    target = Path(file.target)
    try:
        # The file may have been imported before a crash, if the store was not flushed after the import.
        info = earlier_import(target, file.window, file.sha256, limits, progress.rows, progress.alive)
        if info is None:
            info = _import(file, target, limits, places, progress, failpoint)
        if (wrong := _mismatch(file, info)) is not None:
            target.unlink(missing_ok=True)
            return ImportFailure(cut(wrong), final=True)
        return ImportSuccess(info.about(file.shard, file.offset), checksum_of(target, file.offset), topics_of(target))
    except BadDelayFile as error:
        return ImportFailure(cut(str(error)), final=not error.missing)
    except StoreAway as error:
        return ImportFailure(cut(str(error)), away=True)
    except Unavailable as error:
        return ImportFailure(cut(str(error)))
    except Exception as error:
        # Any error with one file: the others continue.
        trace = traceback.format_exc()[-_TRACE_CHARACTERS:]
        return ImportFailure(cut(f"{type(error).__name__}: {error}"), trace=trace)


def _import(
    file: ImportFile,
    target: Path,
    limits: ImportLimits,
    places: _Places,
    progress: RowProgress,
    failpoint: Failpoint,
) -> ImportedFileInfo:
    source, window, size = file.source, file.window, file.size
    import_one = partial(
        import_file, target=target, window=window, limits=limits, size=size, progress=progress.rows,
        alive=progress.alive, failpoint=failpoint,
    )  # fmt: skip
    if not is_object(source):
        return import_one(Path(source), folders=places.folders, link=file.link)
    into = target.with_suffix(".fetched")
    with (
        translate_errors(into),
        fetch_object(source, into, places.store, places.prefixes, size=size, alive=progress.alive) as copy,
    ):
        return import_one(copy, link=True, name=name_of(source))  # a link, because no other program can change the copy


def _mismatch(file: ImportFile, info: ImportedFileInfo) -> str | None:
    """How a file differs from its command; None if it does not. A file that was replaced is not imported."""
    for name in ("sha256", "size", "rows"):
        if (actual := getattr(info, name)) != (expected := getattr(file, name)):
            return f"{file.source} has {name} {actual}, its command says {expected}"
    return None


def _print(answer: Answer) -> None:
    print(encode(answer).decode(), flush=True)


def main() -> int:
    try:
        intake(import_job(job_of_parent()), _print)
    except (BadJob, DuemqError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
