"""The folder of a job: what was written, said once and for all.

    STAGE/JOB/attempt-<random>/window=<start>/part-*.parquet   delay files of one attempt
    STAGE/JOB/manifest.json                                    which attempt is the job, and each of its files
    STAGE/JOB/done.json                                        the adoptions, once all of them are adopted

Both documents are written once: who comes second finds the first one's and uses that. Nothing but what the manifest
lists is ever handed over.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import orjson

from duemq.pipeline.bulk.files import DelayFile
from duemq.pipeline.bulk.stage import Stage
from duemq.pipeline.errors import BadInput, JobFailed

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
DONE: Final = "done.json"
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ATTEMPT = "attempt-"


@dataclass(frozen=True, slots=True)
class Manifest:
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
    files: tuple[DelayFile, ...]
    format: int = FORMAT

    @property
    def accepted(self) -> int:
        return self.rows - self.rejected


def print_of(columns: Mapping[str, Any], source: str) -> str:
    """Differs where a job is another one."""
    return hashlib.sha256(orjson.dumps([columns, source], option=orjson.OPT_SORT_KEYS)).hexdigest()


class JobFolder:
    """Of one job, in its stage."""

    def __init__(self, stage: Stage, job: str) -> None:
        self.job, self.stage = job, stage
        stage.make()

    def new_attempt(self) -> str:
        """The name of a folder that nobody else uses. It is not made."""
        return f"{_ATTEMPT}{uuid.uuid4().hex[:12]}"

    def manifest(self) -> Manifest | None:
        said = self._read(MANIFEST)
        if said is None:
            return None
        if said["format"] != FORMAT:
            where = self.stage.uri(MANIFEST)
            raise JobFailed(f"{where} has format {said['format']}, this version knows {FORMAT}")
        return Manifest(**(said | {"files": tuple(DelayFile(**file) for file in said["files"])}))

    def settle(self, manifest: Manifest) -> Manifest:
        """This manifest, or that of another attempt which was faster."""
        self._once(MANIFEST, asdict(manifest))
        found = self.manifest()
        assert found is not None
        return found

    def adoptions(self) -> dict[str, str] | None:
        """Of a job that is done: the adoption of each file, by its path below the folder."""
        found: dict[str, str] | None = self._read(DONE)
        return found

    def done(self, adoptions: Mapping[str, str]) -> None:
        self._once(DONE, adoptions)

    def clean(self, manifest: Manifest) -> None:
        """Remove what other attempts left."""
        for folder in self.stage.folders():
            if folder.startswith(_ATTEMPT) and folder != manifest.attempt:
                self.stage.remove(folder)
        self.stage.tidy()

    def _read(self, name: str) -> Any:
        content = self.stage.read(name)
        if content is None:
            return None
        try:
            return orjson.loads(content)
        except ValueError as error:
            raise JobFailed(f"{self.stage.uri(name)} is damaged: {error}") from error

    def _once(self, name: str, said: Any) -> None:
        self.stage.write_once(name, orjson.dumps(said, option=orjson.OPT_INDENT_2))


def check_job(job: str) -> None:
    """Raises BadInput for what cannot be the id of a job."""
    if not _JOB.fullmatch(job):
        raise BadInput(
            f"a job's id has 1 to 100 characters of A-Z a-z 0-9 . _ -, the first a letter or digit, not {job!r}"
        )
