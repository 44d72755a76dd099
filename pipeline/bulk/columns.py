"""Which columns of a user's table are what of a message, as Spark expressions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from duemq.pipeline.errors import BadInput
from duemq.pipeline.instants import A_TIME, epoch_ms

OWN: Final = "_duemq_"  # what the columns begin with that are made here, beside the user's
FIELDS: Final = ("due_ms", "topic", "payload", "key", "headers", "labels", "expires_ms", "name")
HEADERS: Final = "array<struct<name:string,value:binary>>"
_NUMBERS = (T.LongType, T.IntegerType, T.ShortType, T.ByteType)


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of the user's columns, for each part of a message.

    `topic` is a column, `to` the one topic of all rows: one of the two. `payload`: a string or binary column; a struct,
    map or array, or several columns, become JSON. `headers`: a map, an array of structs `name, value`, or a header name
    for each of some columns (null: no such header). `labels`: an array, or columns with one label each (null: none).
    `name`: yours, unique, to join the ids by. `order`: which of the rows due in one millisecond comes first.
    """

    due: str
    payload: str | tuple[str, ...]
    topic: str | None = None
    to: str | None = None
    key: str | None = None
    headers: str | Mapping[str, str] | None = None
    labels: str | tuple[str, ...] | None = None
    expires: str | None = None
    name: str | None = None
    order: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.topic is None) == (self.to is None):
            raise BadInput("either a column for the topic must be named or one topic for all rows")

    def said(self) -> dict[str, Any]:
        """As JSON-able values."""
        return asdict(self)

    def source(self, field: str) -> str:
        """A field with the user's columns it comes from, for a sentence."""
        names = {
            "due_ms": self.due, "topic": self.topic, "payload": self.payload, "key": self.key,
            "headers": tuple(self.headers.values()) if isinstance(self.headers, Mapping) else self.headers,
            "labels": self.labels, "expires_ms": self.expires, "name": self.name,
        }[field]  # fmt: skip
        listed = [names] if isinstance(names, str) else list(names or ())
        return field if listed in ([], [field]) else f"{field} (column {', '.join(listed)})"


def with_fields(frame: DataFrame, columns: Columns) -> DataFrame:
    """The frame with the parts of a message beside its own columns, under their names behind `OWN`.

    What cannot be read is null. Raises BadInput for columns that are not there or cannot be what they are to be.
    """
    if taken := [name for name in frame.columns if name.startswith(OWN)]:
        raise BadInput(f"column {taken[0]}: names that begin with {OWN} are used here")
    read = _Reader(frame)
    fields = {
        "due_ms": read.ms(columns.due, "due"),
        "topic": F.lit(columns.to) if columns.topic is None else read.text(columns.topic, "topic"),
        "payload": read.payload(columns.payload),
        "key": F.lit(None).cast("binary") if columns.key is None else read.binary(columns.key, "key"),
        "headers": read.headers(columns.headers),
        "labels": read.labels(columns.labels),
        "expires_ms": F.lit(None).cast("bigint") if columns.expires is None else read.ms(columns.expires, "expires"),
    }
    if columns.name is not None:
        fields["name"] = read.text(columns.name, "name", numbers=True)
    for name in columns.order:
        read.type_of(name, "order")
    return frame.withColumns({OWN + name: column for name, column in fields.items()})


class _Reader:
    def __init__(self, frame: DataFrame) -> None:
        self._types = {field.name: field.dataType for field in frame.schema.fields}
        if len(self._types) < len(frame.schema.fields):
            raise BadInput("the table has two columns of one name")

    def type_of(self, name: str, use: str) -> T.DataType:
        if name not in self._types:
            raise BadInput(f"column {name} ({use}) is not there; there are {', '.join(self._types)}")
        return self._types[name]

    def ms(self, name: str, use: str) -> Column:
        found, column = self.type_of(name, use), _of(name)
        if (ms := epoch_ms(column, found)) is not None:
            return ms
        raise BadInput(f"column {name} ({use}) must be {A_TIME}, not {found.simpleString()}")

    def text(self, name: str, use: str, *, numbers: bool = False) -> Column:
        found = self.type_of(name, use)
        if isinstance(found, T.StringType) or (numbers and isinstance(found, _NUMBERS)):
            return _of(name).cast("string")
        raise BadInput(f"column {name} ({use}) must be a string, not {found.simpleString()}")

    def binary(self, name: str, use: str) -> Column:
        found = self.type_of(name, use)
        if isinstance(found, T.StringType | T.BinaryType):
            return _of(name).cast("binary")
        if isinstance(found, _NUMBERS):
            return _of(name).cast("string").cast("binary")
        raise BadInput(f"column {name} ({use}) must be a string, binary or a whole number, not {found.simpleString()}")

    def payload(self, names: str | tuple[str, ...]) -> Column:
        if isinstance(names, str):
            if not isinstance(self.type_of(names, "payload"), T.StructType | T.MapType | T.ArrayType):
                return self.binary(names, "payload")
            value = _of(names)
        else:
            for name in names:
                self.type_of(name, "payload")
            value = F.struct(*map(_of, names))
        return F.to_json(value, {"ignoreNullFields": "false"}).cast("binary")

    def headers(self, given: str | Mapping[str, str] | None) -> Column:
        if given is None:
            return F.lit(None).cast(HEADERS)
        if isinstance(given, Mapping):
            each = [
                F.when(_of(name).isNotNull(), _header(F.lit(header), self.binary(name, f"header {header}")))
                for header, name in given.items()
            ]
            return F.filter(F.array(*each), lambda header: header.isNotNull()).cast(HEADERS)
        found, column = self.type_of(given, "headers"), _of(given)
        if isinstance(found, T.MapType) and _is_text(found.keyType) and _is_bytes(found.valueType):
            return F.transform(F.map_entries(column), lambda entry: _header(entry["key"], entry["value"]))
        if isinstance(found, T.ArrayType) and isinstance(found.elementType, T.StructType):
            types = {field.name: field.dataType for field in found.elementType.fields}
            if types.keys() == {"name", "value"} and _is_text(types["name"]) and _is_bytes(types["value"]):
                return F.transform(
                    column, lambda one: F.when(one.isNotNull(), _header(one["name"], one["value"]))
                ).cast(HEADERS)
        wanted = "a map of strings to strings or binaries, or an array of structs of name and value"
        raise BadInput(f"column {given} (headers) must be {wanted}, not {found.simpleString()}")

    def labels(self, given: str | tuple[str, ...] | None) -> Column:
        if given is None:
            return F.lit(None).cast("array<string>")
        if isinstance(given, str):
            found = self.type_of(given, "labels")
            if isinstance(found, T.ArrayType) and _is_text(found.elementType):
                return _of(given)
            given = (given,)
        return F.array_compact(F.array(*(self.text(name, "labels") for name in given)))


def _of(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")


def _header(name: Column, value: Column) -> Column:
    return F.struct(name.alias("name"), value.cast("binary").alias("value"))


def _is_text(of: T.DataType) -> bool:
    return isinstance(of, T.StringType)


def _is_bytes(of: T.DataType) -> bool:
    return isinstance(of, T.StringType | T.BinaryType)
