"""The table of all endpoints of the API, frequent ones first."""

from __future__ import annotations

from functools import cache

import orjson
from starlette.requests import Request
from starlette.responses import Response

from duemq.model.callers.access import Scope
from duemq.proxy.api import batch, change, find, imports, schemas, send, story, story_shapes, topics
from duemq.proxy.api import server_info as service
from duemq.proxy.api.admin.endpoints import ADMIN_ENDPOINTS
from duemq.proxy.api.endpoint import JSON, Endpoint, Parameter, ResponseSpec, Service
from duemq.proxy.destinations.endpoints import DESTINATION_ENDPOINTS
from duemq.proxy.groups.endpoints import GROUP_ENDPOINTS
from duemq.proxy.openapi import describe
from duemq.proxy.request.query import DEFAULT_LIMIT, MAX_LIMIT, ORDERS, STATUSES
from duemq.web import probes

_TEXT = {"type": "string"}
_INSTANT = {"type": "string", "examples": ["2026-11-21T10:00:00Z", "1795255200000"]}
_DOWN = ("unavailable", "disk_full")
_CLOCK = "clock_out_of_bounds"
_WHEN = ("both_times", "bad_time", "naive_time", "negative_delay", "delay_too_long", "past_due", "bad_level", _CLOCK)
_MESSAGE = (
    *_WHEN, *_DOWN, "missing_topic", "bad_topic", "unknown_topic", "unknown_destination", "bad_field",
    "unknown_field", "bad_header", "bad_json", "both_payloads", "bad_base64", "needs_key", "payload_too_large",
)  # fmt: skip
_CHANGE = ("unknown_message", "already_delivered", "already_cancelled", "already_dead", *_DOWN)
_LIST = ("bad_query", "bad_topic", "bad_cursor", "bad_time", "naive_time", *_DOWN)

_FILTERS = (
    Parameter("topic", "Of this topic.", _TEXT),
    Parameter("key", "With this key.", _TEXT),
    Parameter("label", "With this label.", _TEXT),
    Parameter("due_from", "Due at or after: RFC 3339 with a zone, or epoch ms.", _INSTANT),
    Parameter("due_to", "Due before: RFC 3339 with a zone, or epoch ms.", _INSTANT),
    Parameter("topic_prefix", "With this prefix of the topic.", _TEXT),
    Parameter("name_prefix", "With this prefix of the name.", _TEXT),
    Parameter("shard", "Of this shard only, counted from 0.", {"type": "integer", "minimum": 0, "maximum": 65_535}),
    Parameter("limit", "How many.", {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}),
    Parameter("cursor", "From the previous page.", _TEXT),
)
_STATUS = Parameter(
    "status",
    "With this status. Absent: `scheduled`, with `search` or `order=newest` any.",
    {"type": "string", "enum": list(STATUSES)},
)
_ORDER = Parameter(
    "order", "`newest`: the last accepted, moved, redriven or deferred ones first. It needs `key` or `label` and "
    "answers from the index (`index.topics`).", {"type": "string", "enum": list(ORDERS), "default": ORDERS[0]},
)  # fmt: skip
_SEARCH = (
    Parameter(
        "search", "With this id or name, or key, or label, in this order, each newest first. It does not go with "
        "`key`, `label` and `order`. Each part that is searched counts towards the rate of the key.", _TEXT,
    ),
    Parameter(
        "returns", "`false`: without messages that a destination or a consumer sent back, into `retry.*` and `dlq.*`. "
        "The story of the original message has them.",
        {"type": "string", "enum": ["true", "false"], "default": "true"},
    ),
)  # fmt: skip
_LAST_CURSOR = Parameter(
    topics.LAST_CURSOR, "The cursor that this process last stored or read. If the stored one differs, another process "
    "uses the consumer's name: `consumer_in_use`.", _TEXT, place="header",
)  # fmt: skip
_RECORDS = (
    Parameter("after", "A cursor; overrides the consumer's cursor. Absent: from the start.", _TEXT),
    Parameter("consumer", "Continue from this consumer's cursor. Reading does not move it.", _TEXT),
    Parameter(
        "max", "The most records to return.",
        {"type": "integer", "minimum": 1, "maximum": topics.MAX_RECORDS, "default": topics.DEFAULT_RECORDS},
    ),
    Parameter("wait", "How long to wait for the first one.", {"type": "string", "examples": ["5s", "500ms"]}),
)  # fmt: skip
_IDEMPOTENCY_KEY = Parameter(
    "Idempotency-Key", "A repeat with the same key and body gets the first message.",
    {"type": "string", "minLength": 1, "maxLength": 255}, "header",
)  # fmt: skip
_IF_NONE_MATCH = Parameter(
    "If-None-Match", "Refuse with name_taken if the name exists at all.", {"type": "string", "const": "*"}, "header"
)

