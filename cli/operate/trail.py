"""`duemq trail`: the trail of changes and denied requests."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from duemq.cli.output import Wide, echo_json, echo_table
from duemq.cli.session import AsJson, Url, connected, examples

EXAMPLES = examples("duemq trail", "duemq trail --limit 1000 --json | jq '.entries[] | select(.code != \"\")'")

_COLUMNS = ("AT", "BY", "FROM", "ACTION", "TARGET", "RESULT", "TIMES")
_PAGE = 1000


def trail(
    limit: Annotated[int, typer.Option(help="How many entries.", min=1)] = 100,
    wide: Wide = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show changes of keys, nodes and dead letters, and denied requests, newest first. Needs the scope admin."""
    entries: list[dict[str, Any]] = []
    cursor: str | None = None
    with connected(url, as_json) as client:
        while len(entries) < limit:
            page = client.trail(min(limit - len(entries), _PAGE), cursor)
            entries += page["entries"]
            if (cursor := page["cursor"]) is None:
                break
    if as_json:
        echo_json({"entries": entries})
    else:
        short = ("AT", "BY", "ACTION", "TARGET", "RESULT")
        echo_table(_COLUMNS, [_row(entry) for entry in entries], short=short, wide=wide)


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    result = entry["code"] or "done"
    return (
        entry["at"], entry["by"] or "-", entry["from"] or "-", entry["action"], entry["target"], result,
        str(entry["times"]),
    )  # fmt: skip
