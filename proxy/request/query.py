"""Reads query strings. Every parameter must be known, given only once, and of the right type, else the request is
refused (`bad_query`)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, get_args
from urllib.parse import parse_qsl

from starlette.requests import Request

from duemq.cluster.shards.shard_reader import Query, Status
from duemq.model.errors import Rejected
from duemq.model.timing import parse_duration, parse_instant, shown
from duemq.model.topics.rules import NAME, TOPIC
from duemq.proxy.request.message_ref import check_topic

PREFIXES: Final = ("topic_prefix", "name_prefix")
FILTER_FIELDS: Final = ("topic", "status", "key", "label", "due_from", "due_to", *PREFIXES)
STATUSES: Final[tuple[Status, ...]] = get_args(Status)
ORDERS: Final = ("due", "newest")
MAX_LIMIT, DEFAULT_LIMIT = 1000, 100

_MAX_PARAMETERS = 50
_NUMBER = re.compile(r"[0-9]{1,10}")


def read_query(request: Request, known: Collection[str]) -> dict[str, str]:
    raw: bytes = request.scope["query_string"]
    if not raw:
        return {}
    try:
        pairs = parse_qsl(
            raw.decode("latin-1"), keep_blank_values=True, errors="strict", max_num_fields=_MAX_PARAMETERS
        )
    except ValueError as error:
        raise Rejected("bad_query", f"the query string cannot be read: {error}") from error
    values: dict[str, str] = {}
    for name, value in pairs:
        if name not in known:
            raise Rejected(
                "bad_query", f"{shown(name)} is not a parameter here; known are {', '.join(known)}", name[:80]
            )
        if name in values:
            raise Rejected("bad_query", f"{name} is given twice", name)
        values[name] = value
    return values


def read_number(query: Mapping[str, str], name: str, default: int, most: int, least: int = 1) -> int:
    """A whole number from `least` to `most`."""
    text = query.get(name)
    if text is None:
        return default
    if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
        raise Rejected("bad_query", f"{name} must be a whole number from {least} to {most}, not {shown(text)}", name)
    return int(text)


def read_wait(query: Mapping[str, str], longest_ms: int) -> int:
    """How long (ms) a reader asks to wait, capped at `longest_ms`."""
    text = query.get("wait")
    if text is None:
        return 0
    try:
        return min(parse_duration(text, "wait", text=True), longest_ms)
    except Rejected as error:
        raise Rejected("bad_query", error.detail, "wait") from error


def read_filter(fields: Mapping[str, Any], code: str, *, judged: bool = False) -> Query:
    """A filter from texts (a query string) or JSON values. `code`: the error code for a value that has a wrong type or
    is not one of the choices; `judged`: see `parse_instant`."""
    for name in ("topic", "key", "label", *PREFIXES):
        if name in fields and type(fields[name]) is not str:
            raise Rejected(code, f"{name} must be text, not {shown(fields[name])}", name)
    if "topic" in fields:
        check_topic(fields["topic"])
    for name, form in zip(PREFIXES, (TOPIC, NAME), strict=True):
        if name in fields and not form.fullmatch(fields[name]):
            raise Rejected(code, f"{name} must be how a {name[:-7]} can begin, not {shown(fields[name])}", name)
    status = fields.get("status", "scheduled")
    if status not in STATUSES:
        raise Rejected(code, f"status must be one of {', '.join(STATUSES)}, not {shown(status)}", "status")
    return Query(
        topic=fields.get("topic"),
        status=status,
        key=fields.get("key"),
        label=fields.get("label"),
        due_from=instant_in(fields, "due_from", judged),
        due_to=instant_in(fields, "due_to", judged),
        topic_prefix=fields.get("topic_prefix"),
        name_prefix=fields.get("name_prefix"),
    )


def read_choice(query: Mapping[str, Any], name: str, choices: Sequence[str]) -> str:
    """The value of a parameter, which must be one of `choices`; the first of them if the parameter is not given."""
    text: str = query.get(name, choices[0])
    if text not in choices:
        raise Rejected("bad_query", f"{name} must be one of {', '.join(choices)}, not {shown(text)}", name)
    return text


def read_order(fields: Mapping[str, Any], query: Query) -> Query:
    """The filter with the requested order."""
    if read_choice(fields, "order", ORDERS) != "newest":
        return query
    if query.key is None and query.label is None:
        raise Rejected("bad_query", "order=newest takes a key or a label", "order")
    return replace(query, newest=True, status=query.status if "status" in fields else None)


def instant_in(fields: Mapping[str, Any], name: str, judged: bool = False) -> int | None:
    """The time (epoch ms) in a field; None if the field is absent. `judged`: see `parse_instant`."""
    return parse_instant(fields[name], name, text=True, judged=judged) if name in fields else None
