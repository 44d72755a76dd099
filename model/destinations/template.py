"""Texts with placeholders, such as `{{ key }}`: headers and bodies of HTTP requests, and names on brokers.

The placeholders are a closed set of names. There are no expressions, loops or filters, so a template cannot take long,
read anything but the message, or fail for one message and not for another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

HEADER: Final = "header."
NAMES: Final = ("id", "key", "topic", "due", "due_ms", "attempt", "payload", "payload_json", f"{HEADER}NAME")
_PLACEHOLDER: Final = re.compile(r"\{\{\s*([A-Za-z_]+(?:\.[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256})?)\s*\}\}")


class Placeholder(NamedTuple):
    """`name`: one of NAMES, or `header`; then `header` is the lower-case name of a header of the message."""

    name: str
    header: str = ""


Parts = tuple[str | Placeholder, ...]
"""The texts and placeholders of a template, in order."""
TOPIC, KEY, LABEL, QUEUE = Placeholder("topic"), Placeholder("key"), Placeholder("label"), Placeholder("queue")


def parse_template(text: str, names: Sequence[str] = NAMES) -> Parts:
    """The parts of a template. Raises ValueError for a `{{` that does not begin a placeholder with one of these
    `names`, which the error lists."""
    parts: list[str | Placeholder] = []
    end = 0
    for match in _PLACEHOLDER.finditer(text):
        parts.append(text[end : match.start()])
        parts.append(_placeholder(match[1], names))
        end = match.end()
    parts.append(text[end:])
    for part in parts:
        if isinstance(part, str) and "{{" in part:
            raise ValueError(f"{{{{ begins a placeholder: {_allowed(names)}")
    return tuple(part for part in parts if part)


def parse_name(text: str, names: Sequence[str]) -> Parts:
    """See `parse_template`. A name may have no other braces: single braces must be a mistyped placeholder."""
    parts = parse_template(text, names)
    if any(brace in part for part in parts if isinstance(part, str) for brace in "{}"):
        raise ValueError(f"braces are for placeholders: {_allowed(names)}")
    return parts


def fill(parts: Parts, values: Mapping[str, str]) -> str:
    """The text, with the placeholders filled in. `values`: by the names of the placeholders."""
    return "".join([part if isinstance(part, str) else values[part.name] for part in parts])


def _placeholder(text: str, names: Sequence[str]) -> Placeholder:
    if text.startswith(HEADER) and f"{HEADER}NAME" in names:
        return Placeholder("header", text.removeprefix(HEADER).lower())
    if text not in names:
        raise ValueError(f"{{{{ {text} }}}} is no placeholder: {_allowed(names)}")
    return Placeholder(text)


def _allowed(names: Sequence[str]) -> str:
    return "there are " + ", ".join(f"{{{{ {name} }}}}" for name in names)
