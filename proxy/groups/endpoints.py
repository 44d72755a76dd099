"""The endpoints of groups: part of the one table (`proxy/table.py`)."""

from __future__ import annotations

from typing import Final

from duemq.model.callers.access import Scope
from duemq.proxy.api.endpoint import Endpoint, Handler, Parameter, ResponseSpec
from duemq.proxy.api.schemas import Closed
from duemq.proxy.groups import group_shapes as shapes
from duemq.proxy.groups import handlers

_PATH: Final = "/v1/topics/{topic}/groups/{group}"
_ALWAYS: Final = ("bad_topic", "bad_field", "not_supported", "unavailable")
_JSON: Final = ("bad_json", "unknown_field", "payload_too_large")
_MADE: Final = ("too_many_groups", "conflict", "disk_full")
_DURATION: Final = {"type": "string", "examples": ["20s", "500ms"]}
_STATE: Final = ResponseSpec("The group.", shapes.Group)
_RECEIVE: Final = (
    Parameter(
        "max", "The most messages.",
        {"type": "integer", "minimum": 1, "maximum": handlers.MAX_RECEIVED, "default": 1},
    ),
    Parameter("wait", "How long to wait for the first one.", _DURATION),
    Parameter("visibility", "How long the messages are hidden from others: the group's, if absent.", _DURATION),
)  # fmt: skip
_NOTES: Final = """\
The first receive creates the group, which starts with the oldest kept record. The messages are leased: unless they are
acknowledged, each comes again when its lease ends, with `attempt` one higher, and becomes a dead letter after the last
attempt. An answer has about 1 MiB of messages, or one larger message."""


def _on_receipts(
    verb: str, handler: Handler, summary: str, body: type[Closed], example: dict[str, object], notes: str = ""
) -> Endpoint:
    answer = ResponseSpec(
        "A result for each of `receipts`, in order; for `receipt` its result alone, or the error.", shapes.LeaseAnswer
    )
    return Endpoint(
        "POST", f"{_PATH}:{verb}", handler, summary, "groups", {200: answer},
        (*_ALWAYS, *_JSON, "unknown_group", "lease_ended", "batch_too_large", "bad_time", "negative_delay",
         "delay_too_long", "disk_full"),
        (), body, examples={"one message": {"receipt": "0f2a9c81d3e4-1b"} | example,
                            "two messages": {"receipts": ["0f2a9c81d3e4-1b", "0f2a9c81d3e4-1c"]} | example},
        notes=notes, scope=Scope.CONSUME,
    )  # fmt: skip


GROUP_ENDPOINTS: Final = (
    Endpoint(
        "POST", f"{_PATH}:receive", handlers.receive, "Receive messages", "groups",
        {200: ResponseSpec("Leased messages; none after `wait`.", shapes.LeasedRecords)},
        (*_ALWAYS, *_MADE, "too_many_leases"), _RECEIVE, notes=_NOTES, audited=True, scope=Scope.CONSUME,
    ),
    _on_receipts(
        "ack", handlers.ack, "Acknowledge messages", shapes.AckRequest, {},
        "They never come again, once this is answered. A repeat gets the same answer.",
    ),
    _on_receipts("nack", handlers.nack, "Send messages back", shapes.NackRequest, {"delay": "10s"}),
    _on_receipts("extend", handlers.extend, "Extend leases", shapes.ExtendRequest, {"visibility": "1m"}),
    Endpoint(
        "GET", "/v1/topics/{topic}/groups", handlers.list_groups, "List the groups of a topic", "groups",
        {200: ResponseSpec("All, by name.", shapes.GroupList)}, _ALWAYS, scope=Scope.READ,
    ),
    Endpoint(
        "GET", _PATH, handlers.get_group, "Look a group up", "groups", {200: _STATE}, (*_ALWAYS, "unknown_group"),
        scope=Scope.READ,
    ),
    Endpoint(
        "PUT", _PATH, handlers.put_group, "Create a group, or change it", "groups",
        {201: ResponseSpec("Created.", shapes.Group), 200: ResponseSpec("It exists, and is so now.", shapes.Group)},
        (*_ALWAYS, *_JSON, *_MADE), (), shapes.GroupRequest,
        examples={"five attempts": {"visibility": "2m", "attempts": 5}},
        notes="A change ends the leases of the group: its messages come again.", audited=True, scope=Scope.CONSUME,
    ),
    Endpoint(
        "DELETE", _PATH, handlers.delete_group, "Remove a group", "groups",
        {204: ResponseSpec("Removed. Its retries and dead letters stay in their topics.")},
        (*_ALWAYS, "unknown_group", "conflict", "disk_full"), audited=True, scope=Scope.CONSUME,
    ),
)  # fmt: skip
