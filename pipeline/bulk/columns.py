"""Which columns of a user's table are what of a message, as Spark expressions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from duemq.pipeline.errors import BadInput
from duemq.pipeline.instants import UNITS, check_name_of_zone, check_zone, need_time, shown

OWN: Final = "_duemq_"  # what the columns begin with that are made here, beside the user's
HIDDEN: Final = "__duemq_"  # columns that a reader of ours puts beside the user's: not named to a user
FIELDS: Final = ("due_ms", "topic", "payload", "key", "headers", "labels", "expires_ms", "name")
UNREAD: Final = "unread"
HEADERS: Final = "array<struct<name:string,value:binary>>"
HEADER_PREFIX: Final = "header."
_NUMBERS = (T.LongType, T.IntegerType, T.ShortType, T.ByteType)
_BASE64 = r"^[A-Za-z0-9+/]*={0,2}\z"
_AS_JSON = {
    "ignoreNullFields": "false",
    # The same text in every session, and nothing cut off: by default it is in the session's zone, to the millisecond.
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of the user's columns, for each part of a message.

    `topic` is a column, `to` the one topic of all rows: one of the two. `payload`: a string or binary column; a struct,
    map or array, or several columns, become JSON. `headers`: a map, an array of structs `name, value`, text with a JSON
    object, or a header name for each of some columns (null: no such header). `labels`: an array, or columns of text,
    divided at commas (null: none). `name`: yours, unique, to join the ids by. `order`: which of the rows due in one
    millisecond comes first.

    `due` and `expires` are times, see `read_time`: `zone` is that of times without one (such as Europe/Berlin), `unit`
    what whole numbers count, "ms" or "s" since 1970. `payload_base64`: the payload is text in base64. `header_prefix`:
    columns whose names begin with it are headers too, named by the rest, before those of the same name in `headers`.
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
    zone: str | None = None
    unit: str = "ms"
    payload_base64: bool = False
    header_prefix: str | None = None

    def __post_init__(self) -> None:
        if (self.topic is None) == (self.to is None):
            raise BadInput("either a column for the topic must be named or one topic for all rows")
        if self.unit not in UNITS:
            raise BadInput(f"the unit of whole numbers is {' or '.join(UNITS)}, not {self.unit}")
        if self.payload_base64 and not isinstance(self.payload, str):
            raise BadInput(f"columns {', '.join(self.payload)} (payload): base64 is of one column")
        if self.zone is not None:
            check_name_of_zone(self.zone)

    @property
    def has_headers(self) -> bool:
        """Whether messages may have headers of their own."""
        return self.headers is not None or self.header_prefix is not None

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


def column(name: str) -> Column:
    """The column of exactly this name: dots and backticks in it are nothing but letters."""
    return F.col("`" + name.replace("`", "``") + "`")


def with_fields(frame: DataFrame, columns: Columns) -> DataFrame:
    """The frame with the parts of a message beside its own columns, under their names behind `OWN`.

    What cannot be read is null, and `UNREAD` (behind `OWN`) is a sentence with the field and the value; null where all
    could be read. Raises BadInput for columns that are not there or cannot be what they are to be.
    """
    if taken := [name for name in frame.columns if name.startswith(OWN)]:
        raise BadInput(f"column {taken[0]}: names that begin with {OWN} are used here")
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
    return frame.withColumns({OWN + name: found for name, found in fields.items()})


class _Reader:
    def __init__(self, frame: DataFrame, columns: Columns) -> None:
        self._columns = columns
        self._types = {field.name: field.dataType for field in frame.schema.fields}
        self._problems: list[Column] = []
        if len(self._types) < len(frame.schema.fields):
            raise BadInput("the table has two columns of one name")

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
        found = self.type_of(name, use)
        if isinstance(found, T.StringType) or (numbers and isinstance(found, _NUMBERS)):
            return column(name).cast("string")
        raise BadInput(f"column {name} ({use}) must be a string, not {found.simpleString()}")

    def binary(self, name: str, use: str) -> Column:
        found = self.type_of(name, use)
        if isinstance(found, T.StringType | T.BinaryType):
            return column(name).cast("binary")
        if isinstance(found, _NUMBERS):
            return column(name).cast("string").cast("binary")
        raise BadInput(f"column {name} ({use}) must be a string, binary or a whole number, not {found.simpleString()}")

    def payload(self, names: str | tuple[str, ...]) -> Column:
        if isinstance(names, str):
            if self._columns.payload_base64:
                return self._from_base64(names)
            if not isinstance(self.type_of(names, "payload"), T.StructType | T.MapType | T.ArrayType):
                return self.binary(names, "payload")
            value = column(names)
        else:
            for name in names:
                self.type_of(name, "payload")
            value = F.struct(*map(column, names))
        return F.to_json(value, _AS_JSON).cast("binary")

    def _from_base64(self, name: str) -> Column:
        text = self.text(name, "payload")
        value = F.when(text.rlike(_BASE64), F.try_to_binary(text, F.lit("base64")))
        self._wrong("payload", text.isNotNull() & value.isNull(), "'", shown(text), "' is not base64")
        return value

    def headers(self, given: str | Mapping[str, str] | None) -> Column:
        prefix = self._columns.header_prefix
        own = {} if prefix is None else {
            name.removeprefix(prefix): name for name in self._types if name.startswith(prefix)
        }  # fmt: skip
        if isinstance(given, Mapping):
            if twice := own.keys() & given.keys():
                name = min(twice)
                raise BadInput(f"header {name} is said twice: of column {given[name]}, and of {own[name]}")
            return self._named({**given, **own})
        if given is None:
            return self._named(own) if own else F.lit(None).cast(HEADERS)
        pairs = self._pairs(given)
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
        found, value = self.type_of(name, "headers"), column(name)
        if isinstance(found, T.StringType):
            text = F.trim(value)
            json = F.when(text.startswith("{"), F.from_json(text, "map<string,string>"))
            self._wrong("headers", (text != "") & json.isNull(), "'", shown(value), "' is no JSON object")
            value = json
        elif isinstance(found, T.ArrayType) and isinstance(found.elementType, T.StructType):
            types = {field.name: field.dataType for field in found.elementType.fields}
            if types.keys() == {"name", "value"} and _is_text(types["name"]) and _is_bytes(types["value"]):
                return F.transform(value, lambda one: F.when(one.isNotNull(), _header(one["name"], one["value"]))).cast(
                    HEADERS
                )
        if isinstance(found, T.StringType) or (
            isinstance(found, T.MapType) and _is_text(found.keyType) and _is_bytes(found.valueType)
        ):
            return F.transform(F.map_entries(value), lambda entry: _header(entry["key"], entry["value"]))
        known = "a map of strings to strings or binaries, an array of structs of name and value, or text with JSON"
        raise BadInput(f"column {name} (headers) must be {known}, not {found.simpleString()}")

    def labels(self, given: str | tuple[str, ...] | None) -> Column:
        if given is None:
            return F.lit(None).cast("array<string>")
        if isinstance(given, str):
            found = self.type_of(given, "labels")
            if isinstance(found, T.ArrayType) and _is_text(found.elementType):
                return column(given)
            given = (given,)
        texts = [self.text(name, "labels") for name in given]
        for text in texts:  # `split` makes other characters of what is not UTF-8
            self._wrong("labels", ~F.is_valid_utf8(text), "a label is not UTF-8")
        each = F.flatten(F.array_compact(F.array(*(F.split(text, ",") for text in texts))))
        return F.filter(F.transform(each, lambda label: F.trim(label)), lambda label: label != "")


def _header(name: Column, value: Column) -> Column:
    return F.struct(name.alias("name"), value.cast("binary").alias("value"))


def _is_text(of: T.DataType) -> bool:
    return isinstance(of, T.StringType)


def _is_bytes(of: T.DataType) -> bool:
    return isinstance(of, T.StringType | T.BinaryType)