_MESSAGE_EXAMPLES = {
    "in 90 seconds": {"topic": "orders", "payload": "pay up", "deliver_after": "90s"},
    "at a time, with a key, headers and labels": {
        "topic": "orders", "payload_base64": "AAEC/w==", "deliver_at": "2026-11-21T10:00:00+01:00", "key": "order-17",
        "headers": {"trace-id": "4711"}, "labels": ["reminder"], "expires_at": "2026-11-22T10:00:00+01:00",
    },
    "JSON, with a repeated header and bytes": {
        "topic": "orders", "payload_json": {"order": 17}, "deliver_after": "1h",
        "header_list": [["tag", "a"], ["tag", "b"], ["signature", {"base64": "AAEC/w=="}], ["note", None]],
    },
    "for one destination": {"destination": "billing", "payload": "{}", "deliver_after": "1h"},
    "at delay level 3": {"topic": "orders", "payload": "", "delay_level": 3},
}  # fmt: skip
_RAW = """\
A body of any type but JSON is the payload itself. Its fields are then request headers: `duemq-topic` or
`duemq-destination`, `duemq-key`,
`duemq-deliver-at`, `duemq-deliver-after`, `duemq-delay-level`, `duemq-expires-at`, `duemq-labels` (comma-separated),
and `duemq-header-NAME` for headers of the message."""
_KEY_INDEX = """\
With `key` or `label` the answer comes from an index if the topic has one, or all topics do (`index.topics`). Otherwise
all messages are scanned, so a page may have fewer messages than its limit, or none, and still have a cursor.
`order=newest` without `topic` returns the messages of all indexed topics."""
_STORY = """\
For each destination, and each group of duemq's consumers, that reads the topic: attempts, retry, dead letter, redrive.
It is not stored, so it ends with the message and its record. A key for some topics sees a reader only if it covers
`retry.GROUP` and `dlq.GROUP`, too. Each lookup counts towards the rate of the key."""
_BATCH = """\
An item with a `name` is answered like `PUT /v1/messages/{name}`, one with an `idempotency_key` like a `POST` with that
key: a repeat gets the first one's receipt and `duplicate`, other content the error `name_conflict` or
`idempotency_conflict`. A batch can be repeated after `outcome_unknown` only if all items have one of them."""
_IMPORT_FILE = """\
The file holds messages of one 30-minute window (UTC), sorted by due time: see `docs/guides/delay-files.md`. Without
`sha256`, `size`, `window` and `rows` it is read and validated before the answer. It is imported as a whole or not at
all, and once: a repeat of the same content gets the outcome of the first import."""
_LISTED = (
    Parameter("state", "In this state.", {"type": "string", "enum": list(imports.STATES)}),
    Parameter("below", "Whose path has this prefix.", {"type": "string"}),
    Parameter(
        "limit",
        "The most files to list, all by default; 0 returns only their number, which is fast for `pending`.",
        {"type": "integer", "minimum": 0, "maximum": imports.MAX_LISTED},
    ),
    Parameter(
        "after",
        "Read a page of `limit` (1,000) after this id, the last one of the previous page; empty for the first page. "
        "`count` is its number of files. An empty page is the end.",
        {"type": "string"},
    ),
)
_IMPORT_FILES = """\
Up to 20,000 files, each with all fields. All are checked first, and one invalid file (`file`, from 0) refuses all. Then
all are in the log, or none ever is; errors inside a file are in its own state."""
_IDS = (
    Parameter("first", "The first row.", {"type": "integer", "minimum": 0, "default": 0}),
    Parameter(
        "max", "The most ids to return.",
        {"type": "integer", "minimum": 1, "maximum": imports.MAX_IDS, "default": imports.MAX_IDS},
    ),
)  # fmt: skip
_READY = """\
If it is not ready, the problem has the members `reason` and `shards`, the latter in the form described for 200. It
reveals no topics and addresses; `/v1/cluster` and the log have details."""
_FRAMES = """\
With `Connection: Upgrade` and `Upgrade: duemq-frames/1`: see `docs/reference/frames.md`. Each request needs the scope
of its endpoint."""
_METRICS = """\
It names topics. With `http.open_metrics = true` it needs no key."""
_STATE = ResponseSpec("The message.", schemas.MessageState)
_MOVED = ResponseSpec("The current state of the message.", schemas.MessageState)
_PENDING = ResponseSpec(
    "The answer is not known yet. It will be one of the others: try again later.", schemas.Pending,
    {"Location": "Where to look."},
)  # fmt: skip
_EVENTS = {JSON: schemas.Records, "text/event-stream": _TEXT, "application/x-ndjson": _TEXT}


