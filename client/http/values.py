"""The server's answers as values. `raw` is always the JSON as it was received."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

import orjson

from duemq.client.http.errors import RejectedError, Unavailable, Unreachable
from duemq.client.http.fields import HeaderList, read_header_list
from duemq.client.http.times import EpochMs, from_ms

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MessageChange:
    """A change of a message: `moved`, `delivered_now`, `redriven`, `purged` or `cancelled`. `from_ms`, `to_ms`: the
    message's due time before and after the change; None if it had ended by then. `by`: the caller; None if unknown."""

    change: str
    at_ms: int
    from_ms: int | None = None
    to_ms: int | None = None
    by: str | None = None

    @classmethod
    def from_json(cls, body: Json) -> Self:
        return cls(body["change"], body["at_ms"], body.get("from_ms"), body.get("to_ms"), body.get("by"))


@dataclass(frozen=True, slots=True)
class MessageState:
    """The state of a message at the time of the answer. Times ending in `_ms` are in epoch milliseconds.

    A receipt has only `id`, `status`, `topic`, `deliver_at_ms` and `duplicate`; `get` returns all fields.
    `headers`: the last value of a repeated name, with non-UTF-8 bytes as `\\xNN`; `header_list` has all, unchanged.
    `payload` is None if the answer does not include it, the server no longer keeps it, or it is null (then `is_null` is
    true).
    `changes`: the first change and the last 15.
    """

    id: str
    status: str
    topic: str
    deliver_at_ms: EpochMs
    duplicate: bool = False
    name: str | None = None
    key: str | None = None
    headers: Mapping[str, str | None] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    attempt: int = 0
    payload: bytes | None = None
    is_null: bool = False
    expires_at_ms: EpochMs | None = None
    delivered_at_ms: int | None = None
    cancelled_at_ms: int | None = None
    dead_at_ms: int | None = None
    reason: str | None = None
    changes: tuple[MessageChange, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, body: Json, duplicate: bool = False) -> Self:
        return cls(
            id=body["id"],
            status=body["status"],
            topic=body["topic"],
            deliver_at_ms=body["deliver_at_ms"],
            duplicate=body.get("duplicate", duplicate),
            name=body.get("name"),
            key=body.get("key"),
            headers=body.get("headers") or {},
            labels=tuple(body.get("labels") or ()),
            attempt=body.get("attempt") or 0,
            payload=_payload(body),
            is_null=_is_null(body),
            expires_at_ms=body.get("expires_at_ms"),
            delivered_at_ms=body.get("delivered_at_ms"),
            cancelled_at_ms=body.get("cancelled_at_ms"),
            dead_at_ms=body.get("dead_at_ms"),
            reason=body.get("reason"),
            changes=tuple(map(MessageChange.from_json, body.get("changes") or ())),
            raw=body,
        )

    @property
    def header_list(self) -> HeaderList:
        """All headers in order, with their bytes; None is null. `send` accepts it as `headers`."""
        return read_header_list(self.raw)


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list. `cursor` is None on the last page."""

    messages: Sequence[MessageState]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A successful cancel: the message will not be delivered."""

    id: str
    cancelled_at_ms: int
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def cancelled_at(self) -> datetime:
        return from_ms(self.cancelled_at_ms)


@dataclass(frozen=True, slots=True)
class CancelResult:
    """The result for one message in a cancel of many. `status`: "cancelled", "already_delivered", "already_dead",
    "unknown", or "pending" (not known yet: ask again). `at_ms`: when the message ended, if times were requested and the
    time is known."""

    id: str
    status: str
    at_ms: int | None = None

    @classmethod
    def from_json(cls, body: Json) -> Self:
        return cls(body["id"], body["status"], _ended_at(body))


