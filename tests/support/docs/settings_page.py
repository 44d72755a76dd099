"""The page of settings, made of `conf/duemq.toml`: each key with its default and the comments beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

FILE: Final = Path(__file__).parents[3] / "conf" / "duemq.toml"
_SECTION: Final = re.compile(r"\[(\w+)\](?: +# (.*))?$")
_KEY: Final = re.compile(r"(\w+) = (.*?)(?: +# (.*))?$")
_MORE: Final = re.compile(r" +# (.*)$")
_PAGE: Final = re.compile(r"docs/(?!reference/)([\w/-]+\.md)")


class Setting(NamedTuple):
    section: str
    key: str
    default: str
    meaning: str


def settings() -> Iterator[Setting]:
    """In the order of the file. `default` is TOML; `key` has its section: `http.access`."""
    section, found = "", list[Setting]()
    for line in FILE.read_text().splitlines():
        if (begins := _SECTION.match(line)) is not None:
            section = begins[1]
        elif (more := _MORE.match(line)) is not None:
            found[-1] = found[-1]._replace(meaning=f"{found[-1].meaning} {more[1]}")
        elif (one := _KEY.match(line)) is not None:
            found.append(Setting(section, f"{section}.{one[1]}" if section else one[1], one[2], one[3] or ""))
    return iter(found)


def titles() -> dict[str, str]:
    """What the comment beside each section says."""
    lines = FILE.read_text().splitlines()
    return {"": "", **{found[1]: found[2] or "" for line in lines if (found := _SECTION.match(line)) is not None}}


def settings_page() -> str:
    parts = [
        "# Settings",
        "Made of `conf/duemq.toml`. Files, variables and options: [configuration](configuration.md).",
    ]
    rows = list(settings())
    for section, title in titles().items():
        head = [f"## {section}", _text(title)] if section else []
        table = [f"| `{one.key}` | `{one.default}` | {_text(one.meaning)} |" for one in rows if one.section == section]
        parts += [part for part in head if part]
        parts.append("\n".join(["| key | default | meaning |", "|---|---|---|", *table]))
    return "\n\n".join(parts) + "\n"


def _text(comment: str) -> str:
    """In Markdown, with links to the pages that it names."""
    return _PAGE.sub(r"[\1](../\1)", comment.replace("|", "or").replace("*", r"\*"))
