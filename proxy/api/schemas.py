"""The shapes of the API's bodies, for the OpenAPI document only: requests are checked in `proxy/request/ingress.py`."""

from __future__ import annotations

from itertools import combinations
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from duemq.model.messages.import_command import MAX_FILES
from duemq.model.readiness import Reason
from duemq.model.timing import FIRST_MS, TIME_FIELDS

Status = Literal["scheduled", "delivered", "cancelled", "dead"]
Rfc3339 = Annotated[str, Field(json_schema_extra={"format": "date-time"}, examples=["2026-11-21T10:00:00.000Z"])]
Ms = Annotated[int, Field(ge=0, description="Epoch milliseconds.", examples=[1795255200000])]
TopicName = Annotated[str, Field(min_length=1, max_length=249, pattern=r"^[A-Za-z0-9._-]+$", examples=["orders"])]
TopicPrefix = Annotated[
    str, Field(min_length=1, max_length=249, pattern=r"^[A-Za-z0-9._-]+$", description="Prefix of the topic.")
]
_NAME = r"^[^\x00-\x1f\x7f-\x9f]+$"
NamePrefix = Annotated[str, Field(min_length=1, max_length=128, pattern=_NAME, description="Prefix of the name.")]
Instant = Annotated[
    Annotated[str, Field(json_schema_extra={"format": "date-time"})] | Annotated[int, Field(ge=FIRST_MS)],
    Field(description="RFC 3339 or RFC 9557, or epoch ms from March 1973 on: lower values are refused."),
]
Duration = Annotated[
    Annotated[str, Field(min_length=2)] | Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0)],
    Field(description='Such as "90s", "2h30m", "PT90S", or ms, rounded up.', examples=["90s", 1500]),
]
DelayMs = Annotated[float, Field(ge=0, description="Like deliver_after, in ms.", examples=[1500])]
Zone = Annotated[
    str,
    Field(min_length=1, description="For date-times without an offset.", examples=["Europe/Berlin"]),
]
Level = Annotated[int, Field(description="A place in the table of delay levels, from 1; 0 or less means at once.")]
Cursor = Annotated[str, Field(description="Opaque; only valid for the list or topic that it came from.")]


HeaderValue = Annotated[
    str | dict[Literal["base64"], str] | None, Field(description="Text, null, or bytes as base64 (RFC 4648).")
]
HeaderList = list[tuple[str, HeaderValue]]
_HEADERS = "The last value of a repeated name; bytes that are not UTF-8 as \\xNN."
_HEADER_LIST = "All headers in order, if headers cannot express them."


class Shape(BaseModel):
    model_config = ConfigDict(defer_build=True)  # the document is built on request, which is rare


class Closed(Shape):
    model_config = ConfigDict(extra="forbid")


def _two_of(*names: str) -> list[JsonValue]:
    return [{"required": list(pair)} for pair in combinations(names, 2)]


class Message(Closed):
    """Exactly one of topic and destination; at most one of payload, payload_base64 and payload_json, of headers and
    header_list, of expires_at and expires_after, and of deliver_at, deliver_after, deliver_after_ms and delay_level."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [{"required": ["topic"]}, {"required": ["destination"]}],
            "not": {
                "anyOf": [
                    *_two_of("payload", "payload_base64", "payload_json"),
                    *_two_of("headers", "header_list"),
                    *_two_of("expires_at", "expires_after"),
                    *_two_of(*TIME_FIELDS),
                ]
            },
        }
    )

    topic: TopicName = ""
    destination: str = Field(
        default="", pattern=r"^[A-Za-z0-9._-]{1,188}$", description="The name of a declared destination.",
        examples=["billing"],
    )  # fmt: skip
    payload: str | None = Field(
        default="", description="Text, or null. Decoded, a payload has at most 1 MiB by default."
    )
    payload_base64: str = Field(default="", description="Bytes, as base64 (RFC 4648).", examples=["AAEC/w=="])
    key: str = Field(default="", description="The record key in the topic; messages can be looked up by it.")
    payload_json: Any = Field(default=None, description="Any JSON value. The payload is its exact text.")
    headers: dict[str, str] = Field(default={}, description="Passed through; names beginning with duemq- are reserved.")
    header_list: HeaderList = Field(default=[], description="Headers that may repeat, with bytes or null.")
    labels: list[Annotated[str, Field(min_length=1, max_length=128)]] = Field(default=[], max_length=16)
    deliver_at: Instant = 0
    deliver_after: Duration = 0
    deliver_after_ms: DelayMs = 0
    delay_level: Level = 0
    zone: Zone = ""
    expires_at: Instant = Field(default=0, description="After this time it is dead-lettered instead of delivered.")
    expires_after: Duration = Field(default=0, description="The same, relative to the server's receipt.")


class When(Closed):
    """Exactly one of the times."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [{"required": [name]} for name in TIME_FIELDS],
        }
    )

    deliver_at: Instant = 0
    deliver_after: Duration = 0
    deliver_after_ms: DelayMs = 0
    delay_level: Level = 0
    zone: Zone = ""
    shift_expiry: bool = Field(default=False, description="Move the expiry by the same amount.")


