"""Reads records from plain Kafka clients by the rules in `docs/guides/kafka.md`.

The audit uses this module to check how the server read such a record, so it shares no code with the server's reader.
`tests/unit/pipeline/test_plain_records.py` checks both against the same records.

A record has a command in its headers:

    schedule   duemq-topic, one time, and optionally duemq-key, duemq-name, duemq-labels, and duemq-expires-at or
               duemq-expires-after; with x-duemq-return, the name is that of a message which a consumer sends back
    move       duemq-move (an id or a name), and one time
    cancel, deliver now, redrive
               duemq-cancel, duemq-deliver-now or duemq-redrive (an id or a name)
    import      duemq-import: a file of messages, as JSON

It does not check ids, because this needs the cluster's secret, nor whether a name belongs to this partition, because
this needs the number of partitions. A time is `disputed` if versions of the server, or machines with different zones,
read it differently (docs/adr/0060-times-that-are-meant.md).
"""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode
from calendar import timegm
from collections.abc import Iterable, Mapping
from math import ceil, inf
from struct import pack, unpack
from typing import Final, NamedTuple

Headers = tuple[tuple[str, bytes | None], ...]

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_YEAR_MS: Final = 31_557_600_000  # 365.25 days
_END_MS: Final = 253_402_300_800_000  # the year 10000
_WINDOW_MS: Final = 1_800_000
_LEVELS_MS: Final = (
    *(n * _SECOND for n in (1, 5, 10, 30)), *(n * _MINUTE for n in range(1, 11)), 20 * _MINUTE, 30 * _MINUTE, _HOUR,
    2 * _HOUR,
)  # fmt: skip
_TIMES: Final = ("duemq-deliver-at", "duemq-delay", "x-delay", "DELAY")
_ALLOWED: Final = {
    "schedule": {
        "duemq-topic",
        "duemq-key",
        "duemq-name",
        "duemq-labels",
        "duemq-expires-at",
        "duemq-expires-after",
        *_TIMES,
    },
    "move": {"duemq-move", *_TIMES},
    "cancel": {"duemq-cancel"},
    "deliver_now": {"duemq-deliver-now"},
    "redrive": {"duemq-redrive"},
    "import": {"duemq-import"},
}
_KIND_OF: Final = {  # the first of these headers in a record decides
    "duemq-import": "import", "duemq-cancel": "cancel", "duemq-move": "move", "duemq-deliver-now": "deliver_now",
    "duemq-redrive": "redrive",
}  # fmt: skip
_HEADER_NAMES: Final = frozenset().union(*_ALLOWED.values())
_EARLIEST_MS: Final = 100_000_000_000  # March 1973
_MAX_DATE_TIME: Final = 128
_DECIMAL: Final = r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]{1,3})?"
_CLOCK: Final = "([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2})"
_FIRST_FORM: Final = _CLOCK + r":([0-5][0-9])(\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})"
"""The form that the first versions could read."""
_FORM: Final = _CLOCK + r"(?::([0-9]{2})(?:[.,]([0-9]+))?)? ?(?:[Zz]|([+-])([0-9]{2})(?::?([0-9]{2}))?)((?:\[[^][]*])*)"
_MAX_KEY_BYTES, _MAX_HEADERS, _MAX_LABELS, _MAX_TEXT = 65_534, 65_000, 16, 64
_FILE_FIELDS: Final = {"path", "sha256", "size", "window", "rows"}


class RecordMeaning(NamedTuple):
    """`kind`: schedule, cancel, move, deliver_now, redrive, import or malformed. Times are epoch ms. `name` has the
    prefix `n:`, or `r:` for a return, where the content is part of the name (`logs.understood`).

    `first_due`, `first_offset`, `first_row`: from the id of a changed message. `labels`: joined by LF. `fingerprint`:
    for a schedule with a name, bytes that are equal for repeats; the value is not part of them. `is_null`: for a
    schedule, whether its value is null. `disputed`: whether another version may call the record malformed. `reason`:
    why it is malformed.
    """

    kind: str
    due: int | None = None
    expires: int | None = None
    topic: str | None = None
    name: str | None = None
    first_due: int | None = None
    first_offset: int | None = None
    first_row: int | None = None
    path: str | None = None
    sha256: str | None = None
    size: int | None = None
    window: int | None = None
    rows: int | None = None
    disputed: bool = False
    key: bytes | None = None
    labels: bytes = b""
    headers: Headers = ()
    fingerprint: bytes | None = None
    is_null: bool = False
    reason: str = ""

    def columns(self) -> dict[str, object]:
        """The columns of `decode.PLAIN` that describe the record."""
        fields = self._asdict()
        for name in ("key", "labels", "headers", "is_null", "reason"):
            del fields[name]
        is_schedule = self.kind == "schedule"
        whole = metadata(self.key, self.labels, self.headers, self.is_null) if is_schedule else None
        return fields | {"metadata": whole}


