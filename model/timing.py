"""When a message is due: the three ways to say so, resolved against a `now` that the caller hands in.

* an instant: RFC 3339 with a zone, or epoch ms (`deliver_at`, `expires_at`);
* a duration: `"2h30m"`, `"1.5s"`, `"500ms"`, ISO 8601 `"PT90S"`, or ms (`deliver_after`, and in the configuration);
* a level: a place in a table of delays (`delay_level`, RocketMQ's rule for the ends of the table).

All results are whole ms. Fractions of a ms are rounded up, because a message must never be early.
Digits alone are a number only where text is all there is (query strings, dashed headers): `text=True`.
Errors are `Rejected`, with the field at fault.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from duemq.model.errors import Rejected, RejectedNow

TIME_FIELDS = ("deliver_at", "deliver_after", "delay_level")
CLASSIC_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
WINDOW_MS = 30 * 60 * 1000  # the UTC windows in which far messages are kept
LAST_MS = 253_402_300_799_999  # the end of the year 9999, the last one that RFC 3339 can write

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_LONGEST_TEXT = 64
_INSTANT = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)?)?", re.ASCII
)
_NUMBER = re.compile(r"[+-]?\d+", re.ASCII)

# A year is 365.25 days. It has no place in ISO durations here: there it would mean a calendar year.
_UNITS_MS = {
    "y": 31_557_600_000, "w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1
}  # fmt: skip
_QUANTITY = r"(\d+(?:\.\d+)?)"
_SHORT = re.compile("".join(f"(?:{_QUANTITY}{unit})?" for unit in _UNITS_MS), re.ASCII)
_ISO = re.compile(
    rf"P(?=.)(?:{_QUANTITY}W)?(?:{_QUANTITY}D)?(?:T(?=.)(?:{_QUANTITY}H)?(?:{_QUANTITY}M)?(?:{_QUANTITY}S)?)?", re.ASCII
)
_SHORT_MS = tuple(_UNITS_MS.values())
_ISO_MS = _SHORT_MS[1:6]


def parse_levels(text: str, field: str = "levels") -> tuple[int, ...]:
    """`"1s 5s 10s"` as ms; level 1 is the first. Codes: those of `parse_duration`."""
    return tuple(parse_duration(part, field) for part in text.split())


def parse_instant(value: object, field: str, *, text: bool = False) -> int:
    """Epoch ms of RFC 3339 text with a zone, or of a number of ms. Codes: `naive_time`, `bad_time`."""
    if isinstance(value, str):
        if text and len(value) <= _LONGEST_TEXT and _NUMBER.fullmatch(value):
            value = int(value)
        else:
            return _instant_of(value, field)
    if type(value) is not int:
        raise Rejected("bad_time", f"{field} must be RFC 3339 text or whole epoch ms, not {shown(value)}", field)
    if not 0 <= value <= LAST_MS:
        raise Rejected("bad_time", f"{field} is outside the years 1970 to 9999: {shown(value)}", field)
    return value


def _instant_of(value: str, field: str) -> int:
    match = _INSTANT.fullmatch(value)
    if match is None:
        raise Rejected(
            "bad_time", f"{field} is not an RFC 3339 time such as 2031-01-01T08:00:00+01:00: {shown(value)}", field
        )
    date, clock, fraction, zone = match.groups()
    try:
        moment = datetime.fromisoformat(f"{date}T{clock or '00:00:00'}{(zone or 'Z').upper()}")
    except ValueError as error:
        raise Rejected("bad_time", f"{field} names a time that does not exist: {shown(value)}", field) from error
    if zone is None:
        raise Rejected("naive_time", f"{field} has no zone: {shown(value)}; add Z or an offset such as +01:00", field)
    ms = (moment - _EPOCH) // _SECOND * 1000
    if fraction is not None:
        ms += -(-int(fraction) * 1000 // 10 ** len(fraction))
    if not 0 <= ms <= LAST_MS:
        raise Rejected("bad_time", f"{field} is outside the years 1970 to 9999: {shown(value)}", field)
    return ms


def parse_duration(value: object, field: str, *, text: bool = False) -> int:
    """A duration as ms. Codes: `negative_delay`, `bad_time`."""
    if isinstance(value, str) and len(value) <= _LONGEST_TEXT:
        if text and _NUMBER.fullmatch(value):
            value = int(value)
        else:
            ms = _duration_of(value.removeprefix("-"))
            if ms is not None and value[0] == "-":
                raise Rejected("negative_delay", f"{field} is negative: {shown(value)}", field)
            value = value if ms is None else ms
    elif type(value) is float and value.is_integer() and abs(value) >= 2**63:
        value = int(value)  # JSON parsers hand out whole numbers of more than 64 bits in this form
    if type(value) is not int:
        raise Rejected("bad_time", f"{field} is not a duration such as 90s, 2h30m, PT90S or ms: {shown(value)}", field)
    if value < 0:
        raise Rejected("negative_delay", f"{field} is negative: {shown(value)}", field)
    return value


def instant_after(now: int, ms: int, field: str) -> int:
    """`ms` after `now`, epoch ms. Code: `bad_time`."""
    if now + ms > LAST_MS:
        raise Rejected("bad_time", f"{field} ends after the year 9999: {shown(ms)} ms", field)
    return now + ms


def _duration_of(value: str) -> int | None:
    """ms of unsigned text, or None."""
    units = _SHORT_MS
    match = _SHORT.fullmatch(value)
    if match is None:
        units = _ISO_MS
        match = _ISO.fullmatch(value)
    if match is None or not value:
        return None
    total = 0
    for quantity, unit in zip(match.groups(), units, strict=True):
        if quantity is not None:
            whole, _, fraction = quantity.partition(".")
            total += -(-int(whole + fraction) * unit // 10 ** len(fraction))
    return total


def format_duration(ms: int) -> str:
    """The shortest text of the kind `"2h30m"` that `parse_duration` reads back as `ms` (0 or more)."""
    parts = []
    for unit, size in _UNITS_MS.items():
        count, ms = divmod(ms, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


@dataclass(frozen=True)
class TimePolicy:
    """What may be asked for, and what a past time means. `levels` are ms, level 1 first."""

    max_delay_ms: int = 315_576_000_000
    levels: tuple[int, ...] = parse_levels(CLASSIC_LEVELS)
    past_due: str = "deliver"  # or "reject"


def resolve(fields: Mapping[str, Any], now: int, policy: TimePolicy, *, text: bool = False) -> int | None:
    """The due time (epoch ms) that the time fields of a message say, or None for "straight to its topic".

    A time in the past is returned as given, unless the policy refuses it. Codes: `both_times`, `past_due`,
    `delay_too_long`, `bad_level` and those of the parsers; what hangs on `now` and `policy` alone is RejectedNow.
    """
    names = [name for name in TIME_FIELDS if name in fields]
    if not names:
        return None
    if len(names) > 1:
        raise Rejected("both_times", f"{' and '.join(names)} are both given: one says when, not more", names[1])
    name = names[0]
    value = fields[name]
    if name == "delay_level":
        delay = _delay_of_level(value, policy.levels, text)
        return None if delay is None else now + delay
    if name == "deliver_after":
        delay = parse_duration(value, name, text=text)
        if delay > policy.max_delay_ms:
            raise _too_long(name, policy)
        return now + delay
    if type(value) is int or type(value) is float:
        if value > now + policy.max_delay_ms:
            raise _too_long(name, policy)
    due = parse_instant(value, name, text=text)
    if due > now + policy.max_delay_ms:
        raise _too_long(name, policy)
    if due < now and policy.past_due == "reject":
        raise RejectedNow("past_due", f"deliver_at is {format_duration(now - due)} in the past", name)
    return due


def _too_long(field: str, policy: TimePolicy) -> RejectedNow:
    limit = policy.max_delay_ms
    return RejectedNow(
        "delay_too_long", f"{field} is too far ahead: the limit is {format_duration(limit)} ({limit} ms)", field
    )


def _delay_of_level(value: object, levels: tuple[int, ...], text: bool) -> int | None:
    if text and isinstance(value, str) and len(value) <= _LONGEST_TEXT and _NUMBER.fullmatch(value):
        value = int(value)
    if type(value) is not int:
        raise Rejected("bad_level", f"delay_level must be a whole number, not {shown(value)}", "delay_level")
    return levels[min(value, len(levels)) - 1] if value > 0 else None


@lru_cache(maxsize=8192)
def _day_text(day: int) -> str:
    return (_EPOCH + timedelta(days=day)).strftime("%Y-%m-%dT")


_MINUTE_TEXT = tuple(f"{minute // 60:02d}:{minute % 60:02d}:" for minute in range(24 * 60))
_SECOND_TEXT = tuple(f"{second:02d}." for second in range(60))
_MS_TEXT = tuple(f"{ms:03d}Z" for ms in range(1000))


def format_ms(ms: int) -> str:
    """Epoch ms (0 to `LAST_MS`) as `"2026-11-21T10:00:00.123Z"`. Called for every receipt."""
    second, rest = divmod(ms, 1000)
    minute, second = divmod(second, 60)
    day, minute = divmod(minute, 24 * 60)
    return _day_text(day) + _MINUTE_TEXT[minute] + _SECOND_TEXT[second] + _MS_TEXT[rest]


def shown(value: object) -> str:
    """A value as an error may quote it: short, on one line."""
    if isinstance(value, int) and value.bit_length() > 200:
        return "a number of more than 60 digits"
    quoted = repr(value)
    return quoted if len(quoted) <= 80 else f"{quoted[:77]}..."


def window_of(due_ms: int) -> int:
    """The start (ms) of the 30-minute UTC window a due time falls in."""
    return due_ms - due_ms % WINDOW_MS
