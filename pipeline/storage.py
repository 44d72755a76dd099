"""How places are named that Spark reads and writes."""

from __future__ import annotations

import os
import re
from typing import Final

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def uri_of(path: str) -> str:
    """The URI of a place, as Hadoop reads it: one with a scheme as it stands, a path as a `file:` URI of this machine.

    Without a scheme, a cluster's `fs.defaultFS` would decide where a path leads. Nothing is quoted: Hadoop takes the
    characters of a path as they are.
    """
    return path if _SCHEME.match(path) else f"file://{os.path.abspath(path)}"