class _Malformed(Exception):
    """A record is malformed. The text says why, in a few words."""


def read(
    key: bytes | None, headers: Iterable[tuple[str, bytes | None]], at: int, shard: int, is_null: bool = False
) -> RecordMeaning:
    """The meaning of a record that the broker appended at `at` (epoch ms) to the partition `shard` of the buffer topic.

    `is_null`: whether the record's value is null."""
    at = max(at, 0)
    ours: dict[str, bytes] = {}
    own: list[tuple[str, bytes | None]] = []
    try:
        for header, value in headers:
            name = "duemq-import" if header == "duemq-adopt" else header  # older logs have the former name
            if name in _HEADER_NAMES:
                if name in ours:
                    raise _Malformed(f"{name} is given twice")
                ours[name] = value or b""
            elif name[:6].lower() == "duemq-":
                raise _Malformed(f"{name} is no header of duemq's")
            else:
                own.append((name, value))
        header, kind = next((pair for pair in _KIND_OF.items() if pair[0] in ours), ("duemq-topic", "schedule"))
        if strange := ours.keys() - _ALLOWED[kind]:
            raise _Malformed(f"{min(strange)} does not go with a record to {kind}")
        if kind == "schedule":
            return _schedule(key, ours, tuple(own), at, is_null)
        if kind == "import":
            return _file(ours["duemq-import"])
        due, disputed = _time(ours, at) if kind == "move" else (None, False)
        meaning = _change(kind, None if due is None else max(due, at), _text(ours, header), shard)
        return meaning._replace(disputed=disputed)
    except _Malformed as error:
        return RecordMeaning("malformed", reason=str(error))


def metadata(key: bytes | None, labels: bytes, headers: Headers, is_null: bool) -> bytes:
    """Key, labels and own headers of a message in one piece, for `envelopes.packed_hash`. Null values are empty; a
    header before all others has the null marks, as in an envelope."""
    nulls = _nulls(headers, is_null) if len(headers) < _MAX_HEADERS else b""
    pairs = [*([("duemq-null", nulls)] if nulls else ()), *headers]
    packed = b"".join(
        pack(">HI", len(name), len(value)) + name + value
        for name, value in ((name.encode(errors="replace"), value or b"") for name, value in pairs)
    )
    return pack(">HH", 0xFFFF if key is None else len(key), len(labels)) + (key or b"") + labels + packed


def _nulls(headers: Headers, is_null: bool) -> bytes:
    """Null marks, two bytes each: for each null header the number of headers after it, then 65534; 65535 for a null
    value."""
    places = [len(headers) - 1 - at for at, (_, value) in enumerate(headers) if value is None]
    numbers = [*places, *([0xFFFE] if places else ()), *([0xFFFF] if is_null else ())]
    return b"".join(pack(">H", number) for number in numbers)


def _schedule(key: bytes | None, ours: Mapping[str, bytes], own: Headers, at: int, is_null: bool) -> RecordMeaning:
    if "duemq-topic" not in ours:
        raise _Malformed("duemq-topic is missing")
    topic = ours["duemq-topic"]
    if not re.fullmatch(rb"[A-Za-z0-9._-]{1,249}", topic) or topic in (b".", b"..") or topic[:6] == b"duemq.":
        raise _Malformed("no name of a topic")
    if topic[:2] == b"__":
        raise _Malformed("a topic of the brokers'")
    due, disputed = _time(ours, at)
    key = ours.get("duemq-key", key)
    if key is not None and len(key) > _MAX_KEY_BYTES:
        raise _Malformed("a key of more than 65,534 bytes")
    if len(own) > _MAX_HEADERS:
        raise _Malformed("more than 65,000 headers")
    name = fingerprint = None
    if "duemq-name" in ours:
        name, fingerprint = _name(_text(ours, "duemq-name")), _fingerprint(key, ours, own, is_null)
        if any(header == "x-duemq-return" for header, _ in own):
            name, fingerprint = "r:" + name.removeprefix("n:"), _fingerprint(key, {"duemq-topic": topic}, (), False)
    labels = [one.strip() for one in _text(ours, "duemq-labels").split(",")] if ours.get("duemq-labels") else []
    if len(labels) > _MAX_LABELS:
        raise _Malformed("more than 16 labels")
    if any(not 1 <= len(one) <= 128 or any(_is_control(char) for char in one) for one in labels):
        raise _Malformed("a label has 1 to 128 printable characters")
    expires = 0
    ends = [name for name in ("duemq-expires-at", "duemq-expires-after") if name in ours]
    if len(ends) > 1:
        raise _Malformed("two expiries")
    if ends:
        expires, doubt = _instant(_text(ours, ends[0])) if ends[0][-2:] == "at" else _expiry(ours, at)
        disputed = disputed or doubt
        if expires < max(due, at):
            raise _Malformed("it expires before it is due")
    return RecordMeaning(
        "schedule", due=due, expires=expires, topic=topic.decode(), name=name, key=key,
        labels="\n".join(labels).encode(), headers=own, fingerprint=fingerprint, is_null=is_null,
        disputed=disputed,
    )  # fmt: skip