@cache
def _document() -> bytes:
    return orjson.dumps(describe(ENDPOINTS))


async def openapi(service: Service, request: Request) -> Response:
    return Response(_document(), media_type=JSON)


ENDPOINTS = (
    Endpoint(
        "POST", "/v1/messages", send.post_message, "Schedule a message", "messages",
        {
            201: ResponseSpec("Accepted and durable.", schemas.Receipt),
            200: ResponseSpec("A repeat of its Idempotency-Key: the first one's receipt.", schemas.Receipt),
        },
        (*_MESSAGE, "idempotency_conflict"), (_IDEMPOTENCY_KEY,), schemas.Message, raw_body=True,
        examples=_MESSAGE_EXAMPLES, notes=_RAW,
        scope=Scope.SEND,
    ),
    Endpoint(
        "GET", "/v1/topics/{topic}/records", topics.get_records, "Read a topic, or stream it", "topics",
        {200: ResponseSpec("Records and the cursor after them, or a stream if Accept names its type.", _EVENTS)},
        ("bad_topic", "bad_query", "bad_cursor", "forbidden", "not_supported", *_DOWN), _RECORDS,
        notes="In a stream of events each event's data is one record and its id the cursor after it; in one of lines "
        "each line is a page, or empty as a sign of life. max and wait do not apply.",
        scope=Scope.READ,
    ),
    Endpoint(
        "POST", "/v1/messages:batch", batch.post_batch, "Schedule many messages", "messages",
        {200: ResponseSpec("A receipt or an error for each, in order.", schemas.BatchResult)},
        ("bad_json", "bad_field", "unknown_field", "bad_header", "batch_too_large", _CLOCK, *_DOWN), (), schemas.Batch,
        examples={"two": {"messages": [{"topic": "orders", "payload": "a", "deliver_after": "1h"},
                                       {"topic": "orders", "payload": "b", "deliver_at": 1795255200000}]},
                  "under names": {"messages": [
                      {"name": "order-17", "topic": "orders", "payload": "a", "deliver_after": "1h"},
                      {"idempotency_key": "8e0b2f", "topic": "orders", "payload": "b", "deliver_after": "1h"}]}},
        notes=_BATCH,
        scope=Scope.SEND,
    ),
    Endpoint(
        "DELETE", "/v1/messages/{id}", change.delete_message, "Cancel a message", "messages",
        {200: ResponseSpec("It will not be delivered. A repeat gets the same.", schemas.Cancelled), 202: _PENDING},
        ("unknown_message", "already_delivered", "already_dead", *_DOWN),
        scope=Scope.CANCEL,
    ),
    Endpoint(
        "GET", "/v1/messages/{id}", find.get_message, "Look a message up", "messages", {200: _STATE},
        ("unknown_message", *_DOWN),
        scope=Scope.READ,
    ),
    Endpoint(
        "GET", "/v1/messages/{id}/story", story.get_story, "Show the story of a message after its delivery", "messages",
        {200: ResponseSpec("Its story.", story_shapes.Story)}, ("unknown_message", *_DOWN),
        notes=_STORY, scope=Scope.READ,
    ),
    Endpoint(
        "PUT", "/v1/messages/{id}", send.put_message, "Schedule a message under a name of your own", "messages",
        {
            201: ResponseSpec("Accepted and durable.", schemas.Receipt),
            200: ResponseSpec("The same message exists under this name.", schemas.Receipt),
        },
        (*_MESSAGE, "name_taken", "name_conflict"), (_IF_NONE_MATCH,), schemas.Message, raw_body=True,
        examples=_MESSAGE_EXAMPLES, notes=_RAW,
        scope=Scope.SEND,
    ),
    Endpoint(
        "PATCH", "/v1/messages/{id}", change.patch_message, "Move a message to another time", "messages",
        {200: _MOVED, 202: _PENDING},
        (*_CHANGE, *_WHEN, "bad_field", "unknown_field", "bad_json", "payload_too_large", "not_supported"), (),
        schemas.When, examples={"to later": {"deliver_after": "2h"}},
        scope=Scope.CANCEL,
    ),
    Endpoint(
        "POST", "/v1/messages/{id}:deliver-now", change.deliver_now, "Deliver a message at once", "messages",
        {200: _MOVED, 202: _PENDING}, (*_CHANGE, "bad_time"),
        scope=Scope.CANCEL,
    ),
    Endpoint(
        "POST", "/v1/messages:cancel", change.cancel_many, "Cancel many messages, by id or by filter", "messages",
        {200: ResponseSpec("The outcome of each.", schemas.CancelReport)},
        ("bad_json", "bad_field", "unknown_field", "bad_topic", "bad_time", "naive_time", "batch_too_large", *_DOWN),
        (), schemas.CancelMany,
        examples={"by id or name": {"ids": ["order-17"]},
                  "by filter": {"filter": {"topic": "orders", "label": "reminder"}}},
        scope=Scope.CANCEL,
    ),
    Endpoint(
        "POST", "/v1/messages:move", change.move_many, "Move many messages, each to its own time", "messages",
        {200: ResponseSpec("The outcome of each, in order.", schemas.MoveReport)},
        ("bad_json", "bad_field", "unknown_field", "batch_too_large", _CLOCK, *_DOWN), (), schemas.MoveMany,
        examples={"two": {"moves": [{"id": "order-17", "deliver_at": 1795255200000},
                                    {"id": "order-18", "deliver_after": "2h"}]}},
        scope=Scope.CANCEL,
    ),
    Endpoint(
        "GET", "/v1/messages", find.list_messages, "List messages, soonest or newest first", "messages",
        {200: ResponseSpec(
            "A page, without payloads. One with a cursor may be shorter than the limit.", schemas.MessageList)},
        (*_LIST, "not_indexed"), (*_FILTERS, _STATUS, _ORDER, *_SEARCH), notes=_KEY_INDEX,
        scope=Scope.READ,
    ),
    Endpoint(
        "GET", "/v1/topics", topics.list_topics, "List topics", "topics",
        {200: ResponseSpec("All topics.", schemas.TopicList)}, _DOWN,
        scope=Scope.READ,
    ),
    Endpoint(
        "GET", "/v1/topics/{topic}", topics.get_topic, "Look a topic up", "topics",
        {200: ResponseSpec("The topic.", schemas.TopicDetails)}, ("bad_topic", "unknown_topic", "forbidden", *_DOWN),
        scope=Scope.READ,
    ),
    Endpoint(
        "GET", "/v1/topics/{topic}/consumers/{consumer}", topics.get_consumer_cursor,
        "Get a consumer's cursor", "topics",
        {200: ResponseSpec("Its cursor.", schemas.Place), 204: ResponseSpec("None: it begins at the start.")},
        ("bad_topic", "bad_field", "forbidden", *_DOWN),
        scope=Scope.READ,
    ),
    Endpoint(
        "PUT", "/v1/topics/{topic}/consumers/{consumer}", topics.put_consumer_cursor,
        "Store a consumer's cursor", "topics",
        {204: ResponseSpec("Stored.")},
        ("bad_topic", "bad_field", "unknown_field", "bad_json", "bad_cursor", "payload_too_large", "forbidden",
         "not_supported", "consumer_in_use", "too_many_consumers", *_DOWN),
        (_LAST_CURSOR,), schemas.Place, examples={"a cursor": {"cursor": "AQAAAAAAAAAAAAE"}},
        audited=True, scope=Scope.CONSUME,
    ),
    Endpoint(
        "DELETE", "/v1/topics/{topic}/consumers/{consumer}", topics.delete_consumer_cursor,
        "Delete a consumer's cursor", "topics",
        {204: ResponseSpec("It has none now.")}, ("bad_topic", "bad_field", "forbidden", *_DOWN),
        audited=True, scope=Scope.CONSUME,
    ),
    Endpoint(
        "GET", "/v1/dlq", find.list_dead_letters, "List the dead letters", "dead letters",
        {200: ResponseSpec("A page.", schemas.MessageList)}, _LIST, _FILTERS,
        scope=Scope.READ,
    ),
    Endpoint(
        "POST", "/v1/dlq/{id}:redrive", change.redrive, "Deliver a dead letter again", "dead letters",
        {200: _MOVED, 202: _PENDING},
        (*_CHANGE, "bad_field", "bad_topic", "unknown_topic", "redrives_exhausted", "already_purged"),
        (Parameter("topic", "To this topic instead of the original one.", _TEXT),),
        scope=Scope.OPERATE,
    ),
    Endpoint(
        "POST", "/v1/dlq/{id}:purge", change.purge, "Purge a dead letter for good", "dead letters",
        {200: _MOVED, 202: _PENDING}, (*_CHANGE, "bad_field", "already_purged"),
        scope=Scope.OPERATE,
    ),
    Endpoint(
        "POST", "/v1/imports", imports.post_import, "Submit a file of messages", "imports",
        {
            202: ResponseSpec(
                "It is in the log. Each node imports it; then its messages are scheduled.", schemas.FileImport
            ),
            200: ResponseSpec("A file with this content was imported before: its state.", schemas.FileImport),
        },
        ("bad_json", "bad_field", "unknown_field", "forbidden", "bad_delay_file", "past_due", "delay_too_long",
         "payload_too_large", *_DOWN),
        (), schemas.ImportCommand, notes=_IMPORT_FILE,
        examples={"a file": {"path": "/shared/orders-2026-12-24T1800.parquet"}},
        scope=Scope.SEND,
    ),
    Endpoint(
        "POST", "/v1/imports:batch", imports.post_imports, "Submit many files, all or none", "imports",
        {
            202: ResponseSpec("All are in the log, and each node imports them.", schemas.ImportList),
            200: ResponseSpec("All were submitted before: the outcome of each, in order.", schemas.ImportList),
        },
        ("bad_json", "bad_field", "unknown_field", "forbidden", "past_due", "delay_too_long", "batch_too_large",
         *_DOWN),
        (), schemas.ImportManyRequest, notes=_IMPORT_FILES,
        examples={"a file": {"files": [{"path": "/shared/a.parquet", "sha256": "0" * 64, "size": 812345,
                                        "window": 1830297600000, "rows": 10000}]}},
        scope=Scope.SEND,
    ),
    Endpoint(
        "GET", "/v1/imports", imports.list_imports, "List submitted files", "imports",
        {200: ResponseSpec("All that are not forgotten, by shard, oldest first.", schemas.ImportPage)},
        ("bad_query", *_DOWN), _LISTED,
        scope=Scope.READ,
    ),
    Endpoint(
        "GET", "/v1/imports/{id}", imports.get_import, "Get the state of an import", "imports",
        {200: ResponseSpec("Its state.", schemas.FileImport)}, ("unknown_import", *_DOWN),
        scope=Scope.READ,
    ),
    Endpoint(
        "GET", "/v1/imports/{id}/ids", imports.get_ids, "The ids of a file's messages", "imports",
        {200: ResponseSpec("32 characters per row, without separators; empty after the last row.",
                     {"application/octet-stream": {"type": "string"}})},
        ("unknown_import", "no_ids", "bad_query", *_DOWN), _IDS,
        scope=Scope.READ,
    ),
    Endpoint(
        "GET", "/v1/cluster", probes.cluster, "Nodes, shards and lag", "service",
        {200: ResponseSpec("The cluster.", schemas.Cluster)},
        scope=Scope.READ,
    ),
    Endpoint(
        "GET", "/v1/limits", service.limits, "What this server accepts", "service",
        {200: ResponseSpec("The limits, to check a message before it is sent.", schemas.Limits)},
        scope=Scope.READ,
    ),
    Endpoint(
        "GET", "/v1/frames", service.frames, "Send many requests on one connection", "service",
        {101: ResponseSpec("The connection speaks frames from now on.", None, {"Upgrade": "`duemq-frames/1`"})},
        ("upgrade_required",), notes=_FRAMES, scope=None,
    ),
    Endpoint(
        "POST", "/v1/cluster/nodes/{node}:drain", service.drain_node, "Make a node hand over its shards", "service",
        {
            202: ResponseSpec("Requested. It does so shard by shard: see the cluster.", schemas.Drained),
            200: ResponseSpec("It is master of no shard.", schemas.Drained),
        },
        ("unknown_node", "not_supported", "unavailable"),
        scope=Scope.OPERATE,
    ),
    Endpoint(
        "POST", "/v1/cluster/nodes/{node}:resume", service.resume_node, "Give a drained node shards again", "service",
        {200: ResponseSpec("It does.", schemas.Drained)}, ("unknown_node", "not_supported", "unavailable"),
        scope=Scope.OPERATE,
    ),
    *ADMIN_ENDPOINTS,
    *DESTINATION_ENDPOINTS,
    *GROUP_ENDPOINTS,
    Endpoint(
        "GET", "/", service.root, "Where the console and this document are", "service",
        {
            200: ResponseSpec("Their paths.", schemas.Root),
            303: ResponseSpec("To the console, for `Accept: text/html`.", headers={"Location": "`console/`."}),
        },
        scope=None,
    ),
    Endpoint(
        "GET", "/livez", probes.livez, "Whether the process works; if not, a restart helps", "service",
        {200: ResponseSpec("It does.", schemas.State)}, ("stuck",),
        scope=None,
    ),
    Endpoint(
        "GET", "/healthz", probes.healthz, "The same as /livez", "service",
        {200: ResponseSpec("It does.", schemas.State)}, ("stuck",),
        scope=None,
    ),
    Endpoint(
        "GET", "/readyz", service.readyz, "Whether messages are accepted and delivered", "service",
        {200: ResponseSpec("They are.", schemas.State)}, ("unavailable", "closing"), notes=_READY,
        scope=None,
    ),
    Endpoint(
        "GET", "/metrics", probes.metrics, "Metrics for Prometheus", "service",
        {200: ResponseSpec("The text format.", {"text/plain": _TEXT})}, notes=_METRICS, all_topics=True,
        scope=Scope.READ,
    ),
    Endpoint(
        "GET", "/openapi.json", openapi, "This document", "service",
        {200: ResponseSpec("OpenAPI 3.1.", {JSON: {"type": "object"}})},
        scope=None,
    ),
)  # fmt: skip
