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


class Severity(StrEnum):
    OK = "ok"
    WARNING = "warning"  # works now, but may fail later
    ERROR = "error"  # does not work, or accepted messages are at risk


class Finding(NamedTuple):
    """`subject`: the object of the check. `remedy`: what to do; only for a warning or an error."""

    subject: str
    level: Severity
    detail: str
    remedy: str = ""


def ok(subject: str, detail: str) -> Finding:
    return Finding(subject, Severity.OK, detail)


def warning(subject: str, detail: str, remedy: str) -> Finding:
    return Finding(subject, Severity.WARNING, detail, remedy)


def error(subject: str, detail: str, remedy: str) -> Finding:
    return Finding(subject, Severity.ERROR, detail, remedy)
