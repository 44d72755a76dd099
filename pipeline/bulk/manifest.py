"""The folder of a job: what was written, said once and for all.

    STAGE/JOB/attempt-<random>/window=<start>/part-*.parquet   delay files of one attempt
    STAGE/JOB/manifest.json                                    which attempt is the job, and each of its files
    STAGE/JOB/done.json                                        the adoptions, once all of them are adopted

Both documents are written once, by a hard link of a synced temporary: who comes second finds the first one's and uses
that. Nothing but what the manifest lists is ever handed over.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from duemq.pipeline.bulk.files import DelayFile
from duemq.pipeline.errors import BadInput, JobFailed
from duemq.storage.durable import sync_folder

FORMAT: Final = 1
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
    """Of one job, below the folder `stage`, which the server and the executors see under the same path."""

    def __init__(self, stage: Path, job: str) -> None:
        if not _JOB.fullmatch(job):
            raise BadInput(
                f"a job's id has 1 to 100 characters of A-Z a-z 0-9 . _ -, the first a letter or digit, not {job!r}"
            )
        self.job, self.path = job, stage.absolute() / job
        self.path.mkdir(parents=True, exist_ok=True)

    def new_attempt(self) -> Path:
        """A folder that nobody else uses. It is not made."""
        return self.path / f"{_ATTEMPT}{uuid.uuid4().hex[:12]}"

    def manifest(self) -> Manifest | None:
        said = self._read("manifest.json")
        if said is None:
            return None
        if said["format"] != FORMAT:
            raise JobFailed(f"{self.path}/manifest.json has format {said['format']}, this version knows {FORMAT}")
        return Manifest(**(said | {"files": tuple(DelayFile(**file) for file in said["files"])}))

    def settle(self, manifest: Manifest) -> Manifest:
        """This manifest, or that of another attempt which was faster."""
        self._once("manifest.json", asdict(manifest))
        found = self.manifest()
        assert found is not None
        return found

    def adoptions(self) -> dict[str, str] | None:
        """Of a job that is done: the adoption of each file, by its path below the folder."""
        found: dict[str, str] | None = self._read("done.json")
        return found

    def done(self, adoptions: Mapping[str, str]) -> None:
        self._once("done.json", adoptions)

    def clean(self, manifest: Manifest) -> None:
        """Remove what other attempts left."""
        for path in self.path.iterdir():
            if (path.name.startswith(_ATTEMPT) and path.name != manifest.attempt) or path.suffix == ".new":
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)

    def _read(self, name: str) -> Any:
        try:
            return orjson.loads((self.path / name).read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise JobFailed(f"{self.path / name} is damaged: {error}") from error

    def _once(self, name: str, said: Any) -> None:
        temporary = self.path / f"{uuid.uuid4().hex}.new"
        with temporary.open("wb") as file:
            file.write(orjson.dumps(said, option=orjson.OPT_INDENT_2))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(temporary, self.path / name)
        temporary.unlink()
        sync_folder(self.path)
