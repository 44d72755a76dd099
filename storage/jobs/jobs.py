"""Messages between a server and its child processes: jobs and answers. Both sides use this file.

A job is one line of JSON on the child's standard input, and each answer is one line on its standard output. The fields
are those of the dataclasses. They must stay compatible: a running server whose installation is upgraded starts children
of the new version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from duemq.storage.delay_files.about import About
from duemq.storage.limits import ImportLimits
from duemq.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from duemq.storage.delay_files.catalog import CatalogFile

T = TypeVar("T")

FAILED, DAMAGED, CORRUPT = 2, 3, 4  # exit codes of a child; Python itself uses 1


class BadJob(ValueError):
    """A line is neither a job nor an answer. The error message names the kind and the field."""


def encode(message: object) -> bytes:
    """The message as one line of JSON, without a line break."""
    return orjson.dumps(message)


def decode(kind: type[T], document: Any) -> T:
    """Convert a JSON object with the fields of `kind` into a `kind`. Raises BadJob."""
    if not isinstance(document, Mapping):
        raise BadJob(f"{kind.__name__}: not an object")
    names = {each.name for each in fields(kind)}  # type: ignore[arg-type]  # dataclasses only
    if unknown := document.keys() - names:
        raise BadJob(f"{kind.__name__}: it has no field {min(unknown)}")
    try:
        return kind(**document)
    except TypeError as error:  # its text names the missing fields
        raise BadJob(f"{kind.__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class Damage:
    """A child's line of JSON on standard error if a delay file is damaged: see DamagedFile."""

    message: str
    path: str


# --- sealing, loading, rewriting --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobFile:
    """A delay file that a job reads."""

    path: str
    about: About

    @staticmethod
    def of(document: Any) -> JobFile:
        file = decode(JobFile, document)
        return JobFile(file.path, decode(About, file.about))


def job_file(folder: Path, file: CatalogFile) -> JobFile:
    """A file for a job, from the catalog of the shard with this folder."""
    return JobFile(str(folder / file.name), file.about)


@dataclass(frozen=True, slots=True)
class SealJob:
    """Write a checkpoint's rows into one file per window (start in ms, path of the file). Answer per window: `About`,
    or null if it has no rows."""

    checkpoint: str
    shard: int
    windows: Sequence[tuple[int, str]]
    work: str = "seal"
    tells: bool = False


@dataclass(frozen=True, slots=True)
class LoadJob:
    """Write the files' rows, without the keys listed in the file `dropped`, into an SST. Answer: the number of its
    rows.

    `secret`: the secret for the ids of imported messages, in hex.
    """

    files: Sequence[JobFile]
    secret: str
    dropped: str
    sst: str
    work: str = "load"
    tells: bool = False


@dataclass(frozen=True, slots=True)
class RewriteJob:
    """Write the remaining rows in each window's files into a new file. Answer per window: `About`, or null if no rows
    are left."""

    shard: int
    secret: str
    dropped: str
    windows: Sequence[tuple[int, str, Sequence[JobFile]]]
    work: str = "rewrite"
    tells: bool = False


TieringJob = SealJob | LoadJob | RewriteJob
"""If `tells` is true, the child also sends a `ReadProgress` about once a second while it reads rows. Servers with an
older version do not send this field."""


def tiering_job(document: Any) -> TieringJob:
    """The job in a JSON object. Raises BadJob."""
    match document.get("work") if isinstance(document, Mapping) else None:
        case "seal":
            return decode(SealJob, document)
        case "load":
            load = decode(LoadJob, document)
            return replace(load, files=[JobFile.of(file) for file in load.files])
        case "rewrite":
            job = decode(RewriteJob, document)
            windows = [(start, path, [JobFile.of(file) for file in files]) for start, path, files in job.windows]
            return replace(job, windows=windows)
        case other:
            raise BadJob(f"{other} is no work")


def abouts_of(answers: Iterable[Any]) -> list[About | None]:
    """The answers to a SealJob or a RewriteJob. Raises BadJob."""
    return [None if answer is None else decode(About, answer) for answer in answers]


# --- importing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ImportFile:
    """A file to import: the fields of its command, and its target. `source`: a path, or the URI of an object."""

    source: str
    target: str
    shard: int
    offset: int
    window: int
    rows: int
    size: int
    sha256: str
    link: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportJob:
    """Import `files`, and validate the file `inspect`. `folders`, `prefixes` (of URIs): where these files may be.

    The answer for each file, in order, is `ImportSuccess` or `ImportFailure`; for `inspect` it is `InspectionResult` or
    `InspectionFailure`. In between, about once a second while data is read, there is a `ReadProgress`.
    """

    limits: ImportLimits
    folders: Sequence[str] = ()
    prefixes: Sequence[str] = ()
    store: ObjectStore = field(default_factory=ObjectStore)
    files: Sequence[ImportFile] = ()
    inspect: str | None = None


def import_job(document: Any) -> ImportJob:
    """The job in a JSON object. Raises BadJob."""
    job = decode(ImportJob, document)
    limits = decode(ImportLimits, job.limits)
    store = job.store if isinstance(job.store, ObjectStore) else decode(ObjectStore, job.store)
    files = [decode(ImportFile, file) for file in job.files]
    return replace(job, limits=replace(limits, topics=tuple(limits.topics)), store=store, files=files)


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """`done`: the number of rows read so far."""

    done: int


@dataclass(frozen=True, slots=True)
class ImportSuccess:
    """The file is at its target. `checksum`, `topics`: see `LocalFile`."""

    about: About
    checksum: int
    topics: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class ImportFailure:
    """Why a file is not at its target.

    `final`: a retry would not help. `away`: the file's object store does not answer. `skipped`: the file was not tried,
    because its store did not answer for another file. `trace`: the traceback of an unexpected error.
    """

    reason: str
    final: bool = False
    away: bool = False
    skipped: bool = False
    trace: str = ""


@dataclass(frozen=True, slots=True)
class InspectionResult:
    """The content of a file that can be imported: see `ImportedFileInfo`."""

    window: int
    rows: int
    first_due: int
    last_due: int
    size: int
    sha256: str
    content: str = ""


@dataclass(frozen=True, slots=True)
class InspectionFailure:
    """Why a file could not be imported, with row and column if they are known. `away`: the file's object store does not
    answer."""

    reason: str
    row: int | None = None
    column: str | None = None
    away: bool = False


ImportAnswer = ReadProgress | ImportSuccess | ImportFailure
InspectAnswer = ReadProgress | InspectionResult | InspectionFailure


def import_answer(line: bytes) -> ImportAnswer:
    """The answer about a file. Raises BadJob."""
    document = _object(line)
    if "done" in document:
        return decode(ReadProgress, document)
    if "about" in document:
        answer = decode(ImportSuccess, document)
        return ImportSuccess(decode(About, answer.about), answer.checksum, answer.topics)
    return decode(ImportFailure, document)


def inspect_answer(line: bytes) -> InspectAnswer:
    """The answer about `inspect`. Raises BadJob."""
    document = _object(line)
    kind = ReadProgress if "done" in document else InspectionFailure if "reason" in document else InspectionResult
    return decode(kind, document)  # type: ignore[return-value]  # one of the three


def _object(line: bytes) -> Mapping[str, Any]:
    document = orjson.loads(line)
    if not isinstance(document, dict):
        raise BadJob(f"not an answer: {line[:100]!r}")
    return document
