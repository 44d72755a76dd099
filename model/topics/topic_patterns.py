"""Patterns of topics, such as `orders.*`, by which settings and API keys name several."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import translate
from functools import lru_cache


@lru_cache(maxsize=1024)
def topic_matcher(patterns: tuple[str, ...]) -> Callable[[str], re.Match[str] | None]:
    """Says of a topic whether one of the patterns, of which there has to be one, is for it."""
    return re.compile("|".join(map(translate, patterns))).match
