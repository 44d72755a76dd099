"""The caller of a change, as the command and the message record it: `key:NAME`, `user:ID (NAME)`, `settings` or
`job:ID`.

A command has any caller but a job in its payload; a job is in its tag. Any client that can write to the buffer topic
can claim to be any caller, so the text is for people to read; no decision depends on it.
"""

from __future__ import annotations

import re
from typing import Final

MAX_CALLER_BYTES: Final = 128
SETTINGS: Final = "settings"  # a key from the settings

PERSON: Final = "user:"
_KINDS = ("key:", PERSON)
# Not isprintable: it differs between Python versions, so replicas would differ.
_NO_CONTROLS = re.compile(r"[^\x00-\x1f\x7f-\x9f]+")


def caller_bytes(caller: str) -> bytes:
    """A caller as it is written into a command, cut to the limit."""
    return caller.encode(errors="replace")[:MAX_CALLER_BYTES].decode(errors="ignore").encode()


def read_caller(raw: bytes) -> str:
    """The caller in these bytes; empty if they are something else."""
    if not raw or len(raw) > MAX_CALLER_BYTES:
        return ""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return ""
    return text if is_caller(text) and _NO_CONTROLS.fullmatch(text) else ""


def is_caller(text: str) -> bool:
    """Whether a text is a caller other than a job."""
    return text.startswith(_KINDS) or text == SETTINGS


def job_of(tag: str) -> str:
    """The caller of a change by the job with this tag; empty for an empty tag."""
    return f"job:{tag.partition('/')[0]}" if tag else ""
