"""Converts values between proxies and nodes from and to JSON, with keys as hex and other bytes as base64."""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import asdict, replace
from typing import Any, Final

from duemq.cluster.shards.shard_reader import MessageState, NamedMessage, Query, SearchPart
from duemq.model.messages.import_command import ImportCommand
from duemq.model.messages.row_notes import UNCHANGED, Attempt, ChangeHistory, PastChange
from duemq.storage.shard.records import ImportRecord

TOKEN_HEADER = "duemq-token"  # the secret that proxies and nodes share, if set

READS_HEADER: Final = "duemq-reads"
NAMES: Final = "names"
"""The value of the header `duemq-reads` with which a proxy requests messages' names. Proxies of version 0.1 do not send
it: they refuse a state with a name."""

Json = dict[str, Any]

_NULL = "-"
"""Stands for a null value. This character is not in base64: an older process drops such characters, and reads an empty
value."""


def token_headers(token: str) -> dict[str, str]:
    """The headers with the token that a node requires; empty if no token is set."""
    return {TOKEN_HEADER: token} if token else {}


def state_to_json(state: MessageState, *, names: bool) -> Json:
    """A complete state, with the payload if there is one. `names`: whether the other side can read names."""
    more = {
        "redrives": state.redrives,
        "attempts": [tuple(one) for one in state.attempts],
        "history": [list(map(tuple, state.history.changes)), state.history.left_out] if state.history.changes else None,
        "name": _text(state.name) if names and state.name else None,
    }  # left out if unset: older processes do not know these fields
    headers = [(name, _NULL if value is None else _text(value)) for name, value in state.headers]
    return {
        "id": state.id, "status": state.status, "topic": state.topic, "due": state.due, "key": _text(state.key),
        "labels": state.labels, "headers": headers,
        "attempt": state.attempt, "expires": state.expires,
        "payload": _NULL if state.has_null else _text(state.payload),
        "delivered_at": state.delivered_at, "cancelled_at": state.cancelled_at, "dead_at": state.dead_at,
        "reason": state.reason, **{name: value for name, value in more.items() if value},
    }  # fmt: skip


def state_from_json(document: Json) -> MessageState:
    state = MessageState(**{name: value for name, value in document.items() if name in _FIELDS})
    return replace(
        state,
        key=_bytes(document["key"]),
        labels=tuple(document["labels"]),
        headers=tuple((name, _bytes(value)) for name, value in document["headers"]),
        payload=_bytes(document["payload"]),
        has_null=document["payload"] == _NULL,
        attempts=tuple(Attempt(*attempt) for attempt in document.get("attempts", ())),
        history=_history(document.get("history")),
        name=_bytes(document.get("name")) or b"",
    )


_FIELDS: Final = frozenset(MessageState.__dataclass_fields__)


def _history(document: list[Any] | None) -> ChangeHistory:
    if document is None:
        return UNCHANGED
    changes, left_out = document
    return ChangeHistory(tuple(PastChange(*change) for change in changes), left_out)


def named_message_to_json(message: NamedMessage | None, *, names: bool) -> Json | None:
    if message is None:
        return None
    return {"fingerprint": message.fingerprint.hex(), "state": state_to_json(message.state, names=names)}


def named_message_from_json(document: Json | None) -> NamedMessage | None:
    if document is None:
        return None
    return NamedMessage(bytes.fromhex(document["fingerprint"]), state_from_json(document["state"]))


def import_to_json(import_record: ImportRecord) -> Json:
    return asdict(import_record)


def import_from_json(document: Json) -> ImportRecord:
    return ImportRecord(**(document | {"import_command": ImportCommand(**document["import_command"])}))


_LATER: Final = frozenset(("newest", "topic_prefix", "name_prefix", "caller"))
"""Fields of a query that were added in later versions."""


def query_to_json(query: Query) -> Json:
    """A query without its `shard`, because the shards to search are sent separately.

    Fields from later versions are left out unless they are set, because a node refuses unknown fields.
    """
    document = {name: value for name, value in asdict(query).items() if name != "shard"}
    return {name: value for name, value in document.items() if name not in _LATER or value}


def query_from_json(document: Json) -> Query:
    return Query(**document)


def search_part_to_json(part: SearchPart, *, names: bool) -> Json:
    messages = [[key.hex(), state_to_json(state, names=names)] for key, state in part.messages]
    return {"messages": messages, "looked": None if part.looked is None else part.looked.hex()}


def search_part_from_json(document: Json) -> SearchPart:
    messages = [(bytes.fromhex(key), state_from_json(state)) for key, state in document["messages"]]
    return SearchPart(messages, None if document["looked"] is None else bytes.fromhex(document["looked"]))


def _text(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None or text == _NULL else b64decode(text)