@dataclass(frozen=True, slots=True)
class CancelReport:
    """The result for each message, in the given order, and the number of messages by status.

    `truncated`: the filter matched more than 10,000 messages. All are counted, but `results` contains only the first.
    """

    results: tuple[CancelResult, ...]
    counts: Mapping[str, int]
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class MoveResult:
    """The result for one message in a move of many. `status`: "moved", "already_delivered", "already_cancelled",
    "already_dead", "unknown", or "pending" (not known yet: with an absolute time, the call can be repeated). `at_ms`:
    the new due time if the message was moved; otherwise when it ended, if times were requested and the time is
    known."""

    id: str
    status: str
    at_ms: int | None = None

    @classmethod
    def from_json(cls, body: Json) -> Self:
        return cls(body["id"], body["status"], body.get("deliver_at_ms") or _ended_at(body))


@dataclass(frozen=True, slots=True)
class MoveReport:
    """The result for each message, in the given order (or the error, if the move was refused), and the number of
    messages by status; refused moves count as "rejected"."""

    results: tuple[MoveResult | RejectedError | Unavailable | Unreachable, ...]
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Record:
    """A delivered message, as a consumer gets it. If the payload is null, `payload` is empty and `is_null` is true.

    `headers`: the last value of a repeated name, with non-UTF-8 bytes as `\\xNN`; `header_list` has all, unchanged.
    `cursor` is the position just after the record; the server sends it only in `tail`.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: str | None
    payload: bytes
    headers: Mapping[str, str | None]
    cursor: str | None = None
    is_null: bool = False
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, topic: str, body: Json, cursor: str | None = None) -> Self:
        return cls(
            topic=topic,
            partition=body["partition"],
            offset=body["offset"],
            timestamp_ms=body["timestamp_ms"],
            key=body.get("key"),
            payload=_payload(body) or b"",
            headers=body.get("headers") or {},
            cursor=cursor,
            is_null=_is_null(body),
            raw=body,
        )

    @property
    def header_list(self) -> HeaderList:
        """All headers in order, with their bytes; None is null."""
        return read_header_list(self.raw)

    @property
    def value(self) -> bytes | None:
        """The payload; None if it is null."""
        return None if self.is_null else self.payload

    @property
    def id(self) -> str | None:
        """The message's id; None for a record that did not come through duemq."""
        return self.headers.get("duemq-id")

    @property
    def due_ms(self) -> int | None:
        due = self.headers.get("duemq-due")
        return None if due is None else int(due)

    @property
    def lateness_ms(self) -> int | None:
        """How long after its due time the message was written to the topic, in ms."""
        due = self.due_ms
        return None if due is None else self.timestamp_ms - due

    @property
    def attempt(self) -> int:
        return int(self.headers.get("duemq-attempt") or 1)

    @property
    def text(self) -> str:
        """The payload decoded as UTF-8. Raises `UnicodeDecodeError` if it is not UTF-8."""
        return self.payload.decode()

    def json(self) -> Any:
        """The payload parsed as JSON. Raises `ValueError` if it is not JSON."""
        return orjson.loads(self.payload)


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message that is leased to this worker until `lease_ends_at_ms`. `attempt`: the number of this delivery, 1 for
    the first. If the payload is null, `payload` is empty and `is_null` is true. `headers`, `header_list`: as in a
    `Record`."""

    receipt: str
    id: str
    topic: str
    attempt: int
    lease_ends_at_ms: int
    key: str | None
    payload: bytes
    headers: Mapping[str, str | None]
    due_at_ms: int | None = None
    is_null: bool = False
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, body: Json) -> Self:
        return cls(
            receipt=body["receipt"],
            id=body["id"],
            topic=body["topic"],
            attempt=body["attempt"],
            lease_ends_at_ms=body["lease_ends_at_ms"],
            key=body.get("key"),
            payload=_payload(body) or b"",
            headers=body["headers"],
            due_at_ms=body.get("due_at_ms"),
            is_null=_is_null(body),
            raw=body,
        )

    @property
    def header_list(self) -> HeaderList:
        """All headers in order, with their bytes; None is null."""
        return read_header_list(self.raw)


@dataclass(frozen=True, slots=True)
class RecordPage:
    """Records in a topic, and the cursor from which to continue."""

    records: Sequence[Record]
    cursor: str


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic: its name, and in `raw` its partitions, counts and lateness, as reported by the server."""

    name: str
    raw: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FileImport:
    """The import of a file of messages. `state`: "pending", "imported", or "rejected", with the `reason`. `duplicate`:
    whether a file with this content was imported before."""

    id: str
    state: str
    rows: int = 0
    window_ms: int = 0
    path: str = ""
    reason: str = ""
    duplicate: bool = False
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, body: Json) -> Self:
        members = {name: body[name] for name in ("rows", "window_ms", "path", "reason") if name in body}
        return cls(body["id"], body["state"], duplicate=body["duplicate"], raw=body, **members)


