"""Paths as Spark's readers want them: they take some characters for patterns."""

from __future__ import annotations

import re
from typing import Final

_SPECIAL: Final = re.compile(r"([\\\[\]{}*?])")


def exact(uri: str) -> str:
    """A pattern that this one path matches and no other."""
    return _SPECIAL.sub(r"\\\1", uri)
