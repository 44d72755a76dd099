"""Reads the order in a request for a job, and checks all of it before anything is done."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from duemq.model.errors import Rejected
from duemq.model.log.job import KINDS, OF_THE_DEAD, Order
from duemq.model.messages.dead_letters import home_of
from duemq.model.messages.message import MOVES, is_topic
from duemq.model.timing import LAST_MS, parse_duration, shown
from duemq.model.topics.rules import ID_CHARS
from duemq.proxy.jobs.work import dead_range
from duemq.proxy.request.ingress import Ingress
from duemq.proxy.request.json_body import check_fields
from duemq.proxy.request.message_ref import check_topic
from duemq.proxy.request.query import PREFIXES, read_filter

MAX_IDS: Final = 10_000
MAX_RATE: Final = 1_000_000

_FIELDS: Final = (
    "kind", "filter", "ids", "rate", "dry_run", "topic", "source", "deliver_at", "deliver_after", "deliver_after_ms",
    "zone", "shift",
)  # fmt: skip
_WHEN: Final = ("deliver_at", "deliver_after", "deliver_after_ms", "shift")
_PENDING: Final = ("topic", "key", "label", "due_from", "due_to", *PREFIXES)
_TIMES_OF_DEATH: Final = ("dead_from", "dead_to")
_RANGES: Final = (*_TIMES_OF_DEATH, "due_from", "due_to")
_PLACE: Final = re.compile(r"[0-9]{1,5}:[0-9]{1,15}")
_TEXT_CHARACTERS: Final = 1_000
_ID: Final = re.compile(rf"[A-Za-z0-9_-]{{{ID_CHARS}}}")


class OrderRequest(NamedTuple):
    """`ids`: the listed targets of the job; None: its targets are the matches of the order's filter."""

    order: Order
    ids: list[str] | None
    dry_run: bool


def read_order(body: Mapping[str, Any], ingress: Ingress, now: int, caller: str = "") -> OrderRequest:
    """Read an order. Raises Rejected. `now`: epoch ms. `caller`: the owner of names (`Grant.namespace`)."""
    check_fields(body, _FIELDS)
    kind, source, topic = body.get("kind"), _topic(body, "source"), _topic(body, "topic")
    if type(kind) is not str or kind not in KINDS:
        raise Rejected("bad_field", f"kind must be one of {', '.join(KINDS)}, not {shown(kind)}", "kind")
    if source and kind not in OF_THE_DEAD:
        raise Rejected("bad_field", f"a {kind} job has no source: it is of pending messages", "source")
    if topic and kind != "redrive":
        raise Rejected("bad_field", "topic is the target of a redrive; filter.topic selects messages", "topic")
    if topic:
        if not is_topic(topic.encode()):
            raise Rejected("bad_topic", f"{topic} is one of duemq's own topics", "topic")
        ingress.check_open_topic(topic)
    elif kind == "redrive":
        topic = home_of(source)
    dry_run = body.get("dry_run", False)
    if type(dry_run) is not bool:
        raise Rejected("bad_field", f"dry_run must be true or false, not {shown(dry_run)}", "dry_run")
    due, shift = _when(kind, body, ingress, now)
    ids = _ids(body["ids"], kind, source) if "ids" in body else None
    if ids is None:
        fields = _filter(body.get("filter"), kind, source, now)
    elif "filter" in body:
        raise Rejected("bad_field", "ids and filter are both given", "filter")
    else:
        fields = {"ids": len(ids)}
    names_of = caller if fields.keys() & set(PREFIXES) else None
    return OrderRequest(Order(kind, fields, _rate(body), topic, due, shift, source, names_of), ids, dry_run)


def _topic(body: Mapping[str, Any], name: str) -> str:
    if name not in body:
        return ""
    topic = body[name]
    if type(topic) is not str:
        raise Rejected("bad_field", f"{name} must be text, not {shown(topic)}", name)
    return check_topic(topic)


