"""Which files may be imported, and how long a master waits for a missing file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from duemq.storage import object_store
from duemq.storage.imports.source import outside
from duemq.storage.jobs.jobs import ImportFile, ImportJob
from duemq.storage.limits import ImportLimits
from duemq.storage.object_store import ObjectStore, is_object


@dataclass(frozen=True, slots=True)
class ImportPolicy:
    """`folders`, `prefixes`: where files may be, as paths and as URIs in `store`. `limits`: the limits for messages.

    `lead_ms`: how far ahead of now a file's window must begin. `patience_ms`: how long a master waits for a missing
    file. `furthest_ms`: how far ahead of now messages may be due. `copies`: how many replicas must have a file before
    it is imported.
    """

    folders: tuple[Path, ...] = ()
    limits: ImportLimits = field(default_factory=ImportLimits)
    lead_ms: int = 120_000
    patience_ms: int = 60_000
    furthest_ms: int = 10 * 365 * 86_400_000
    copies: int = 1
    prefixes: tuple[str, ...] = ()
    store: ObjectStore = field(default_factory=ObjectStore)

    def job(self, files: Sequence[ImportFile] = (), inspect: str | None = None) -> ImportJob:
        """A job for the process that imports files (storage/imports/import_process.py)."""
        return ImportJob(
            limits=self.limits, folders=list(map(str, self.folders)), prefixes=self.prefixes, store=self.store,
            files=files, inspect=inspect,
        )  # fmt: skip

    @property
    def enabled(self) -> bool:
        """Whether there is a place that files may be imported from."""
        return bool(self.folders or self.prefixes)

    @property
    def too_near(self) -> str:
        """Why a file whose window begins too soon is refused."""
        return f"its window begins in less than {self.lead_ms // 1000} s: send its messages one by one"

    @property
    def too_far(self) -> str:
        """Why a file whose window begins too late is refused."""
        return "its messages are due later than limits.max_delay allows"

    def refuse_folder(self, path: str) -> str | None:
        """Why files may not be imported from this path, as a sentence; None if they may. Follows links. Blocks."""
        if is_object(path):
            return object_store.outside(path, self.prefixes)
        try:
            return outside(Path(path), Path(path).resolve(), self.folders)
        except (OSError, RuntimeError) as error:  # circular links
            return f"its folder cannot be examined: {error}"[:300]