def _fingerprint(key: bytes | None, ours: Mapping[str, bytes], own: Headers, is_null: bool) -> bytes:
    """Bytes that are equal for repeats. A repeat has the same duemq headers in any order, the same key from either
    source, and the same own headers in the same order, with the same nulls."""
    duemq_pairs = [(name.encode(), value) for name, value in sorted(ours.items()) if name != "duemq-key"]
    carried = [(name.encode(errors="replace"), value or b"") for name, value in own]
    carried.append((b"", _nulls(own, is_null)))
    parts = [part for pair in (*duemq_pairs, (b"", b"" if key is None else b"=" + key), *carried) for part in pair]
    return b"".join(pack(">I", len(part)) + part for part in parts)


def _change(kind: str, due: int | None, destination: str, shard: int) -> RecordMeaning:
    if re.fullmatch(r"[A-Za-z0-9_-]{32}", destination):
        head, due_high, due_low, offset_high, offset_low, row = unpack(">HHIHII", urlsafe_b64decode(destination)[:18])
        first_due = due_high << 32 | due_low
        if head == shard and first_due < _END_MS:
            return RecordMeaning(
                kind, due=due, first_due=first_due, first_offset=offset_high << 32 | offset_low, first_row=row
            )
    return RecordMeaning(kind, due=due, name=_name(destination))


def _name(text: str) -> str:
    if not 1 <= len(text) <= 128 or len(text.encode()) > 200 or any(map(_is_control, text)):
        raise _Malformed("a name has 1 to 128 characters, at most 200 bytes, none of them a control character")
    return f"n:{text}"


def _is_control(char: str) -> bool:
    return char < " " or "\x7f" <= char <= "\x9f"


def _text(ours: Mapping[str, bytes], name: str) -> str:
    try:
        return ours[name].decode()
    except UnicodeDecodeError:
        raise _Malformed(f"{name} is no text") from None


# --- times ------------------------------------------------------------------------------------------------------------


def _time(ours: Mapping[str, bytes], at: int) -> tuple[int, bool]:
    """The due time, and whether it is disputed. Relative times begin when the broker appends the record."""
    names = [name for name in _TIMES if name in ours]
    if len(names) != 1:
        raise _Malformed("not exactly one time")
    name = names[0]
    text = _text(ours, name)
    if name == "duemq-deliver-at":
        return _instant(text)
    ms, disputed = (_level(text), False) if name == "DELAY" else _duration(text, name == "x-delay")
    if at + ms >= _END_MS:
        raise _Malformed("due after the year 9999")
    return at + ms, disputed


def _expiry(ours: Mapping[str, bytes], at: int) -> tuple[int, bool]:
    ms, _ = _duration(_text(ours, "duemq-expires-after"))
    if at + ms >= _END_MS:
        raise _Malformed("it expires after the year 9999")
    return at + ms, True


