"""Who asked for a change, as its command and its message say it: `key:NAME`, `user:ID (NAME)`, `settings` or
`job:ID`.

A command carries all but jobs, which its tag names. Anybody who may write to the buffer topic can claim to be anybody,
so it is for people to read, and nothing is decided by it.
"""

from __future__ import annotations

import re
from typing import Final

MAX_CALLER_BYTES: Final = 128
SETTINGS: Final = "settings"  # a key of the configuration

PERSON: Final = "user:"
_KINDS = ("key:", PERSON)
_NO_CONTROLS = re.compile(r"[^\x00-\x1f\x7f-\x9f]+")  # not isprintable: by it Pythons differ, and so would replicas


def caller_bytes(caller: str) -> bytes:
    """A caller as a command carries it, cut to what it may have."""
    return caller.encode(errors="replace")[:MAX_CALLER_BYTES].decode(errors="ignore").encode()


def read_caller(raw: bytes) -> str:
    """The caller in these bytes; empty where they say something else."""
    if not raw or len(raw) > MAX_CALLER_BYTES:
        return ""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return ""
    return text if is_caller(text) and _NO_CONTROLS.fullmatch(text) else ""


def is_caller(text: str) -> bool:
    """Whether a text names a caller that is no job."""
    return text.startswith(_KINDS) or text == SETTINGS


def job_of(tag: str) -> str:
    """The caller of a change that is a step of a job, by its tag; empty without one."""
    return f"job:{tag.partition('/')[0]}" if tag else ""
