"""The folder of a job: what was written, said once and for all.

    STAGE/JOB/attempt-<random>/window=<start>/part-*.parquet   delay files of one attempt
    STAGE/JOB/manifest.json                                    which attempt is the job, and each of its files
    STAGE/JOB/handed.json                                      when the server had all of them in its log
    STAGE/JOB/done.json                                        the imports, once all of them are imported

Each document is written once: who comes second finds the first one's and uses that. Nothing but what the manifest
lists is ever handed over.
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
_LOOKS, _LOOK_S = 20, 0.25  # at a document that another run is writing


@dataclass(frozen=True, slots=True)
class JobManifest:
    """`columns` and `source`: what the job was made of, `print`: a checksum of both. `began`: epoch ms.

    `attempt`: the folder of its files. `rejects`: where the rejected rows are, None where there are none.
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
    """A checksum that differs where a job is another one."""
    return hashlib.sha256(orjson.dumps([columns, source], option=orjson.OPT_SORT_KEYS)).hexdigest()


class JobFolder:
    """The folder of one job in its stage; a path stands for a stage that is a folder."""

    def __init__(self, stage: Stage | Path, job: str) -> None:
        if not _JOB.fullmatch(job):
            raise BadInput(
                f"a job's id has 1 to 100 characters of A-Z a-z 0-9 . _ -, the first a letter or digit, not {job!r}"
            )
        self.job, self.stage = job, FolderStage(stage.absolute() / job) if isinstance(stage, Path) else stage
        self.stage.make()

    def check(self) -> None:
        """Raise BadInput where documents cannot be written here as they have to be, before anything else is."""
        self.stage.check()

    def new_attempt(self) -> str:
        """The name of a folder that nobody else uses. It is not made."""
        return f"{_ATTEMPT}{uuid.uuid4().hex[:12]}"

    def manifest(self) -> JobManifest | None:
        document = self._read("manifest.json")
        if document is None:
            return None
        if document["format"] != FORMAT:
            raise JobFailed(other_format(f"{self.stage.place}/manifest.json", document["format"], FORMAT))
        return JobManifest(**(document | {"files": tuple(WrittenFile(**file) for file in document["files"])}))

    def settle(self, manifest: JobManifest) -> JobManifest:
        """This manifest, or that of another attempt which was faster."""
        self._once("manifest.json", asdict(manifest))
        winner = self.manifest()
        assert winner is not None
        return winner

    def handed_at(self) -> int | None:
        """When the server had accepted the files of the manifest (epoch ms); None where that is not known."""
        document = self._read("handed.json")
        return None if document is None else int(document["at"])

    def record_hand_over(self, at: int) -> None:
        self._once("handed.json", {"at": at})

    def imports(self) -> dict[str, str | None] | None:
        """The import of each file of a job that is done, by its path below the folder; None for one that the server had
        forgotten by then."""
        document: dict[str, str | None] | None = self._read("done.json")
        return document

    def done(self, imports: Mapping[str, str | None]) -> None:
        self._once("done.json", imports)

    def clean(self, manifest: JobManifest) -> None:
        """Remove what other attempts left."""
        for folder in self.stage.folders():
            if folder.startswith(_ATTEMPT) and folder != manifest.attempt:
                self.stage.remove(folder)
        self.stage.tidy()

    def _read(self, name: str) -> Any:
        for look in range(_LOOKS):
            content = self.stage.read(name)
            if content is None:
                return None
            try:
                return orjson.loads(content)
            except ValueError as error:  # where there are no links, its writer may be at it
                if look == _LOOKS - 1:
                    raise JobFailed(
                        f"{self.stage.path(name)} is damaged: {error}. It is not in use; remove it where no other run "
                        "of this job is under way, and run the job again"
                    ) from error
            time.sleep(_LOOK_S)

    def _once(self, name: str, document: Any) -> None:
        """Write a document, unless there is one. Raises OSError."""
        self.stage.write_once(name, orjson.dumps(document, option=orjson.OPT_INDENT_2))
