"""The refused rows of a stream, as a table: a folder for each batch of a query."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext

_BYTES: Final = 8 << 20  # of payloads in memory before they are written
_ROWS: Final = 10_000
_TEXT, _PAIR = pa.string(), pa.struct([("name", pa.string()), ("value", pa.binary())])
SCHEMA: Final = pa.schema([
    ("name", _TEXT), ("topic", _TEXT), ("due_ms", pa.int64()), ("payload", pa.binary()), ("key", pa.binary()),
    ("headers", pa.list_(_PAIR)), ("labels", pa.list_(_TEXT)), ("expires_ms", pa.int64()), ("reason", _TEXT),
])  # fmt: skip


class RefusedRows:
    """The refused rows of one task, in files `PREFIX-N.parquet` in `folder`. A repeated task writes the same files."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self._folder, self._prefix = folder, prefix
        self._rows: list[dict[str, Any]] = []
        self._bytes = self._files = 0

    @classmethod
    def of_task(cls, root: Path) -> Self:
        """The refused rows of the current task, by query, batch and partition."""
        task = TaskContext.get()
        assert task is not None
        query, batch = (task.getLocalProperty(name) for name in ("sql.streaming.queryId", "streaming.sql.batchId"))
        return cls(root / f"query={query}" / f"batch={batch}", f"part-{task.partitionId():05}")

    def add(self, row: dict[str, Any], reason: str) -> None:
        """Add a row from `posting`, whose texts are bytes. Invalid UTF-8 in a name or topic is replaced."""
        pairs = [one if isinstance(one, dict) else dict(zip(("name", "value"), one, strict=True))
                 for one in row.get("headers") or ()]  # fmt: skip
        texts = {name: None if row[name] is None else row[name].decode(errors="replace") for name in ("name", "topic")}
        self._rows.append(row | texts | {"headers": pairs, "reason": reason})
        self._bytes += len(row["payload"] or b"")
        if self._bytes > _BYTES or len(self._rows) >= _ROWS:
            self.flush()

    def flush(self) -> None:
        """Write the rows in memory to a file, atomically."""
        if not self._rows:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{self._prefix}-{self._files}.parquet"
        temporary = path.with_name(f".{uuid.uuid4().hex}.new")  # Spark ignores files whose names begin with a dot
        pq.write_table(pa.Table.from_pylist(self._rows, SCHEMA), temporary)
        temporary.replace(path)
        self._rows, self._bytes, self._files = [], 0, self._files + 1
