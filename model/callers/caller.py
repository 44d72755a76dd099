"""The caller of a change, as its command and its message record it: `key:NAME`, `user:ID (NAME)`, `settings` or
`job:ID`.

A command carries every caller but a job, which is in its tag. Any client that can write to the buffer topic can claim
any caller, so the text is for people to read; no decision depends on it.
"""

from __future__ import annotations

import re
from typing import Final

MAX_CALLER_BYTES: Final = 128
SETTINGS: Final = "settings"  # a key of the configuration

PERSON: Final = "user:"
_KINDS = ("key:", PERSON)
_NO_CONTROLS = re.compile(r"[^\x00-\x1f\x7f-\x9f]+")  # isprintable differs between Pythons, so replicas would differ


def caller_bytes(caller: str) -> bytes:
    """A caller as a command carries it, cut to the limit."""
    return caller.encode(errors="replace")[:MAX_CALLER_BYTES].decode(errors="ignore").encode()


def read_caller(raw: bytes) -> str:
    """The caller in these bytes; empty if they hold something else."""
    if not raw or len(raw) > MAX_CALLER_BYTES:
        return ""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return ""
    return text if is_caller(text) and _NO_CONTROLS.fullmatch(text) else ""


def is_caller(text: str) -> bool:
    """Whether a text names a caller other than a job."""
    return text.startswith(_KINDS) or text == SETTINGS


def job_of(tag: str) -> str:
    """The caller of a change with this tag of a job; empty for an empty tag."""
    return f"job:{tag.partition('/')[0]}" if tag else ""