class BatchMessage(Message):
    """At most one of name and idempotency_key, and the fields of a message."""

    name: str = Field(
        default="", min_length=1, max_length=128, pattern=_NAME,
        description="As in PUT /v1/messages/{name}.", examples=["order-17"],
    )  # fmt: skip
    idempotency_key: str = Field(
        default="", min_length=1, max_length=255, description="For this message, like the header Idempotency-Key."
    )


class Batch(Closed):
    messages: list[BatchMessage] = Field(max_length=10_000)


class CancelFilter(Closed):
    """The fields of the list. At least one other than status is required."""

    topic: TopicName = ""
    status: Status = "scheduled"
    key: str = ""
    label: str = ""
    due_from: Instant = Field(default=0, description="Inclusive.")
    due_to: Instant = Field(default=0, description="Exclusive.")
    topic_prefix: TopicPrefix = ""
    name_prefix: NamePrefix = ""


class CancelMany(Closed):
    """Exactly one of ids and filter."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["ids"]}, {"required": ["filter"]}]})

    ids: list[str] = Field(default=[], max_length=10_000, description="Ids or names.")
    filter: CancelFilter = CancelFilter()
    times: bool = Field(default=False, description="Include the end time of each message.")


class Move(Closed):
    """Exactly one of the times."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": [name]} for name in TIME_FIELDS]})

    id: str = Field(description="An id or a name.")
    deliver_at: Instant = 0
    deliver_after: Duration = 0
    deliver_after_ms: DelayMs = 0
    delay_level: Level = 0
    zone: Zone = ""


class MoveMany(Closed):
    moves: list[Move] = Field(max_length=10_000)
    times: bool = Field(default=False, description="Include the end times of messages that were not moved.")
    shift_expiry: bool = Field(default=False, description="Move the expiry of each by the same amount.")


class Place(Closed):
    cursor: Cursor


class Receipt(Shape):
    id: str = Field(description="Opaque, URL-safe, compared exactly.")
    status: Status
    topic: TopicName
    deliver_at: Rfc3339
    deliver_at_ms: Ms
    duplicate: bool = Field(default=False, description="True if it was accepted before, under the same name or key.")


class ImportCommand(Shape):
    path: str = Field(description="Absolute, as the nodes see it, or s3://BUCKET/KEY; below delay_files.import_from.")
    link: bool = Field(default=False, description="Nobody will change the file: it may be linked, not copied.")
    sha256: str = Field(default="", description="All four or none: then the file is read before the answer.")
    size: int = Field(default=0, description="Bytes.")
    window: Ms = Field(default=0, description="When its 30-minute window begins.")
    rows: int = 0


class ImportRequest(Shape):
    path: str = Field(description="Absolute, as the nodes see it, or s3://BUCKET/KEY; below delay_files.import_from.")
    sha256: str
    size: int = Field(description="Bytes.")
    window: Ms = Field(description="When its 30-minute window begins.")
    rows: int
    link: bool = Field(default=False, description="Nobody will change the file: it may be linked, not copied.")


class ImportManyRequest(Closed):
    files: list[ImportRequest] = Field(min_length=1, max_length=MAX_FILES)


class FileImport(Shape):
    id: str
    shard: int
    state: Literal["pending", "imported", "rejected"] = Field(
        description="pending: the nodes are importing it. imported: its messages are scheduled."
    )
    duplicate: bool
    path: str = ""
    rows: int = 0
    size: int = 0
    sha256: str = ""
    window: Rfc3339 = ""
    window_ms: Ms = 0
    since: Rfc3339 = Field(default="", description="When it entered this state.")
    since_ms: Ms = 0
    reason: str = Field(default="", description="Why it was rejected or is pending.")


class ImportList(Shape):
    imports: list[FileImport]


class ImportPage(ImportList):
    count: int = Field(ge=0, description="The total number; `limit` of them are listed.")


class FailedAttempt(Shape):
    at: Rfc3339
    at_ms: Ms
    reason: str


class MessageChange(Shape):
    change: Literal["moved", "delivered_now", "redriven", "purged", "cancelled"]
    at: Rfc3339
    at_ms: Ms
    from_: Rfc3339 = Field(default="", alias="from", description="The old due time. Absent if the change ended it.")
    from_ms: Ms = 0
    to: Rfc3339 = Field(default="", description="The new due time.")
    to_ms: Ms = 0
    by: str = Field(default="", description="The caller: key:NAME, user:ID (NAME), settings or job:ID, if known.")


