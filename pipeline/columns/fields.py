"""The parts of a message in each row of a user's table, as Spark expressions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from duemq.pipeline.columns.instants import check_zone, is_whole, need_time, shown
from duemq.pipeline.columns.mapping import CORRUPT, HEADERS, HIDDEN, NOT_UTF8, OWN, UNREAD, Columns, column
from duemq.pipeline.errors import BadInput

_BASE64 = r"^[A-Za-z0-9+/]*={0,2}\z"
_AS_JSON = {
    "ignoreNullFields": "false",
    # By default, times are written in the session's zone and cut to milliseconds.
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def with_fields(frame: DataFrame, columns: Columns) -> DataFrame:
    """The frame with the parts of a message in additional columns, each named after its field with the prefix `OWN`.

    A value that cannot be read becomes null, and `UNREAD` (with the prefix) has a sentence with the field and the
    value; it is null if the whole row could be read. Raises BadInput for missing columns and wrong types.
    """
    if clashes := [name for name in frame.columns if name.startswith(OWN)]:
        raise BadInput(f"column {clashes[0]}: names that begin with {OWN} are used here")
    if columns.zone is not None:
        check_zone(frame.sparkSession, columns.zone)
    read = _Reader(frame, columns)
    fields = {
        "due_ms": read.ms(columns.due, "due_ms"),
        "topic": F.lit(columns.to) if columns.topic is None else read.text(columns.topic, "topic"),
        "payload": read.payload(columns.payload),
        "key": F.lit(None).cast("binary") if columns.key is None else read.binary(columns.key, "key"),
        "headers": read.headers(columns.headers),
        "labels": read.labels(columns.labels),
        "expires_ms": F.lit(None).cast("bigint") if columns.expires is None else read.ms(columns.expires, "expires_ms"),
    }
    if columns.name is not None:
        fields["name"] = read.text(columns.name, "name", numbers=True)
    for name in columns.order:
        read.type_of(name, "order")
    fields[UNREAD] = read.unread()
    return frame.withColumns({OWN + name: value for name, value in fields.items()})


class _Reader:
    def __init__(self, frame: DataFrame, columns: Columns) -> None:
        self._columns = columns
        self._types = {field.name: field.dataType for field in frame.schema.fields}
        self._problems: list[Column] = []
        if len(self._types) < len(frame.schema.fields):
            raise BadInput("the table has two columns of one name")
        if CORRUPT in self._types:
            line = column(CORRUPT)
            why = F.when(line.contains(NOT_UTF8), "the line is not in its encoding (UTF-8, if none is named)")
            count = "the line has too few or too many columns"
            self._problems.append(F.when(line.isNotNull(), why.otherwise(count)))

    def type_of(self, name: str, use: str) -> T.DataType:
        if name not in self._types:
            there = ", ".join(one for one in self._types if not one.startswith(HIDDEN))
            raise BadInput(f"column {name} ({use}) is not there; there are {there}")
        return self._types[name]

    def unread(self) -> Column:
        return F.coalesce(*self._problems)

    def _wrong(self, field: str, when: Column, *sentence: str | Column) -> None:
        parts = (part if isinstance(part, Column) else F.lit(part) for part in sentence)
        self._problems.append(F.when(when, F.concat(F.lit(self._columns.source(field) + ": "), *parts)))

    def ms(self, name: str, field: str) -> Column:
        use = field.removesuffix("_ms")
        kind, value = self.type_of(name, use), column(name)
        time = need_time(value, kind, f"column {name} ({use})", zone=self._columns.zone, unit=self._columns.unit)
        if field == "due_ms":
            self._wrong(field, value.isNull(), "is null; every message needs one")
        self._wrong(field, time.problem.isNotNull(), "'", shown(value), "' ", time.problem)
        return time.ms

    def text(self, name: str, use: str, *, numbers: bool = False) -> Column:
        kind = self.type_of(name, use)
        if isinstance(kind, T.StringType) or (numbers and is_whole(kind)):
            return column(name).cast("string")
        raise BadInput(f"column {name} ({use}) must be a string, not {kind.simpleString()}")

    def binary(self, name: str, use: str) -> Column:
        kind = self.type_of(name, use)
        if isinstance(kind, T.StringType | T.BinaryType):
            return column(name).cast("binary")
        if is_whole(kind):
            return column(name).cast("string").cast("binary")
        raise BadInput(f"column {name} ({use}) must be a string, binary or a whole number, not {kind.simpleString()}")

    def payload(self, names: str | tuple[str, ...]) -> Column:
        if isinstance(names, str):
            if self._columns.payload_base64:
                return self._from_base64(names)
            kind = self.type_of(names, "payload")
            if not isinstance(kind, T.StructType | T.MapType | T.ArrayType):
                return self.binary(names, "payload")
            value = column(names)
        else:
            for name in names:
                self.type_of(name, "payload")
            value = F.struct(*map(column, names))
            kind = T.StructType([T.StructField(name, self._types[name]) for name in names])
        if _has_floats(kind):
            self._wrong("payload", _not_finite(kind, value), "NaN and Infinity are no numbers in JSON")
        return F.to_json(value, _AS_JSON).cast("binary")

    def _from_base64(self, name: str) -> Column:
        text = self.text(name, "payload")
        value = F.when(text.rlike(_BASE64), F.try_to_binary(text, F.lit("base64")))
        self._wrong("payload", text.isNotNull() & value.isNull(), "'", shown(text), "' is not base64")
        return value

    def headers(self, source: str | Mapping[str, str] | None) -> Column:
        prefix = self._columns.header_prefix
        own = {} if prefix is None else {
            name.removeprefix(prefix): name for name in self._types if name.startswith(prefix)
        }  # fmt: skip
        if isinstance(source, Mapping):
            if twice := own.keys() & source.keys():
                name = min(twice)
                raise BadInput(f"header {name} is given twice: by column {source[name]} and by {own[name]}")
            return self._named({**source, **own})
        if source is None:
            return self._named(own) if own else F.lit(None).cast(HEADERS)
        pairs = self._pairs(source)
        if not own:
            return pairs
        named = self._named(own)
        over = F.transform(named, lambda header: header["name"])
        left = F.filter(pairs, lambda header: header["name"].isNull() | ~F.array_contains(over, header["name"]))
        return F.concat(F.coalesce(left, F.array().cast(HEADERS)), named)

    def _named(self, names: Mapping[str, str]) -> Column:
        each = [
            F.when(column(name).isNotNull(), _header(F.lit(header), self.binary(name, f"header {header}")))
            for header, name in names.items()
        ]
        return F.filter(F.array(*each), lambda header: header.isNotNull()).cast(HEADERS)

    def _pairs(self, name: str) -> Column:
        kind, value = self.type_of(name, "headers"), column(name)
        if isinstance(kind, T.StringType):
            text = F.trim(value)
            json = F.when(text.startswith("{"), F.from_json(text, "map<string,string>"))
            self._wrong("headers", (text != "") & json.isNull(), "'", shown(value), "' is no JSON object")
            value = json
        elif isinstance(kind, T.ArrayType) and isinstance(kind.elementType, T.StructType):
            types = {field.name: field.dataType for field in kind.elementType.fields}
            if types.keys() == {"name", "value"} and _is_text(types["name"]) and _is_bytes(types["value"]):
                return F.transform(value, lambda one: F.when(one.isNotNull(), _header(one["name"], one["value"]))).cast(
                    HEADERS
                )
        if isinstance(kind, T.StringType) or (
            isinstance(kind, T.MapType) and _is_text(kind.keyType) and _is_bytes(kind.valueType)
        ):
            return F.transform(F.map_entries(value), lambda entry: _header(entry["key"], entry["value"]))
        choices = "a map of strings to strings or binaries, an array of structs of name and value, or text with JSON"
        raise BadInput(f"column {name} (headers) must be {choices}, not {kind.simpleString()}")

    def labels(self, source: str | tuple[str, ...] | None) -> Column:
        if source is None:
            return F.lit(None).cast("array<string>")
        if isinstance(source, str):
            kind = self.type_of(source, "labels")
            if isinstance(kind, T.ArrayType) and _is_text(kind.elementType):
                return column(source)
            source = (source,)
        texts = [self.text(name, "labels") for name in source]
        for text in texts:  # `split` would change bytes that are not UTF-8
            self._wrong("labels", ~F.is_valid_utf8(text), "a label is not UTF-8")
        each = F.flatten(F.array_compact(F.array(*(F.split(text, ",") for text in texts))))
        return F.filter(F.transform(each, lambda label: F.trim(label)), lambda label: label != "")


def _not_finite(kind: T.DataType, value: Column) -> Column:
    """Whether any number inside a value is NaN or infinite; null if a part is null."""
    if isinstance(kind, T.DoubleType | T.FloatType):
        return F.isnan(value) | (F.abs(value) == float("inf"))
    if isinstance(kind, T.ArrayType):
        of = kind.elementType
        return F.exists(value, lambda one: _not_finite(of, one)) if _has_floats(of) else F.lit(False)
    if isinstance(kind, T.MapType):
        keys, values = (T.ArrayType(of) for of in (kind.keyType, kind.valueType))
        return _not_finite(keys, F.map_keys(value)) | _not_finite(values, F.map_values(value))
    fields = kind.fields if isinstance(kind, T.StructType) else []
    wrongs = (_not_finite(one.dataType, value.getField(one.name)) for one in fields if _has_floats(one.dataType))
    return reduce(or_, wrongs, F.lit(False))


def _has_floats(kind: T.DataType) -> bool:
    return any(name in kind.simpleString() for name in ("double", "float"))  # also true if a field has such a name


def _header(name: Column, value: Column) -> Column:
    return F.struct(name.alias("name"), value.cast("binary").alias("value"))


def _is_text(of: T.DataType) -> bool:
    return isinstance(of, T.StringType)


def _is_bytes(of: T.DataType) -> bool:
    return isinstance(of, T.StringType | T.BinaryType)
