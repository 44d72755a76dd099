"""Messages and records in the API's form. Each time appears twice: RFC 3339 (`..._at`) and epoch ms (`..._at_ms`)."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable
from typing import Any

import orjson

from duemq.cluster.shards.shard_reader import MessageState
from duemq.model.messages.message import CANCEL, DELIVER_NOW, MOVE, PURGE, REDRIVE
from duemq.model.messages.names import text_of
from duemq.model.messages.record import HEAD, HEADER, Headers, StoredRecord, no_value, unpack_headers, unpack_record
from duemq.model.messages.row_notes import PastChange
from duemq.model.timing import format_ms
from duemq.proxy.gateway.base import Receipt

Json = dict[str, Any]

_dumps = orjson.dumps
_CHANGE_NAMES = {
    CANCEL: "cancelled",
    MOVE: "moved",
    DELIVER_NOW: "delivered_now",
    REDRIVE: "redriven",
    PURGE: "purged",
}


def times(name: str, ms: int) -> Json:
    """Both forms of one time."""
    return {name: format_ms(ms), f"{name}_ms": ms}


def receipt_json(receipt: Receipt) -> Json:
    return {
        "id": receipt.id,
        "status": receipt.status,
        "topic": receipt.topic,
        "deliver_at": format_ms(receipt.due),
        "deliver_at_ms": receipt.due,
    }


def state_json(state: MessageState, caller: str, *, payload: bool) -> Json:
    """`caller`: the owner of names (`Grant.namespace`). `payload`: whether to show it; lists omit it, because a page
    could have a gigabyte."""
    document: Json = {"id": state.id, "status": state.status, "topic": state.topic, **times("deliver_at", state.due)}
    if name := text_of(state.name, caller):
        document["name"] = name
    document |= _key_json(state.key)
    document |= {"labels": state.labels, **headers_json(state.headers), "attempt": state.attempt}
    for end in ("expires", "delivered", "cancelled", "dead"):
        ms = state.expires if end == "expires" else getattr(state, f"{end}_at")
        if ms:
            document |= times(f"{end}_at", ms)
    if state.reason:
        document["reason"] = state.reason
    if state.redrives:
        document["redrives"] = state.redrives
    if state.attempts and payload:
        document["attempts"] = [{**times("at", one.at), "reason": one.reason} for one in state.attempts]
    if state.history.changes and payload:
        document["changes"] = list(map(_change_json, state.history.changes))
        if state.history.left_out:
            document["changes_left_out"] = state.history.left_out
    if payload and (state.has_null or state.payload is not None):
        document |= _payload_json(state.payload)
    return document


def _change_json(change: PastChange) -> Json:
    document: Json = {"change": _CHANGE_NAMES[change.kind], **times("at", change.at)}
    if change.after:
        document |= times("from", change.before) | times("to", change.after)
    return document | {"by": change.by} if change.by else document


def headers_json(headers: Headers) -> Json:
    """`headers`, with the last one of each name, and bytes that are not UTF-8 as `\\xNN`; if that loses anything,
    `header_list` has all of them."""
    try:
        by_name = {name: None if value is None else value.decode() for name, value in headers}
        if len(by_name) == len(headers):
            return {"headers": by_name}
    except UnicodeDecodeError:
        by_name = {name: None if value is None else value.decode(errors="backslashreplace") for name, value in headers}
    return {"headers": by_name, "header_list": [[name, _value_json(value)] for name, value in headers]}


def _value_json(value: bytes | None) -> str | Json | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value or b"").decode()}


def _key_json(key: bytes | None) -> Json:
    try:
        return {"key": None if key is None else key.decode()}
    except UnicodeDecodeError:
        return {"key_base64": b64encode(key or b"").decode()}


def _payload_json(payload: bytes | None) -> Json:
    try:
        return {"payload": None if payload is None else payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": b64encode(payload or b"").decode()}


def _named(name: bytes, value: bytes, value_bytes: int) -> bytes:
    return re.escape(HEADER.pack(len(name), value_bytes) + name) + b"(" + value + b")"


# The first three headers of a first delivery, see `delay/core/outbox.py`.
_SYSTEM = re.compile(
    _named(b"duemq-id", b"[A-Za-z0-9_-]{32}", 32)
    + _named(b"duemq-due", b"[0-9]{13}", 13)
    + _named(b"duemq-attempt", b"[0-9]", 1)
)
_SYSTEM_HEADERS = 3

_RECORD = (
    b'{"partition":%d,"offset":%d,"timestamp_ms":%d,"key":%b,"payload":%b,'
    b'"headers":{"duemq-id":"%b","duemq-due":"%b","duemq-attempt":"%b"%b}}'
)


def records_bytes(partition: int, stored: Iterable[StoredRecord]) -> list[bytes]:
    """Records as JSON texts, in order.

    duemq wrote nearly all of them, with the same first three headers. These are cut out and put into a template, in
    less than half of the time of building and serialising dicts.
    """
    texts = []
    unpack, system = HEAD.unpack_from, _SYSTEM.match
    for offset, timestamp, frame in stored:
        key_bytes, count, header_bytes = unpack(frame)
        start = HEAD.size if key_bytes < 0 else HEAD.size + key_bytes
        end = start + header_bytes
        match = system(frame, start)
        try:
            value = frame[end:] or no_value(frame, start, count, end)
            payload = b"null" if value is None else _dumps(value.decode())
            key = b"null" if key_bytes < 0 else _dumps(frame[HEAD.size : start].decode())
        except UnicodeDecodeError:
            match = None
        if match is None:
            texts.append(_any_record(partition, offset, timestamp, frame))
            continue
        more = b""
        if count > _SYSTEM_HEADERS:
            own = headers_json(unpack_headers(frame, match.end(), count - _SYSTEM_HEADERS, end))
            if len(own) > 1:
                texts.append(_any_record(partition, offset, timestamp, frame))
                continue
            more = b"," + _dumps(own["headers"])[1:-1]
        texts.append(_RECORD % (partition, offset, timestamp, key, payload, *match.groups(), more))
    return texts


def content_json(key: bytes | None, payload: bytes | None, headers: Headers) -> Json:
    """Key, payload and headers of a record."""
    return _key_json(key) | _payload_json(payload) | headers_json(headers)


def _any_record(partition: int, offset: int, timestamp: int, frame: bytes) -> bytes:
    record = unpack_record(frame)
    document: Json = {"partition": partition, "offset": offset, "timestamp_ms": timestamp}
    return _dumps(document | content_json(record.key, record.value, record.headers))
