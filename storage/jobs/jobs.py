"""What passes between a server and the processes that work for it: jobs and answers. Both ends use this file.

A job is one line of JSON on the child's standard input, each answer one on its standard output. The names of fields are
those of the dataclasses: a server that was upgraded under its feet starts children of the new version.
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

FAILED, DAMAGED, CORRUPT = 2, 3, 4  # exit codes of a child; 1 is what Python ends with on its own


class BadJob(ValueError):
    """A line that is no job or answer: the message names the kind and the field."""


def encode(message: object) -> bytes:
    """One line of JSON, without its end."""
    return orjson.dumps(message)


def decode(kind: type[T], document: Any) -> T:
    """Make a `kind` of a JSON object with its fields. Raises BadJob."""
    if not isinstance(document, Mapping):
        raise BadJob(f"{kind.__name__}: not an object")
    names = {each.name for each in fields(kind)}  # type: ignore[arg-type]  # dataclasses only
    if unknown := document.keys() - names:
        raise BadJob(f"{kind.__name__}: {min(unknown)} is no field of it")
    try:
        return kind(**document)
    except TypeError as error:  # it names the fields that are missing
        raise BadJob(f"{kind.__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class Damage:
    """What a child says on standard error, as a line of JSON, where a delay file is damaged: see DamagedFile."""

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
    """A file of a job, in the table of the shard with this folder."""
    return JobFile(str(folder / file.name), file.about)


@dataclass(frozen=True, slots=True)
class SealJob:
    """Write the rows that a checkpoint has of each window (start in ms, path of its file). Answer: `About` or null."""

    checkpoint: str
    shard: int
    windows: Sequence[tuple[int, str]]
    work: str = "seal"
    tells: bool = False


@dataclass(frozen=True, slots=True)
class LoadJob:
    """Write what files hold, without the keys in `dropped`, into an SST. Answer: how many rows it has.

    `secret`: in hex, of the ids of imported messages.
    """

    files: Sequence[JobFile]
    secret: str
    dropped: str
    sst: str
    work: str = "load"
    tells: bool = False


@dataclass(frozen=True, slots=True)
class RewriteJob:
    """Write what is left of each window's files into a new one. Answer: `About`, or null where nothing is left."""

    shard: int
    secret: str
    dropped: str
    windows: Sequence[tuple[int, str, Sequence[JobFile]]]
    work: str = "rewrite"
    tells: bool = False


TieringJob = SealJob | LoadJob | RewriteJob
"""With `tells`, which an older server does not know, there is a `Reading` between the answers about once a second as
long as rows are read."""


def tiering_job(document: Any) -> TieringJob:
    """Raises BadJob."""
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
    """The answers of a SealJob or a RewriteJob. Raises BadJob."""
    return [None if answer is None else decode(About, answer) for answer in answers]


# --- importing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ImportFile:
    """A file to take in: what its command says of it, and where to put it. `source`: a path, or an object's URI."""

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
    """Take `files` in, and validate the file `inspect`. `folders`, `prefixes` (of URIs): where they may be.

    For each file, in order: `TakenIn` or `NotTakenIn`; for `inspect`: `Inspected` or `NotImportable`. Between them,
    about once a second as long as something is read: `Reading`.
    """

    limits: ImportLimits
    folders: Sequence[str] = ()
    prefixes: Sequence[str] = ()
    store: ObjectStore = field(default_factory=ObjectStore)
    files: Sequence[ImportFile] = ()
    inspect: str | None = None


def import_job(document: Any) -> ImportJob:
    """Raises BadJob."""
    job = decode(ImportJob, document)
    limits = decode(ImportLimits, job.limits)
    store = job.store if isinstance(job.store, ObjectStore) else decode(ObjectStore, job.store)
    files = [decode(ImportFile, file) for file in job.files]
    return replace(job, limits=replace(limits, topics=tuple(limits.topics)), store=store, files=files)


@dataclass(frozen=True, slots=True)
class Reading:
    """`done`: rows read so far."""

    done: int


@dataclass(frozen=True, slots=True)
class TakenIn:
    """The file at the target. `checksum`, `topics`: see `LocalFile`."""

    about: About
    checksum: int
    topics: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class NotTakenIn:
    """Why a file is not at its target.

    `final`: looking again would change nothing. `away`: its store does not answer. `skipped`: it was not tried, because
    its store did not answer for another one. `trace`: of what was not foreseen.
    """

    reason: str
    final: bool = False
    away: bool = False
    skipped: bool = False
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Inspected:
    """What is in a file that could be imported: see `Intake`."""

    window: int
    rows: int
    first_due: int
    last_due: int
    size: int
    sha256: str
    content: str = ""


@dataclass(frozen=True, slots=True)
class NotImportable:
    """Why a file could not be imported, with row and column if one is at fault. `away`: its store does not answer."""

    reason: str
    row: int | None = None
    column: str | None = None
    away: bool = False


ImportAnswer = Reading | TakenIn | NotTakenIn
InspectAnswer = Reading | Inspected | NotImportable


def import_answer(line: bytes) -> ImportAnswer:
    """What was said of a file. Raises BadJob."""
    document = _object(line)
    if "done" in document:
        return decode(Reading, document)
    if "about" in document:
        answer = decode(TakenIn, document)
        return TakenIn(decode(About, answer.about), answer.checksum, answer.topics)
    return decode(NotTakenIn, document)


def inspect_answer(line: bytes) -> InspectAnswer:
    """What was said of `inspect`. Raises BadJob."""
    document = _object(line)
    kind = Reading if "done" in document else NotImportable if "reason" in document else Inspected
    return decode(kind, document)  # type: ignore[return-value]  # one of the three


def _object(line: bytes) -> Mapping[str, Any]:
    document = orjson.loads(line)
    if not isinstance(document, dict):
        raise BadJob(f"not an answer: {line[:100]!r}")
    return document
