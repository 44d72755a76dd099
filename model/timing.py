"""Computes when a message is due, from the caller's `now` and a time that may be given in three ways.

* an instant: a date-time (`model/date_time.py`), or epoch ms (`deliver_at`, `expires_at`);
* a duration: `"2h30m"`, `"1.5s"`, `"500ms"`, ISO 8601 `"PT90S"`, or ms, which may have a fraction (`deliver_after`,
  `deliver_after_ms`, `expires_after`, and in the settings);
* a level: a position in a table of delays (`delay_level`, with RocketMQ's rule for levels outside the table).

All results are whole ms. Fractions of a ms are rounded up, because a message must never be early.
A time before March 1973 is refused, because it is a mistake or in seconds (docs/adr/0060-times-that-are-meant.md). A
text of digits is read as a number only in inputs that have nothing but text (query strings, dashed headers):
`text=True`. Errors are `Rejected`, with the field at fault.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any

from duemq.model.date_time import EPOCH, BadDateTime, parse_date_time
from duemq.model.errors import Rejected, RejectedNow

TIME_FIELDS = ("deliver_at", "deliver_after", "deliver_after_ms", "delay_level")
WHEN_FIELDS = (*TIME_FIELDS, "zone")
CLASSIC_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
WINDOW_MS = 30 * 60 * 1000  # the UTC windows in which far messages are kept
FIRST_MS = 10**11  # March 1973; a time in seconds is below this number until the year 5138
LAST_MS = 253_402_300_799_999  # the end of 9999, the last year in RFC 3339

_LONGEST_TEXT = 64
_NUMBER = re.compile(r"[+-]?\d+", re.ASCII)
_BEFORE, _AFTER = "is before March 1973: a time that got lost", "is after the year 9999"
_DECIMAL = re.compile(r"[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d{1,3})?", re.ASCII)

# A year is 365.25 days. ISO durations here have no years, because a year in them means a calendar year.
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
    """The delays in a text such as `"1s 5s 10s"`, in ms; the first is level 1. Raises Rejected as `parse_duration`
    does."""
    return tuple(parse_duration(part, field) for part in text.split())


def parse_instant(
    value: object, field: str, *, text: bool = False, zone: str | None = None, local: bool = True, judged: bool = False
) -> int:
    """The epoch ms of a date-time, or of a number of ms. Raises Rejected `naive_time` or `bad_time`.

    `zone`, `local`: see `parse_date_time`. `judged`: the value was accepted before, perhaps by an older version, so it
    is read without the rules that differ between versions or machines: those about zones and about times that are too
    early.
    """
    if isinstance(value, str):
        if text and len(value) <= _LONGEST_TEXT and _NUMBER.fullmatch(value):
            value = int(value)
        else:
            try:
                ms = parse_date_time(value, zone, local=local, judged=judged)
            except BadDateTime as error:
                raise Rejected(error.code, f"{field} {error.why}: {shown(value)}", field) from error
            if (ms < FIRST_MS and not judged) or not 0 <= ms <= LAST_MS:
                raise Rejected("bad_time", f"{field}: {shown(value)} {_BEFORE if ms < FIRST_MS else _AFTER}", field)
            return ms
    if type(value) is float and value < FIRST_MS <= value * 1000 <= LAST_MS:
        value = math.ceil(value)  # a number as time.time() returns it, so in seconds, which is refused below
    if type(value) is not int:
        raise Rejected("bad_time", f"{field} must be RFC 3339 text or whole epoch ms, not {shown(value)}", field)
    if (wrong := why_implausible(value)) is not None and not (judged and 0 <= value <= LAST_MS):
        raise Rejected("bad_time", f"{field}: {wrong}", field)
    return value


def why_implausible(ms: int) -> str | None:
    """Why a number is unlikely to be a time in ms, in a sentence; None if it is plausible."""
    if FIRST_MS <= ms <= LAST_MS:
        return None
    if FIRST_MS <= ms * 1000 <= LAST_MS:
        return f"{ms} looks like seconds; ms are {ms * 1000}"
    return f"{shown(ms)} {_BEFORE if ms < FIRST_MS else _AFTER}"


def parse_duration(value: object, field: str, *, text: bool = False) -> int:
    """A duration in ms, rounded up. Raises Rejected `negative_delay` or `bad_time`."""
    if isinstance(value, str) and len(value) <= _LONGEST_TEXT:
        if text and (number := _number_in(value)) is not None:
            return parse_ms(number, field)
        ms = _duration_of(value.removeprefix("-"))
        if ms is not None and value[0] == "-":
            raise Rejected("negative_delay", f"{field} is negative: {shown(value)}", field)
        value = value if ms is None else ms
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise Rejected("bad_time", f"{field} is not a duration such as 90s, 2h30m, PT90S or ms: {shown(value)}", field)
    return parse_ms(value, field)


def parse_ms(value: object, field: str, *, text: bool = False) -> int:
    """A number of ms, which may have a fraction, rounded up. Raises Rejected `negative_delay` or `bad_time`."""
    if text and isinstance(value, str) and (number := _number_in(value)) is not None:
        value = number
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Rejected("bad_time", f"{field} is not a number of ms: {shown(value)}", field)
    if isinstance(value, float) and not math.isfinite(value):
        raise Rejected("bad_time", f"{field} is not finite", field)
    if value < 0:
        raise Rejected("negative_delay", f"{field} is negative: {shown(value)}", field)
    return math.ceil(value)


def _number_in(text: str) -> int | float | None:
    if len(text) > _LONGEST_TEXT or not _DECIMAL.fullmatch(text):
        return None
    return int(text) if _NUMBER.fullmatch(text) else float(text)


def instant_after(now: int, ms: int, field: str) -> int:
    """The time (epoch ms) that is `ms` after `now`. Raises Rejected `bad_time`."""
    if now + ms > LAST_MS:
        raise Rejected("bad_time", f"{field} ends after the year 9999: {shown(ms)} ms", field)
    return now + ms


def _duration_of(value: str) -> int | None:
    """The ms in a text without a sign; None if it is not a duration."""
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
    """Which times are allowed, and what a past time means. `levels` are ms, level 1 first."""

    max_delay_ms: int = 315_576_000_000
    levels: tuple[int, ...] = parse_levels(CLASSIC_LEVELS)
    past_due: str = "deliver"  # or "reject"


def resolve(fields: Mapping[str, Any], now: int, policy: TimePolicy, *, text: bool = False) -> int | None:
    """The due time (epoch ms) from the time fields of a message; None if it goes straight to its topic.

    A time in the past is returned as given, unless the policy refuses it. Raises Rejected `both_times`, `past_due`,
    `delay_too_long`, `bad_level`, and the parsers' errors; rejections that depend only on `now` and `policy` are
    RejectedNow.
    """
    names = [name for name in TIME_FIELDS if name in fields]
    if len(names) > 1:
        raise Rejected("both_times", f"{' and '.join(names)} are both given: one says when, not more", names[1])
    zone = _zone(fields) if "zone" in fields else None
    if not names:
        return None
    name = names[0]
    value = fields[name]
    if name == "delay_level":
        delay = _delay_of_level(value, policy.levels, text)
        return None if delay is None else now + delay
    if name != "deliver_at":
        delay = (parse_ms if name == "deliver_after_ms" else parse_duration)(value, name, text=text)
        if delay > policy.max_delay_ms:
            raise _too_long(name, policy)
        return now + delay
    if type(value) is int or type(value) is float:
        if value > now + policy.max_delay_ms:
            raise _too_long(name, policy)
    due = parse_instant(value, name, text=text, zone=zone)
    if due > now + policy.max_delay_ms:
        raise _too_long(name, policy)
    if due < now and policy.past_due == "reject":
        raise RejectedNow("past_due", f"deliver_at is {format_duration(now - due)} in the past", name)
    return due


def resolve_expiry(fields: Mapping[str, Any], now: int, *, text: bool = False) -> int:
    """When a message expires (epoch ms), from `expires_at` or `expires_after`; 0 for never. Raises Rejected
    `both_times`, and the parsers' errors."""
    if "expires_after" not in fields:
        if "expires_at" not in fields:
            return 0
        zone = _zone(fields) if "zone" in fields else None
        return parse_instant(fields["expires_at"], "expires_at", text=text, zone=zone)
    if "expires_at" in fields:
        raise Rejected("both_times", "expires_at and expires_after are both given", "expires_after")
    return instant_after(now, parse_duration(fields["expires_after"], "expires_after", text=text), "expires_after")


