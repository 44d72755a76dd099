"""The target of a request: its path and query."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote

from httptools import parse_url


class RequestTarget(NamedTuple):
    """`path`: percent-decoded; `raw_path` and `query_string`: as sent."""

    path: str
    raw_path: bytes
    query_string: bytes


def target_of(url: bytes) -> RequestTarget:
    """The target in a request line. Raises UnicodeDecodeError if the path is not UTF-8, and
    `httptools.HttpParserInvalidURLError` if `url` is not a URL."""
    parsed = parse_url(url)
    path = parsed.path.decode("ascii")
    return RequestTarget(unquote(path, errors="strict") if "%" in path else path, parsed.path, parsed.query or b"")
