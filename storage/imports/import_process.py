"""Taking files in, in a process of its own.

    python -m duemq.storage.imports.import_process

The job is an `ImportJob` as a line of JSON on standard input, its answers are lines on standard output: see
`storage/jobs/jobs.py`. An object of a store is copied beside the target first. A parent that hears nothing for long
knows that a disk or a mount hangs.
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
from duemq.storage.imports.importer import Intake, earlier_intake, inspect, take_in
from duemq.storage.jobs.child import Progress, job_of_parent
from duemq.storage.jobs.jobs import (
    BadJob,
    ImportAnswer,
    ImportFile,
    ImportJob,
    InspectAnswer,
    Inspected,
    NotImportable,
    NotTakenIn,
    TakenIn,
    encode,
    import_job,
)
from duemq.storage.limits import ImportLimits
from duemq.storage.object_store import ObjectStore, StoreAway, bucket_of, fetch_object, is_object, name_of

_TRACE_CHARACTERS = 4_000

Answer = ImportAnswer | InspectAnswer


@dataclass(frozen=True, slots=True)
class _Places:
    """Where files may be taken from."""

    folders: list[Path]
    prefixes: Sequence[str]
    store: ObjectStore


def intake(job: ImportJob, tell: Callable[[Answer], None], failpoint: Failpoint = no_failpoint) -> None:
    """Do a job, and tell of each file."""
    limits, progress = job.limits, Progress(tell)
    places = _Places([Path(folder) for folder in job.folders], job.prefixes, job.store)
    if job.inspect is not None:
        tell(_inspect(job.inspect, limits, places, progress))
    away: dict[str, str] = {}  # buckets that were, and why: to ask for each of thousands of files would take hours
    for file in job.files:
        bucket = bucket_of(file.source)
        if bucket in away and not Path(file.target).exists():
            tell(NotTakenIn(away[bucket], away=True, skipped=True))
            continue
        answer = _answer(file, limits, places, progress, failpoint)
        if isinstance(answer, NotTakenIn) and answer.away:
            away[bucket] = answer.reason
        tell(answer)


def _inspect(source: str, limits: ImportLimits, places: _Places, progress: Progress) -> InspectAnswer:
    try:
        if not is_object(source):
            return _inspection_of(inspect(Path(source), limits, progress.rows, progress.alive, places.folders))
        with (
            TemporaryDirectory(prefix="duemq-inspect-") as folder,
            fetch_object(source, Path(folder) / "copy", places.store, places.prefixes, alive=progress.alive) as copy,
        ):
            return _inspection_of(inspect(copy, limits, progress.rows, progress.alive, name=name_of(source)))
    except BadDelayFile as error:
        return NotImportable(cut(str(error)), error.row, error.column and error.column[:80])
    except StoreAway as error:
        return NotImportable(cut(str(error)), away=True)


def _inspection_of(file_intake: Intake) -> Inspected:
    return Inspected(**asdict(file_intake))


def _answer(
    file: ImportFile, limits: ImportLimits, places: _Places, progress: Progress, failpoint: Failpoint
) -> TakenIn | NotTakenIn:
    target = Path(file.target)
    try:
        # A crash may have come between the taking in and the flush of the store that would have known of it.
        file_intake = earlier_intake(target, file.window, file.sha256, limits, progress.rows, progress.alive)
        if file_intake is None:
            file_intake = _take_in(file, target, limits, places, progress, failpoint)
        if (wrong := _mismatch(file, file_intake)) is not None:
            target.unlink(missing_ok=True)
            return NotTakenIn(cut(wrong), final=True)
        return TakenIn(file_intake.about(file.shard, file.offset), checksum_of(target, file.offset), topics_of(target))
    except BadDelayFile as error:
        return NotTakenIn(cut(str(error)), final=not error.missing)
    except StoreAway as error:
        return NotTakenIn(cut(str(error)), away=True)
    except Unavailable as error:
        return NotTakenIn(cut(str(error)))
    except Exception as error:
        # Of one file, whatever it is: the others go on.
        trace = traceback.format_exc()[-_TRACE_CHARACTERS:]
        return NotTakenIn(cut(f"{type(error).__name__}: {error}"), trace=trace)


def _take_in(
    file: ImportFile,
    target: Path,
    limits: ImportLimits,
    places: _Places,
    progress: Progress,
    failpoint: Failpoint,
) -> Intake:
    source, window, size = file.source, file.window, file.size
    take = partial(
        take_in, target=target, window=window, limits=limits, size=size, progress=progress.rows, alive=progress.alive,
        failpoint=failpoint,
    )  # fmt: skip
    if not is_object(source):
        return take(Path(source), folders=places.folders, link=file.link)
    into = target.with_suffix(".fetched")
    with (
        translate_errors(into),
        fetch_object(source, into, places.store, places.prefixes, size=size, alive=progress.alive) as copy,
    ):
        return take(copy, link=True, name=name_of(source))  # nobody else has the copy


def _mismatch(file: ImportFile, file_intake: Intake) -> str | None:
    """How a file differs from what its command says of it; a file that was exchanged meanwhile is not imported."""
    for name in ("sha256", "size", "rows"):
        if (actual := getattr(file_intake, name)) != (expected := getattr(file, name)):
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
