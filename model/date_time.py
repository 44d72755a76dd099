"""Reads dates with a time of day: RFC 3339, other forms that serialisers write, and RFC 9557. Pure.

    2031-01-01T08:00:00.5+01:00   also +0100, +01, Z; without seconds; a space for the T or before the offset; a comma
    2030-12-31T23:59:60Z          a leap second is read as the second after it
    ...+01:00[Europe/Berlin]      RFC 9557: the offset must be the zone's at that time
    2031-01-01T08:00              with a zone: a local time; a date alone means its midnight

A local time that the zone skips or repeats is refused: only the sender knows which moment is meant.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
_DAY_MS: Final = 86_400_000
_LONGEST: Final = 128
_FORM: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[Tt ](\d\d:\d\d)(?::(\d\d)(?:[.,](\d+))?)?"
    r"(?: ?([Zz]|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?))?)?((?:\[[^][]*])*)",
    re.ASCII,
)
_TAG: Final = re.compile(r"\[(!?)([^]]*)]")
_NO_SUCH_TIME: Final = "names a time that does not exist"


class BadDateTime(ValueError):
    """A text that is not a valid date and time. `code`: `bad_time` or `naive_time`. `why`: the reason, as the end of a
    sentence about the text."""

    def __init__(self, why: str, code: str = "bad_time") -> None:
        super().__init__(why)
        self.code, self.why = code, why


def parse_date_time(text: str, zone: str | None = None, *, local: bool = True, judged: bool = False) -> int:
    """Epoch ms, rounded up: a message is never early. Raises BadDateTime.

    `zone`: the IANA zone of a local time; an offset in the text must match it. Zones come from the machine's database,
    so replicas, which must all read the same, accept no `local` times. With `judged`, offsets are not compared with
    zones, because another machine has already done that.
    """
    match = _FORM.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        raise BadDateTime("is not an RFC 3339 time such as 2031-01-01T08:00:00+01:00")
    date, minute, second, fraction, offset, tags = match.groups()
    zone = _zone_in(tags, zone)
    leap = second == "60"
    clock = f"{minute or '00:00'}:{'59' if leap else second or '00'}"
    try:
        moment = datetime.fromisoformat(f"{date}T{clock}{(offset or '').upper()}")
        if offset is None:
            if zone is None or not local:
                raise BadDateTime("has no zone, add Z or an offset such as +01:00", "naive_time")
            moment = _in_zone(moment, zone)
        elif zone is not None and not judged:
            known = _zone(zone)
            if offset not in "Zz" and moment.astimezone(known).utcoffset() != moment.utcoffset():
                raise BadDateTime(f"has an offset that {zone} does not have at that time")
    except BadDateTime:
        raise
    except (ValueError, OverflowError) as error:
        raise BadDateTime(_NO_SUCH_TIME) from error
    ms = (moment - EPOCH) // _SECOND * 1000
    if leap:
        ms += 1000
        if ms % _DAY_MS:
            raise BadDateTime(_NO_SUCH_TIME)
    return ms if fraction is None else ms - (-int(fraction) * 1000 // 10 ** len(fraction))


def _zone_in(tags: str, zone: str | None) -> str | None:
    """The zone in the tags after a time, or else `zone`. Other tags only affect display, unless they are critical."""
    for number, (critical, tag) in enumerate(_TAG.findall(tags)):
        if "=" not in tag and not number:
            if zone not in (None, tag):
                raise BadDateTime(f"is in another zone than {zone}")
            zone = tag
        elif critical or "=" not in tag:
            raise BadDateTime(f"has a tag that is unknown here, {tag}")
    return zone


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:  # OSError: the name is a folder of zones, such as Europe
        raise BadDateTime(f"names a zone that is unknown here, {name[:40]}") from error


def _in_zone(wall: datetime, name: str) -> datetime:
    zone = _zone(name)
    first, second = (wall.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    if first.utcoffset() != second.utcoffset():
        if first.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != wall:
            raise BadDateTime(f"is left out by the clocks of {name}")
        raise BadDateTime(f"is shown twice by the clocks of {name}, add its offset")
    return first.astimezone(UTC)