class MessageState(Shape):
    id: str
    status: Status
    topic: TopicName
    deliver_at: Rfc3339
    deliver_at_ms: Ms
    name: str = Field(default="", description="The name for lookups by this caller. Absent if it has none.")
    key: str | None = None
    key_base64: str = Field(default="", description="Replaces key if that is not UTF-8.")
    labels: list[str]
    headers: dict[str, str | None] = Field(description=_HEADERS)
    header_list: HeaderList = Field(default=[], description=_HEADER_LIST)
    attempt: int = Field(description="The number of attempts; 0 before the first.")
    payload: str | None = Field(default="", description="While the message is held. Not in lists.")
    payload_base64: str = Field(default="", description="Replaces payload if that is not UTF-8.")
    expires_at: Rfc3339 = ""
    expires_at_ms: Ms = 0
    delivered_at: Rfc3339 = ""
    delivered_at_ms: Ms = 0
    cancelled_at: Rfc3339 = ""
    cancelled_at_ms: Ms = 0
    dead_at: Rfc3339 = ""
    dead_at_ms: Ms = 0
    reason: str = Field(default="", description="Why it is in the dead letters.")
    redrives: int = Field(default=0, description="How often it was redriven.")
    attempts: list[FailedAttempt] = Field(
        default_factory=list,
        description="Recorded failed deliveries and deaths, oldest first. Not in lists.",
    )
    changes: list[MessageChange] = Field(
        default_factory=list,
        max_length=16,
        description="Changes, oldest first: the first and the last 15. Not in lists.",
    )
    changes_left_out: int = Field(default=0, description="Changes left out after the first one.")


class MessageList(Shape):
    messages: list[MessageState]
    cursor: Cursor | None = Field(description="The start of the next page; null after the last one.")
    indexed: bool = Field(
        default=False, description="For a search: whether key and label were looked up in the index. Else all messages "
        "were scanned, state by state, each soonest first.",
    )  # fmt: skip


class Problem(Shape):
    """RFC 9457. Some codes add members, such as delivered_at and delivered_at_ms of already_delivered."""

    type: str
    title: str
    status: int
    detail: str
    code: str = Field(description="Stable and machine-readable.")
    field: str = Field(default="", description="The field at fault, if there is one.")


class Refused(Shape):
    error: Problem


class BatchResult(Shape):
    results: list[Receipt | Refused] = Field(description="In the order of the messages.")
    accepted: int = Field(description="Accepted now or, for duplicates, before.")
    rejected: int
    unknown: int = Field(default=0, description="How many have the error outcome_unknown; absent if none has.")


class Cancelled(Shape):
    id: str
    status: Literal["cancelled"]
    cancelled_at: Rfc3339
    cancelled_at_ms: Ms


class Pending(Shape):
    id: str
    status: Literal["pending"]


class Ended(Shape):
    """When it ended, if times are requested, and known."""

    cancelled_at: Rfc3339 = ""
    cancelled_at_ms: Ms = 0
    delivered_at: Rfc3339 = ""
    delivered_at_ms: Ms = 0
    dead_at: Rfc3339 = ""
    dead_at_ms: Ms = 0


class CancelOutcome(Ended):
    id: str
    status: Literal["cancelled", "already_delivered", "already_dead", "unknown", "pending"]


class CancelReport(Shape):
    results: list[CancelOutcome] = Field(
        description="In the order of the ids; by filter, soonest first, and at most 10,000."
    )
    counts: dict[str, int] = Field(description="Counts by status.")
    truncated: bool = Field(
        default=False, description="More than 10,000 matched: all are counted, the results have the first."
    )


class MoveOutcome(Ended):
    id: str
    status: Literal["moved", "already_delivered", "already_cancelled", "already_dead", "unknown", "pending"]
    deliver_at: Rfc3339 = Field(default="", description="The new due time, if it was moved.")
    deliver_at_ms: Ms = 0


class MoveReport(Shape):
    results: list[MoveOutcome | Refused] = Field(description="In the order of the moves.")
    counts: dict[str, int] = Field(description="Counts by status, and `rejected` for refused ones.")


class Topic(Shape):
    topic: TopicName
    partitions: int
    records: int | None = Field(description="Kept records; null if the topic cannot be read now.")
    start_offsets: list[int] = Field(description="The first kept one, per partition; empty if records is null.")
    end_offsets: list[int] = Field(description="The next one, per partition; empty if records is null.")
    cursor: Cursor | None = Field(
        description="The end of the topic: read after it for new records. "
        "Null if records is null, and above 2,000 partitions."
    )
    trouble: str | None = Field(description="Why messages to it are refused or it cannot be read, null if all is well.")
    lateness: dict[str, Any] = Field(
        description="count, p50_ms, p99_ms and max_ms of the deliveries since this server started."
    )


