"""The folder of a job.

    STAGE/JOB/attempt-<random>/window=<start>/part-*.parquet   delay files of one attempt
    STAGE/JOB/manifest.json                                    which attempt became the job, and its files
    STAGE/JOB/handed.json                                      when the server had all files in its log
    STAGE/JOB/done.json                                        the imports, once all files are imported

Each document is written once: if two runs work on a job at the same time, the second uses the documents of the first.
Only files in the manifest are ever handed over.
"""

from __future__ import annotations

import hashlib
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from duemq.pipeline.bulk_schedule.files import WrittenFile
from duemq.pipeline.bulk_schedule.stage import FolderStage, Stage
from duemq.pipeline.errors import BadInput, JobFailed
from duemq.storage.manifest import other_format

FORMAT: Final = 1
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ATTEMPT = "attempt-"
_READS, _READ_S = 20, 0.25  # how often, and at which interval, to read a document that another run is writing


@dataclass(frozen=True, slots=True)
class JobManifest:
    """`columns` and `source`: the columns and the identity of the table; `print`: a checksum of both. `began`: epoch
    ms.

    `attempt`: the folder of the job's files. `rejects`: the folder of the rejected rows, or None.
    """

    job: str
    began: int
    columns: Mapping[str, Any]
    source: str
    print: str
    attempt: str
    rows: int
    rejected: int
    rejects: str | None
    files: tuple[WrittenFile, ...]
    format: int = FORMAT

    @property
    def accepted(self) -> int:
        return self.rows - self.rejected


def print_of(columns: Mapping[str, Any], source: str) -> str:
    """A checksum of a job's columns and source, which distinguishes it from other jobs."""
    return hashlib.sha256(orjson.dumps([columns, source], option=orjson.OPT_SORT_KEYS)).hexdigest()


class JobFolder:
    """The folder of one job in its stage. A `stage` that is a path means a folder on a file system."""

    def __init__(self, stage: Stage | Path, job: str) -> None:
        if not _JOB.fullmatch(job):
            raise BadInput(
                f"a job's id has 1 to 100 characters of A-Z a-z 0-9 . _ -, the first a letter or digit, not {job!r}"
            )
        self.job, self.stage = job, FolderStage(stage.absolute() / job) if isinstance(stage, Path) else stage
        self.stage.make()

    def check(self) -> None:
        """Raise BadInput if this stage cannot write a document exactly once. Call it before writing anything else."""
        self.stage.check()

    def new_attempt(self) -> str:
        """A unique name for an attempt's folder. The folder is not created."""
        return f"{_ATTEMPT}{uuid.uuid4().hex[:12]}"

    def manifest(self) -> JobManifest | None:
        document = self._read("manifest.json")
        if document is None:
            return None
        if document["format"] != FORMAT:
            raise JobFailed(other_format(f"{self.stage.place}/manifest.json", document["format"], FORMAT))
        return JobManifest(**(document | {"files": tuple(WrittenFile(**file) for file in document["files"])}))

    def settle(self, manifest: JobManifest) -> JobManifest:
        """Write this manifest, and return the manifest of the job, which may be from a faster attempt."""
        self._once("manifest.json", asdict(manifest))
        winner = self.manifest()
        assert winner is not None
        return winner

    def handed_at(self) -> int | None:
        """When the server had accepted the files in the manifest (epoch ms); None if that is unknown."""
        document = self._read("handed.json")
        return None if document is None else int(document["at"])

    def record_hand_over(self, at: int) -> None:
        self._once("handed.json", {"at": at})

    def imports(self) -> dict[str, str | None] | None:
        """The import of each file of a finished job, by the file's path below the folder; None for a file whose import
        the server had forgotten by then."""
        document: dict[str, str | None] | None = self._read("done.json")
        return document

    def done(self, imports: Mapping[str, str | None]) -> None:
        self._once("done.json", imports)

    def clean(self, manifest: JobManifest) -> None:
        """Remove the folders of other attempts."""
        for folder in self.stage.folders():
            if folder.startswith(_ATTEMPT) and folder != manifest.attempt:
                self.stage.remove(folder)
        self.stage.tidy()

    def _read(self, name: str) -> Any:
        for number in range(_READS):
            content = self.stage.read(name)
            if content is None:
                return None
            try:
                return orjson.loads(content)
            except ValueError as error:  # without hard links, a file is visible while it is being written
                if number == _READS - 1:
                    raise JobFailed(
                        f"{self.stage.path(name)} is damaged: {error}. It is not in use: make sure that no other run "
                        "of this job is active, remove the file, and run the job again"
                    ) from error
            time.sleep(_READ_S)

    def _once(self, name: str, document: Any) -> None:
        """Write a document, unless it exists. Raises OSError."""
        self.stage.write_once(name, orjson.dumps(document, option=orjson.OPT_INDENT_2))