def _rate(body: Mapping[str, Any]) -> float | None:
    rate = body.get("rate")
    if rate is None:
        return None
    if type(rate) not in (int, float) or not math.isfinite(rate) or not 0.01 <= rate <= MAX_RATE:
        raise Rejected("bad_field", f"rate must be 0.01 to {MAX_RATE:,} messages/s, not {shown(rate)}", "rate")
    return float(rate)


def _when(kind: str, body: Mapping[str, Any], ingress: Ingress, now: int) -> tuple[int, int]:
    """The time (epoch ms) to which a job moves messages, and the shift (ms) of their times; the one not given is 0."""
    given = [name for name in _WHEN if name in body]
    if KINDS[kind] not in MOVES:
        if given:
            raise Rejected("bad_field", f"{given[0]} is of a move", given[0])
        return 0, 0
    if len(given) != 1:
        code = "both_times" if given else "bad_field"
        raise Rejected(code, f"a move needs exactly one of {', '.join(_WHEN)}", "deliver_at")
    if given[0] != "shift":
        return ingress.when({name: body[name] for name in (given[0], "zone") if name in body}, now), 0
    value = body["shift"]
    back = (type(value) is str and value.startswith("-")) or (type(value) in (int, float) and value < 0)
    ms = parse_duration(value.lstrip("-") if isinstance(value, str) else -value if back else value, "shift")
    if not 0 < ms <= LAST_MS:
        raise Rejected("bad_time", f"shift must be 1 to {LAST_MS} ms, forward or back", "shift")
    return 0, -ms if back else ms


def _ids(ids: Any, kind: str, source: str) -> list[str]:
    if source and kind == "purge":
        raise Rejected("bad_field", "a topic is purged up to a time, filter.dead_to, and not by ids", "ids")
    if type(ids) is not list or not ids:
        raise Rejected("bad_field", "ids must be a list of ids that is not empty", "ids")
    if len(ids) > MAX_IDS:
        raise Rejected("batch_too_large", f"at most {MAX_IDS} ids can be listed, not {len(ids)}", "ids")
    form, what = (_PLACE, "PARTITION:OFFSET") if source else (_ID, "the id of a message, and no name")
    for one in ids:
        if type(one) is not str or not form.fullmatch(one):
            raise Rejected("bad_field", f"each of ids must be {what}, not {shown(one)}", "ids")
    return list(dict.fromkeys(ids))


def _filter(fields: Any, kind: str, source: str, now: int) -> dict[str, Any]:
    if type(fields) is not dict:
        raise Rejected("bad_field", "filter must be an object; or list ids", "filter")
    known: tuple[str, ...]
    if source:
        known = ("dead_to",) if kind == "purge" else ("topic", "topic_prefix", "key", "reason", *_TIMES_OF_DEATH)
    elif kind in OF_THE_DEAD:
        known = (*_PENDING, "reason", *_TIMES_OF_DEATH)
    else:
        known = _PENDING
    if unknown := [name for name in fields if name not in known]:
        detail = f"{shown(unknown[0])} is not a filter of this job; known are {', '.join(known)}"
        raise Rejected("unknown_field", detail, "filter")
    if kind not in OF_THE_DEAD:
        if not fields:
            raise Rejected("bad_field", "an empty filter would select everything; name at least one field", "filter")
    elif not fields.keys() & set(_RANGES):
        ranges = [name for name in _RANGES if name in known]
        raise Rejected("bad_field", f"filter must say a time range ({', '.join(ranges)}); or list ids", "filter")
    for name in ("key", "label", "reason"):
        if len(str(fields.get(name, ""))) > _TEXT_CHARACTERS:
            raise Rejected("bad_field", f"{name} has more than {_TEXT_CHARACTERS} characters", name)
    if "reason" in fields and type(fields["reason"]) is not str:
        raise Rejected("bad_field", f"reason must be text, not {shown(fields['reason'])}", "reason")
    dead_range(fields, now)
    read_filter(
        {name: value for name, value in fields.items() if name not in (*_TIMES_OF_DEATH, "reason")}, "bad_field"
    )
    return dict(fields)
