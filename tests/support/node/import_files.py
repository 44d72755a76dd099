"""Small files as somebody would write them to have them imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from duemq.model.timing import WINDOW_MS
from duemq.storage.delay_files.columns import SCHEMA
from duemq.storage.limits import ImportLimits

WINDOW = 1_000_000 * WINDOW_MS
"""Its start, ms: in the year 2027."""


LIMITS = ImportLimits(max_payload_bytes=20, max_headers=3, max_headers_bytes=60, max_key_bytes=5)


def message(at: int, **more: Any) -> dict[str, Any]:
    """A message that is due `at` ms after the window's start."""
    return {"due_ms": WINDOW + at, "topic": "orders", "payload": b"%d" % at} | more


def file_of(path: Path, rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA, **options: Any) -> Path:
    """`rows` may lack any column, which is then null; `schema` says which columns are written."""
    nullable = pa.schema([field.with_nullable(True) for field in schema])
    pq.write_table(pa.Table.from_pylist(rows, nullable), path, **options)
    return path


def header(name: object = "h", value: object = b"v") -> dict[str, object]:
    return {"name": name, "value": value}