def _level(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise _Malformed("no level")
    level = min(int(text), len(_LEVELS_MS))
    return 0 if level <= 0 else _LEVELS_MS[level - 1]


def _number(text: str) -> int | None:
    return int(text) if len(text) <= _MAX_TEXT and re.fullmatch(r"[+-]?[0-9]+", text) else None


def _duration(text: str, may_be_negative: bool = False) -> tuple[int, bool]:
    """The ms in `90000`, `90000.5`, `90s`, `2h30m`, `1.5s` or `PT90S`, rounded up, and whether they are disputed."""
    number: float | None = _number(text)
    exact = number is not None
    if not exact and len(text) <= _MAX_TEXT and re.fullmatch(_DECIMAL, text):
        number = float(text)
    if number is not None:
        if number >= 0:
            if number == inf:
                raise _Malformed("no finite number")
            return ceil(number), not exact
        if may_be_negative:
            return 0, True
        raise _Malformed("a negative delay")
    if may_be_negative and text[:1] == "-" and text[1:2] != "-":
        _duration(text[1:])
        return 0, True
    units = (("y", _YEAR_MS), ("w", 7 * _DAY), ("d", _DAY), ("h", _HOUR), ("m", _MINUTE), ("s", _SECOND), ("ms", 1))
    quantity = r"([0-9]+(?:\.[0-9]+)?)"
    short = re.fullmatch("".join(f"(?:{quantity}{unit})?" for unit, _ in units), text)
    iso = re.fullmatch(
        f"P(?:{quantity}W)?(?:{quantity}D)?(?:T(?=.)(?:{quantity}H)?(?:{quantity}M)?(?:{quantity}S)?)?", text
    )
    if not text or len(text) > _MAX_TEXT or text == "P" or not (short or iso):
        raise _Malformed("no duration")
    parts = zip(short.groups() if short else iso.groups() if iso else (), units if short else units[1:6], strict=True)
    return sum(_rounded_up(part, unit) for part, (_, unit) in parts if part is not None), False


def _rounded_up(quantity: str, unit: int) -> int:
    whole, _, part = quantity.partition(".")
    scale: int = 10 ** len(part)
    return (int(whole + part) * unit + scale - 1) // scale


def _instant(text: str) -> tuple[int, bool]:
    """The epoch ms for a number or a date-time with an offset, rounded up, and whether they are disputed."""
    number, disputed = _number(text), False
    if number is None:
        number = _date_time(text)
        disputed = not re.fullmatch(_FIRST_FORM, text)
    if not 0 <= number < _END_MS:
        raise _Malformed("not in the years 1970 to 9999")
    return number, disputed or number < _EARLIEST_MS


def _date_time(text: str) -> int:
    match = re.fullmatch(_FORM, text) if len(text) <= _MAX_DATE_TIME else None
    if match is None:
        raise _Malformed("no RFC 3339 time with a zone")
    year, month, day, hour, minute = (int(match[at]) for at in range(1, 6))
    second, zone_hour, zone_minute = int(match[6] or 0), int(match[9] or 0), int(match[10] or 0)
    for number, (critical, tag) in enumerate(re.findall(r"\[(!?)([^]]*)]", match[11])):
        if (critical and (number or "=" in tag)) or (number and "=" not in tag):
            raise _Malformed("an unknown tag")
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    days = (31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    if not (
        year >= 1 and 1 <= month <= 12 and 1 <= day <= days[month - 1] and hour < 24 and minute < 60 and second <= 60
        and zone_hour < 24 and zone_minute < 60
    ):  # fmt: skip
        raise _Malformed("a time that does not exist")
    offset = (zone_hour * 60 + zone_minute) * 60 * (-1 if match[8] == "-" else 1)
    ms = (timegm((year, month, day, hour, minute, second)) - offset) * 1_000
    if second == 60 and ms % _DAY:
        raise _Malformed("a leap second at another time than midnight UTC")
    return ms + _rounded_up(f"0.{match[7]}", 1_000) if match[7] else ms


# --- files ------------------------------------------------------------------------------------------------------------


def _file(raw: bytes) -> RecordMeaning:
    try:
        document = json.loads(raw.decode())
    except ValueError:
        raise _Malformed("duemq-import is no JSON") from None
    if type(document) is not dict or not _FILE_FIELDS <= document.keys() <= _FILE_FIELDS | {"link"}:
        raise _Malformed("not the fields of a file")
    path, sha256, size, window, rows = (document[name] for name in ("path", "sha256", "size", "window", "rows"))
    if type(path) is not str or not 1 <= len(path.encode(errors="replace")) <= 4_096:
        raise _Malformed("no path")
    if re.search(r"[\x00-\x1f\x7f-\x9f]", path):
        raise _Malformed("no path")
    if type(sha256) is not str or not re.fullmatch("[0-9a-f]{64}", sha256):
        raise _Malformed("no SHA-256")
    if type(size) is not int or not 1 <= size <= 2**48 or type(rows) is not int or not 1 <= rows < 2**31:
        raise _Malformed("no size, or no number of rows")
    if type(window) is not int or window % _WINDOW_MS or not 0 <= window < _END_MS - _WINDOW_MS:
        raise _Malformed("no start of a window")
    if type(document.get("link", False)) is not bool:
        raise _Malformed("link is neither true nor false")
    return RecordMeaning("import", path=path, sha256=sha256, size=size, window=window, rows=rows)
