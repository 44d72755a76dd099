"""What `duemq doctor` finds."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Role(StrEnum):
    """What kind of process is checked."""

    SERVE = "serve"
    NODE = "node"
    PROXY = "proxy"
    RELAY = "relay"


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"  # it works, and may not tomorrow
    ERROR = "error"  # it does not work, or what was accepted is in danger


class Finding(NamedTuple):
    """`subject`: what was checked. `remedy`: what to do; only of a warning or an error."""

    subject: str
    level: Level
    detail: str
    remedy: str = ""


def ok(subject: str, detail: str) -> Finding:
    return Finding(subject, Level.OK, detail)


def warning(subject: str, detail: str, remedy: str) -> Finding:
    return Finding(subject, Level.WARNING, detail, remedy)


def error(subject: str, detail: str, remedy: str) -> Finding:
    return Finding(subject, Level.ERROR, detail, remedy)
