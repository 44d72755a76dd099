"""A search by one text: finds the messages with this id, name, key or label, in any state.

A search has parts, in this order: the id or name, then the key, then the label, both newest first. Without an index all
messages are scanned, so key and label are searched state by state. A cursor consists of the method (`i`: by the index,
`s`: by a scan), the number of the part, and the cursor within that part.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from duemq.cluster.shards.shard_reader import MessageState, Query, Status
from duemq.model.errors import Rejected, Unavailable
from duemq.model.topics.rules import LABEL, is_name
from duemq.proxy.gateway.base import Gateway, MessagePage
from duemq.proxy.request.query import STATUSES
from duemq.proxy.story.readers import is_return

_PATIENCE_S: Final = 0.15  # after this time no further part is started
_CURSOR: Final = re.compile(r"([is])([0-9])\.([A-Za-z0-9_-]*)")


class FoundPage(NamedTuple):
    """A page of a search. `indexed`: whether key and label were looked up in the index. `calls`: how often the shards
    were searched."""

    messages: list[MessageState]
    cursor: str | None
    indexed: bool
    calls: int


class _Part(NamedTuple):
    by_key: bool
    status: Status | None


async def search(gateway: Gateway, text: str, query: Query, *, returns: bool) -> FoundPage:
    """A page of messages that match the text and the query. The query's status may be None, for any status. `returns`:
    include messages that a reader sent back. Raises Rejected `bad_query` and `bad_cursor`."""
    if not text:
        raise Rejected("bad_query", "search must be an id, a name, a key or a label, not empty", "search")
    way, number, inner = _read(query.cursor)
    exact = await gateway.state(text) if is_name(text) else None
    messages = [exact.head()] if exact is not None and query.cursor is None and _fits(query, exact) else []
    until, calls = time.monotonic() + _PATIENCE_S, 1
    parts = _parts(way, text, query)
    while number < len(parts) and len(messages) < query.limit and (calls == 1 or time.monotonic() < until):
        part, calls = parts[number], calls + 1
        asked = replace(
            query, key=text if part.by_key else None, label=None if part.by_key else text, status=part.status,
            newest=way == "i", limit=query.limit - len(messages), cursor=inner or None,
        )  # fmt: skip
        try:
            page = await gateway.find(asked)
        except (Rejected, Unavailable) as error:
            if (way, number, inner) != ("i", 0, "") or error.code not in ("not_indexed", Unavailable.code):
                raise
            way, parts = "s", _parts("s", text, query)  # there is no index, or it is not ready
            continue
        messages += _new(page, part, text, exact, returns=returns)
        number, inner = (number, page.cursor) if page.cursor is not None else (number + 1, "")
    return FoundPage(messages, f"{way}{number}.{inner}" if number < len(parts) else None, way == "i", calls)


def _new(page: MessagePage, part: _Part, text: str, exact: MessageState | None, *, returns: bool) -> list[MessageState]:
    """The messages of a page that no earlier part returned."""
    return [
        state
        for state in page.messages
        if (exact is None or state.id != exact.id)
        and (part.by_key or state.key != text.encode())
        and (returns or not is_return(state))
    ]


def _parts(way: str, text: str, query: Query) -> list[_Part]:
    fields = (True, False) if LABEL.fullmatch(text) else (True,)
    statuses: Sequence[Status | None] = STATUSES if way == "s" and query.status is None else (query.status,)
    return [_Part(by_key, status) for status in statuses for by_key in fields]


def _read(cursor: str | None) -> tuple[str, int, str]:
    if cursor is None:
        return "i", 0, ""
    if (match := _CURSOR.fullmatch(cursor)) is None:
        raise Rejected("bad_cursor", "this cursor did not come from a search", "cursor")
    return match[1], int(match[2]), match[3]


def _fits(query: Query, state: MessageState) -> bool:
    """Whether a message found by id or name matches the other fields of the query."""
    return (
        query.status in (None, state.status)
        and query.topic in (None, state.topic)
        and state.topic.startswith(query.topic_prefix or "")
        and (query.due_from is None or state.due >= query.due_from)
        and (query.due_to is None or state.due < query.due_to)
    )
