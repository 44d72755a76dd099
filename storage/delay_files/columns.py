"""The columns of delay files from other writers, and the form in which duemq stores them (docs/guides/delay-files.md).

Spark, pandas, polars and DuckDB write the same column in slightly different types: large, view and dictionary-encoded
types, maps or lists of structs, nullable or not. Here they are converted to the types of `SCHEMA`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from duemq.model.errors import BadDelayFile
from duemq.storage.delay_files.sealed_file import GROUP_BYTES

MAX_ROWS = 2**31 - 1
ROWS_PER_GROUP = 4_096

_HEADER = pa.struct([("name", pa.string()), ("value", pa.binary())])
SCHEMA = pa.schema([
    pa.field("due_ms", pa.int64(), nullable=False),
    pa.field("topic", pa.string(), nullable=False),
    pa.field("payload", pa.binary()),
    pa.field("key", pa.binary()),
    pa.field("headers", pa.list_(_HEADER)),
    pa.field("labels", pa.list_(pa.string())),
    pa.field("expires_ms", pa.int64()),
])  # fmt: skip
REQUIRED = ("due_ms", "topic", "payload")
_NEVER_NULL = ("due_ms", "topic")
OWN = ("name",)
"""The start of the writer's private columns, which duemq ignores. They must follow the other columns in a file
that is linked instead of copied."""


def _is_text(of: pa.DataType) -> bool:
    of = of.value_type if pt.is_dictionary(of) else of
    return bool(pt.is_string(of) or pt.is_large_string(of) or pt.is_string_view(of))


def _is_bytes(of: pa.DataType) -> bool:
    plain = of.value_type if pt.is_dictionary(of) else of
    return _is_text(of) or bool(pt.is_binary(plain) or pt.is_large_binary(plain) or pt.is_binary_view(plain))


def _is_list(of: pa.DataType) -> bool:
    return bool(pt.is_list(of) or pt.is_large_list(of))


def _is_headers(of: pa.DataType) -> bool:
    if pt.is_map(of):
        return _is_text(of.key_type) and _is_bytes(of.item_type)
    if not _is_list(of) or not pt.is_struct(of.value_type):
        return False
    types = {field.name: field.type for field in of.value_type}
    return types.keys() == {"name", "value"} and _is_text(types["name"]) and _is_bytes(types["value"])


_FITS: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "due_ms": (pt.is_int64, "int64 (epoch ms)"),
    "topic": (_is_text, "string"),
    "payload": (_is_bytes, "binary or string"),
    "key": (_is_bytes, "binary or string"),
    "headers": (_is_headers, "list<struct<name: string, value: binary or string>> or map<string, binary or string>"),
    "labels": (lambda of: _is_list(of) and _is_text(of.value_type), "list<string>"),
    "expires_ms": (pt.is_int64, "int64 (epoch ms)"),
    "name": (_is_text, "string"),
}


def check_schema(schema: pa.Schema) -> None:
    """Raises BadDelayFile with the first column that is unknown, duplicate, of another type, or missing."""
    for at, field in enumerate(schema):
        name = field.name
        if name not in _FITS:
            raise BadDelayFile(f"is unknown; known are {', '.join(_FITS)}", column=name)
        if name in schema.names[:at]:
            raise BadDelayFile("is there twice", column=name)
        fits, type_name = _FITS[name]
        if not fits(field.type) and not (pt.is_null(field.type) and name not in _NEVER_NULL):
            raise BadDelayFile(f"must be {type_name}, not {field.type}", column=name)
    for name in REQUIRED:
        if name not in schema.names:
            raise BadDelayFile(f"is missing; {', '.join(REQUIRED)} must be there", column=name)


def normalise(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows in the types of `SCHEMA`, whichever values are null. The batch's schema must have been checked."""
    columns = []
    for field in SCHEMA:
        at = batch.schema.get_field_index(field.name)
        if at < 0 or pt.is_null(batch.schema.field(at).type):
            columns.append(pa.nulls(batch.num_rows, field.type))
        elif field.name == "headers":
            columns.append(_headers(batch.column(at)))
        elif field.name == "labels":
            columns.append(_list_of(batch.column(at), pc.list_flatten(batch.column(at)).cast(pa.string())))
        else:
            columns.append(batch.column(at).cast(field.type))
    return pa.RecordBatch.from_arrays(columns, names=SCHEMA.names)


def _headers(column: pa.Array) -> pa.Array:
    if pt.is_map(column.type):
        of = column.type
        column = column.cast(pa.list_(pa.struct([("name", of.key_type), ("value", of.item_type)])))
    each = pc.list_flatten(column)
    parts = [pc.struct_field(each, field.name).cast(field.type) for field in _HEADER]
    return _list_of(column, pa.StructArray.from_arrays(parts, fields=list(_HEADER), mask=each.is_null()))


def _list_of(column: pa.Array, values: pa.Array) -> pa.Array:
    """Lists with the lengths of those in `column`. A null becomes an empty list."""
    ends = np.cumsum(pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(np.concatenate((np.zeros(1, np.int32), ends))), values)


def has_form(schema: pa.Schema) -> bool:
    """Whether these are the columns of `SCHEMA`, nullable or not, optionally followed by the writer's private ones."""
    count = len(SCHEMA)
    return (
        schema.names[:count] == SCHEMA.names
        and schema.names[count:] in ([], list(OWN))
        and all(map(_alike, schema.types[:count], SCHEMA.types))
    )


def is_normal(file: pq.ParquetFile) -> bool:
    """Whether a reader of imported files can read this file unchanged."""
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    return has_form(file.schema_arrow) and all(
        group.num_rows <= ROWS_PER_GROUP
        and group.total_byte_size <= 2 * GROUP_BYTES
        and group.column(0).is_stats_set
        and group.column(0).statistics.has_min_max
        for group in groups
    )


def _alike(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether two types differ at most in nullability."""
    if pt.is_list(one) and pt.is_list(other):
        return _alike(one.value_type, other.value_type)
    if pt.is_struct(one) and pt.is_struct(other):
        return [field.name for field in one] == [field.name for field in other] and all(
            _alike(left.type, right.type) for left, right in zip(one, other, strict=True)
        )
    return bool(one == other)
