"""Request bodies with placeholders. The content type decides how values are escaped, so no value can inject markup."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

from duemq.model.destinations.template import Placeholder, parse_template

Kind = Literal["json", "lines", "form", "markup", "plain"]
"""`lines`: one JSON value per line. `markup`: XML and HTML. `plain`: values are inserted unchanged."""

_KINDS: Final[Mapping[str, Kind]] = {
    "application/json": "json", "text/json": "json", "application/x-json": "json",
    "application/x-ndjson": "lines", "application/ndjson": "lines", "application/jsonl": "lines",
    "application/x-jsonlines": "lines", "application/json-seq": "lines",
    "application/x-www-form-urlencoded": "form",
    "application/xml": "markup", "text/xml": "markup", "text/html": "markup",
    "text/plain": "plain",
}  # fmt: skip
_CHARSET: Final = re.compile(r";\s*charset\s*=\s*\"?(?!(?:utf-8|us-ascii)\b)", re.IGNORECASE)
_NUMBERS: Final = frozenset(("due_ms", "attempt"))
_JSON_QUOTE: Final = re.compile(r"\\.|(\")", re.DOTALL)
_MARKUP_TOKEN: Final = re.compile(r"[<>\"']")


def kind_of(content_type: str) -> Kind | None:
    """The kind of body with this content type; None if it is not known how to escape values in it."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind.endswith("+json"):
        return "json"
    return "markup" if kind.endswith("+xml") else _KINDS.get(kind)


def check_body(body: str, content_type: str) -> None:
    """Raises ValueError if a value could break out of the place of its placeholder."""
    parts = parse_template(body)
    if not any(isinstance(part, Placeholder) for part in parts):
        return
    kind = kind_of(content_type)
    if kind is None:
        raise ValueError(
            "with placeholders it needs a content_type that defines how values are escaped: JSON, XML, HTML or "
            f"application/x-www-form-urlencoded, or text/plain, which leaves them as they are; it is {content_type}"
        )
    if _CHARSET.search(content_type):
        raise ValueError(f"it is UTF-8, and the content_type says another charset: {content_type}")
    quoted, tag = "", False
    for part in parts:
        if isinstance(part, Placeholder):
            if kind in ("json", "lines"):
                _check_json_place(part.name, quoted)
            elif kind == "markup" and tag and not quoted:
                raise ValueError(f"in a tag, {{{{ {part.name} }}}} stands between quotes")
        elif kind in ("json", "lines"):
            if sum(1 for match in _JSON_QUOTE.finditer(part) if match[1]) % 2:
                quoted = "" if quoted else '"'
            if (len(part) - len(part.rstrip("\\"))) % 2:
                raise ValueError("in JSON, no placeholder follows a backslash")
        elif kind == "markup":
            for match in _MARKUP_TOKEN.finditer(part):
                token = match[0]
                if quoted:
                    quoted = "" if token == quoted else quoted
                elif not tag:
                    tag = token == "<"
                elif token in "\"'":
                    quoted = token
                elif token == ">":
                    tag = False


def _check_json_place(name: str, quoted: str) -> None:
    if name == "payload_json":
        if quoted:
            raise ValueError("in JSON, {{ payload_json }} stands outside of quotes; in quotes use {{ payload }}")
    elif not quoted and name not in _NUMBERS:
        raise ValueError(f"in JSON, {{{{ {name} }}}} stands between quotes; for a value use {{{{ payload_json }}}}")
