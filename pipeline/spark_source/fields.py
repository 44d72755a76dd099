"""The columns that can be written: those in a delay file (docs/guides/delay-files.md), with a name for each row."""

from __future__ import annotations

from base64 import b64decode
from typing import Final

from pyspark.sql import types as T

from duemq.client.http.values import MessageState, Record
from duemq.pipeline.columns import FIELDS
from duemq.pipeline.errors import BadInput

REQUIRED: Final = ("name", "topic", "due_ms", "payload")
_NUMBER = (T.LongType, T.IntegerType)
_BYTES = (T.StringType, T.BinaryType)
_TYPES: Final[dict[str, tuple[tuple[type[T.DataType], ...], str]]] = {
    "name": ((T.StringType,), "a string"), "topic": ((T.StringType,), "a string"),
    "due_ms": (_NUMBER, "epoch ms (bigint)"), "payload": (_BYTES, "a string or binary"),
    "key": (_BYTES, "a string or binary"), "expires_ms": (_NUMBER, "epoch ms (bigint)"),
    "labels": ((T.ArrayType,), "an array of strings"),
    "headers": ((T.ArrayType, T.MapType), "an array of structs of name and value, or a map"),
}  # fmt: skip


def check(schema: T.StructType) -> None:
    """Raise BadInput for columns that cannot be written."""
    types = {field.name: field.dataType for field in schema.fields}
    if unknown := sorted(types.keys() - _TYPES.keys()):
        raise BadInput(f"column {unknown[0]}: is not known here; known are {', '.join(FIELDS)}")
    if missing := [name for name in REQUIRED if name not in types]:
        raise BadInput(f"column {missing[0]}: is missing; each row needs {', '.join(REQUIRED)}")
    for name, data_type in types.items():
        kinds, description = _TYPES[name]
        if not isinstance(data_type, kinds):
            raise BadInput(f"column {name}: must be {description}, not {data_type.simpleString()}")


def key_of(read: MessageState | Record) -> bytes | None:
    """The key of a message or record, which may not be UTF-8."""
    encoded = read.raw.get("key_base64")
    return b64decode(encoded) if encoded is not None else None if read.key is None else read.key.encode()
