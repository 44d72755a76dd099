"""Escapes paths for Spark's readers, which treat some characters as patterns."""

from __future__ import annotations

import re
from typing import Final

_SPECIAL: Final = re.compile(r"([\\\[\]{}*?])")


def exact(uri: str) -> str:
    """A pattern that only matches this path."""
    return _SPECIAL.sub(r"\\\1", uri)