class TopicDetails(Topic):
    pending: int | None = Field(description="Messages that wait for their time; null while a shard does not know.")
    pending_unread: int | None = Field(
        description="How many of them may be cancelled: cancels in delay files are counted by topic later."
    )


class TopicList(Shape):
    topics: list[Topic]


class Record(Shape):
    partition: int
    offset: int
    timestamp_ms: Ms = Field(description="When it was written to the topic, epoch ms.")
    key: str | None = None
    key_base64: str = ""
    payload: str | None = ""
    payload_base64: str = Field(default="", description="Replaces payload if that is not UTF-8.")
    headers: dict[str, str | None] = Field(
        description="duemq-id, duemq-due (ms), duemq-attempt, and the sender's own. " + _HEADERS
    )
    header_list: HeaderList = Field(default=[], description=_HEADER_LIST)


class Records(Shape):
    records: list[Record]
    cursor: Cursor = Field(description="The cursor after these records.")


class ShardTrouble(Shape):
    reason: Reason
    state: str = Field(default="", description="Of the replica here: leading, following ...; empty for a proxy.")
    detail: str = Field(description="The reason in a sentence.")
    producer: int | None = Field(default=None, description="For a blocked shard: the producer's id; -1 if unknown.")
    since_ms: int | None = Field(default=None, description="For a blocked shard.")


class Root(Shape):
    """Paths relative to this one."""

    console: str
    openapi: str


class State(Shape):
    status: Literal["ok", "ready"]
    shards: dict[str, ShardTrouble] = Field(
        default={}, description="For /readyz: shards in trouble, by number, even if it is ready."
    )
    topics: list[str] = Field(
        default=[], description="For /readyz: duemq's own topics that are unusable or misconfigured."
    )


class Node(Shape):
    name: str
    url: str = Field(description="Where proxies read its shards.")
    rack: str
    state: Literal["joining", "ready", "draining", "out"]
    reason: str = Field(description="Why it is not ready; empty if it is.")
    watermark: int = Field(ge=0, le=3, description="The mark of its disk: 1 purges, 2 shortens, 3 refuses.")
    full: str = Field(description="Why its disk allows no new messages; empty if it does.")
    master_of: list[int]
    holds: list[int] | None = Field(description="The shards it has replicas of; null = all.")
    lag: dict[str, int] = Field(description="Ledger entries each shard is behind.")


class Shard(Shape):
    """Only shard and master before the first commit."""

    shard: int
    master: str | None = Field(description="The node's name; null while there is none.")
    entry: int = Field(default=0, description="The number of the last ledger entry.")
    entry_age_ms: int = Field(default=0, description="The age of that entry. Without work there are no new ones.")
    applied: int = Field(default=0, description="Commands below this offset are applied.")
    cursor_ms: Ms = Field(default=0, description="Messages due up to here are delivered.")
    cursor_age_ms: int | None = Field(default=None, description="The age of the cursor. It rests if nothing is due.")
    pending: int = Field(default=0, description="Messages held for later.")
    outcomes: dict[str, int] = Field(default={}, description="Messages ever accepted, and how they ended.")


class Cluster(Shape):
    cluster: str = Field(description="The cluster's id.")
    nodes: list[Node]
    topics: dict[str, str] = Field(description="Up to 16 topics that refuse messages, each with a sentence.")
    shards: list[Shard]


class ImportLimits(Shape):
    """Limits of submitted files."""

    enabled: bool = Field(description="Whether files can be imported: delay_files.import_from names a place.")
    max_files: int = Field(description="In one call.")
    max_file_rows: int
    min_lead_ms: Ms = Field(description="How far ahead of now a file's window must begin.")


class Limits(Shape):
    """This server's limits: settings `limits.*`, `topics.allowed`, `delay_files.*`."""

    shards: int
    topics: list[str] = Field(description="Names or patterns such as orders.*; none = any topic.")
    max_delay_ms: Ms = Field(description="How far ahead of now a message may be due.")
    max_payload_bytes: int
    max_key_bytes: int
    max_headers: int
    max_headers_bytes: int = Field(description="All headers of one message, with 6 bytes each for lengths.")
    max_batch_items: int
    max_batch_bytes: int
    imports: ImportLimits
    now_ms: Ms = Field(description="The server's clock, epoch ms.")


class Drained(Shape):
    name: str
    draining: bool
