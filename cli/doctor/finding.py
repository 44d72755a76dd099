"""The findings of `duemq doctor`."""

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
    WARNING = "warning"  # works now, but may fail later
    ERROR = "error"  # does not work, or accepted messages are at risk


class Finding(NamedTuple):
    """`subject`: the object of the check. `remedy`: what to do; only for a warning or an error."""

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
