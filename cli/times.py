"""Times and durations as typed. They are checked here, so that an error names the option, and parsed by the server."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from duemq.model.errors import Rejected
from duemq.model.timing import parse_duration, parse_instant

if TYPE_CHECKING:
    from duemq.client.http.requests import When

Zone = Annotated[
    str | None, typer.Option(metavar="ZONE", help="The zone of a time without an offset, such as Europe/Berlin.")
]
LEVEL: Final = "Due after a level of the server's table, 1 to 18 unless it has its own. A higher one is its last."
_PART: Final = r"(\d+(?:\.\d+)?)\s*(millisecond|ms|second|sec|s|minute|min|m|hour|hr|h|day|d|week|w|year|y)s?\s*"


def instant(text: str | None, option: str, zone: str | None = None, *, zones: bool = False) -> int | str | None:
    """A time as typed: digits alone are epoch ms, anything else is parsed by the server. `zones`: whether the command
    has --zone."""
    if text is None:
        return None
    if zone is None or _is_known(zone):
        typed = text
        _check(lambda: parse_instant(typed, option, text=True, zone=zone), option, lambda: _with_offset(typed, zones))
    return int(text) if text.isdecimal() else text


def duration(text: str | None, option: str, *, signed: bool = False) -> str | None:
    """A duration as typed, to be parsed by the server. A number alone has no unit, and is refused."""
    if text is None:
        return None
    if text.lstrip("+-").replace(".", "", 1).isdecimal():
        raise typer.BadParameter(f"{text} has no unit: use {text}s, {text}m or {text}ms", param_hint=option)
    typed = text.removeprefix("-") if signed else text
    _check(lambda: parse_duration(typed, option), option, lambda: _shortened(typed))
    return text


def when(after: str | None, at: str | None, level: int | None, zone: str | None, expires: str | None = None) -> When:
    """When a message is due, according to the given options. `expires`: if it is given, --zone may be meant for it."""
    given = {"--after": after, "--at": at, "--level": level}
    if len(named := [option for option, value in given.items() if value is not None]) > 1:
        raise typer.BadParameter(f"{' and '.join(named)} are both given: use one", param_hint=named[1])
    if zone is not None and at is None and expires is None:
        raise typer.BadParameter("it applies to a time, and none is given", param_hint="--zone")
    fields = {"deliver_after": duration(after, "--after"), "deliver_at": instant(at, "--at", zone, zones=True)}
    fields |= {"delay_level": level, "zone": zone}
    return cast("When", {name: value for name, value in fields.items() if value is not None})


def _check(parse: Callable[[], int], option: str, advice: Callable[[], str]) -> None:
    try:
        parse()
    except Rejected as error:
        wrong = str(error).replace(", PT90S or ms", " or PT90S")  # the command line refuses a number alone
        raise typer.BadParameter(f"{wrong}{advice()}", param_hint=option) from error


def _is_known(zone: str) -> bool:
    """Whether this machine knows the zone; the server may know others."""
    from zoneinfo import ZoneInfo

    try:
        ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        return False
    return True


def _with_offset(text: str, zones: bool) -> str:
    """Advice on how to write a time, if it is a local time."""
    try:
        local = datetime.fromisoformat(text)
        with_zone = local.astimezone()
    except (ValueError, OverflowError):  # no time, or one that this zone's clocks cannot show
        return ""
    if local.tzinfo is not None:
        return ""
    return f"; say {with_zone.isoformat()} for this machine's zone{', or add --zone' if zones else ''}"


def _shortened(text: str) -> str:
    """Advice on how to write `1 h` or `1hour`. duemq never accepts them, because an older node would stop at a new
    form."""
    if not re.fullmatch(f"(?:{_PART})+", text, re.IGNORECASE):
        return ""
    parts = re.findall(_PART, text, re.IGNORECASE)
    short = "".join(
        number + ("ms" if unit.lower() in ("ms", "millisecond") else unit[0].lower()) for number, unit in parts
    )
    return f"; say {short}"
