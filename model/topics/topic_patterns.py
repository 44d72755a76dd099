"""Patterns of topics, such as `orders.*`, in settings and API keys."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import translate
from functools import lru_cache


@lru_cache(maxsize=1024)
def topic_matcher(patterns: tuple[str, ...]) -> Callable[[str], re.Match[str] | None]:
    """Return a matcher for topics. `patterns` must not be empty."""
    return re.compile("|".join(map(translate, patterns))).match