def _zone(fields: Mapping[str, Any]) -> str:
    zone = fields["zone"]
    if type(zone) is not str or not zone:
        raise Rejected("bad_time", f"zone must be a name such as Europe/Berlin, not {shown(zone)}", "zone")
    if not any(type(fields.get(name)) is str for name in ("deliver_at", "expires_at")):
        raise Rejected("bad_time", "zone is given without a date-time in deliver_at or expires_at", "zone")
    return zone


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
    return (EPOCH + timedelta(days=day)).strftime("%Y-%m-%dT")


_MINUTE_TEXT = tuple(f"{minute // 60:02d}:{minute % 60:02d}:" for minute in range(24 * 60))
_SECOND_TEXT = tuple(f"{second:02d}." for second in range(60))
_MS_TEXT = tuple(f"{ms:03d}Z" for ms in range(1000))


def format_ms(ms: int) -> str:
    """Epoch ms (0 to `LAST_MS`) as text such as `"2026-11-21T10:00:00.123Z"`. Fast, because it is called for every
    receipt."""
    second, rest = divmod(ms, 1000)
    minute, second = divmod(second, 60)
    day, minute = divmod(minute, 24 * 60)
    return _day_text(day) + _MINUTE_TEXT[minute] + _SECOND_TEXT[second] + _MS_TEXT[rest]


def shown(value: object) -> str:
    """A value as an error quotes it: short, on one line."""
    if isinstance(value, int) and value.bit_length() > 200:
        return "a number of more than 60 digits"
    quoted = repr(value)
    return quoted if len(quoted) <= 80 else f"{quoted[:77]}..."


def window_of(due_ms: int) -> int:
    """The start (ms) of the 30-minute UTC window that contains a due time."""
    return due_ms - due_ms % WINDOW_MS
