"""The user's mapping of a table's columns to the parts of a message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from duemq.pipeline.columns.instants import UNITS, check_name_of_zone
from duemq.pipeline.errors import BadInput

OWN: Final = "_duemq_"  # the prefix of columns that are added to the user's
HIDDEN: Final = "__duemq_"  # the prefix of columns that our readers add, which error texts leave out
CORRUPT: Final = HIDDEN + "corrupt"
"""The column in the result of `csv_table` with the text of a malformed line; null for other rows."""
NOT_UTF8: Final = "\N{REPLACEMENT CHARACTER}"  # Java's replacement for bytes outside the encoding
FIELDS: Final = ("due_ms", "topic", "payload", "key", "headers", "labels", "expires_ms", "name")
UNREAD: Final = "unread"
HEADERS: Final = "array<struct<name:string,value:binary>>"
HEADER_PREFIX: Final = "header."


@dataclass(frozen=True, slots=True)
class Columns:
    """The user's columns for each part of a message.

    `topic`: a column; or `to`: one topic for all rows. `payload`: a string or binary column; a struct, map or array, or
    several columns, become JSON. `headers`: a map, an array of structs `name, value`, text with a JSON object, or a
    column per header name (null: no such header). `labels`: an array, or text columns, split at commas (null: no
    labels). `name`: your unique names, by which the ids can be joined to the table. `order`: columns that sort rows due
    in the same millisecond.

    `due` and `expires` are times (see `read_time`): `zone` is the zone of times without one (such as Europe/Berlin),
    `unit` the unit of whole numbers, "ms" or "s" since 1970. `payload_base64`: the payload is text in base64.
    `header_prefix`: columns with this prefix are headers, too, named by the rest of the column name; they override
    equal names in `headers`. `nulls`: null payloads and header values are sent as null; by default such rows are
    refused, because null may also mean a missing value.
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
    nulls: bool = False

    def __post_init__(self) -> None:
        if (self.topic is None) == (self.to is None):
            raise BadInput("either a column for the topic must be named or one topic for all rows")
        if self.unit not in UNITS:
            raise BadInput(f"the unit of whole numbers is {' or '.join(UNITS)}, not {self.unit}")
        if self.payload_base64 and not isinstance(self.payload, str):
            raise BadInput(f"columns {', '.join(self.payload)} (payload): base64 must be one column")
        if self.zone is not None:
            check_name_of_zone(self.zone)

    @property
    def has_headers(self) -> bool:
        """Whether messages may have headers."""
        return self.headers is not None or self.header_prefix is not None

    def as_dict(self) -> dict[str, Any]:
        """The mapping as JSON values. `nulls` is left out unless it is set: older jobs have a checksum without it."""
        return {name: value for name, value in asdict(self).items() if name != "nulls" or value}

    def source(self, field: str) -> str:
        """A field with its columns, for a sentence."""
        names = {
            "due_ms": self.due, "topic": self.topic, "payload": self.payload, "key": self.key,
            "headers": tuple(self.headers.values()) if isinstance(self.headers, Mapping) else self.headers,
            "labels": self.labels, "expires_ms": self.expires, "name": self.name,
        }[field]  # fmt: skip
        listed = [names] if isinstance(names, str) else list(names or ())
        return field if listed in ([], [field]) else f"{field} (column {', '.join(listed)})"


def column(name: str) -> Column:
    """The column with exactly this name, which may contain dots and backticks."""
    return F.col("`" + name.replace("`", "``") + "`")