@dataclass(frozen=True, slots=True)
class Node:
    """A delay node. `state`: "joining", "ready", "draining" or "out". `lag`: how many ledger entries it is behind, by
    shard."""

    name: str
    state: str
    reason: str
    rack: str
    master_of: tuple[int, ...]
    lag: Mapping[int, int]
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, body: Json) -> Self:
        lag = {int(shard): behind for shard, behind in body["lag"].items()}
        return cls(body["name"], body["state"], body["reason"], body["rack"], tuple(body["master_of"]), lag, body)


@dataclass(frozen=True, slots=True)
class Shard:
    """The progress of a shard, according to its ledger. `master` is a node's name. All other values are None until the
    ledger has an entry."""

    number: int
    master: str | None
    entry: int | None
    entry_age_ms: int | None
    applied: int | None
    cursor_age_ms: int | None
    pending: int | None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, body: Json) -> Self:
        members = {name: body.get(name) for name in ("entry", "entry_age_ms", "applied", "cursor_age_ms", "pending")}
        return cls(number=body["shard"], master=body["master"], raw=body, **members)


@dataclass(frozen=True, slots=True)
class Limits:
    """The server's limits. Durations are in ms, sizes in bytes. `topics`: names or patterns (`orders.*`) of the only
    topics allowed; empty = any topic.

    `imports_files`: whether the server imports files. `max_files`: limit per call. `min_lead_ms`: how far ahead of now
    each file's window must begin. `now_ms`: the time on the server's clock, epoch ms; None if it does not report it.
    """

    shards: int
    topics: tuple[str, ...]
    max_delay_ms: int
    max_payload_bytes: int
    max_key_bytes: int
    max_headers: int
    max_headers_bytes: int
    max_batch_items: int
    max_batch_bytes: int
    imports_files: bool
    max_files: int
    max_file_rows: int
    min_lead_ms: int
    now_ms: int | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, body: Json) -> Self:
        imports = body["imports"]
        return cls(
            body["shards"], tuple(body["topics"]), body["max_delay_ms"], body["max_payload_bytes"],
            body["max_key_bytes"], body["max_headers"], body["max_headers_bytes"], body["max_batch_items"],
            body["max_batch_bytes"], imports["enabled"], imports["max_files"], imports["max_file_rows"],
            imports["min_lead_ms"], body.get("now_ms"), body,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cluster:
    """The nodes, and the master of each shard."""

    id: str
    nodes: tuple[Node, ...]
    shards: tuple[Shard, ...]
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, body: Json) -> Self:
        nodes = tuple(Node.from_json(node) for node in body["nodes"])
        return cls(body["cluster"], nodes, tuple(Shard.from_json(shard) for shard in body["shards"]), body)


def _ended_at(body: Json) -> int | None:
    return body.get("cancelled_at_ms") or body.get("delivered_at_ms") or body.get("dead_at_ms")


def _is_null(body: Json) -> bool:
    return body.get("payload", "") is None


def _payload(body: Json) -> bytes | None:
    if (encoded := body.get("payload_base64")) is not None:
        return base64.b64decode(encoded)
    text: str | None = body.get("payload")
    return None if text is None else text.encode()
