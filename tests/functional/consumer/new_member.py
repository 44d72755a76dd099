"""A member of a group by Kafka's newer protocol (KIP-848), which aiokafka does not speak: it joins, and no more."""

from __future__ import annotations

from typing import Any, ClassVar

from aiokafka import errors
from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields

_TEXT = CompactString("utf-8")
_TAGS = ("tags", TaggedFields)


class HeartbeatResponse(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY, API_VERSION = 68, 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32), ("error_code", Int16), ("error_message", _TEXT), ("member", _TEXT),
        ("epoch", Int32), ("interval_ms", Int32),
    )  # fmt: skip  # the assignment follows


class HeartbeatRequest_v0(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY, API_VERSION = 68, 0
    RESPONSE_TYPE = HeartbeatResponse
    SCHEMA = Schema(
        ("group", _TEXT),
        ("member", _TEXT),
        ("epoch", Int32),
        ("instance", _TEXT),
        ("rack", _TEXT),
        ("rebalance_timeout_ms", Int32),
        ("topics", CompactArray(_TEXT)),
        ("assignor", _TEXT),
        ("owned", CompactArray(("high", Int64), ("low", Int64), ("partitions", CompactArray(Int32)), _TAGS)),
        _TAGS,
    )


class HeartbeatRequest(Request[HeartbeatRequest_v0]):  # type: ignore[misc]
    API_KEY: ClassVar[int] = 68

    def __init__(self, group: str, topic: str) -> None:
        self._group, self._topic = group, topic

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class(self._group, "", 0, None, None, 60_000, [self._topic], None, [], {})


async def join(client: AIOKafkaClient, group: str, topic: str) -> None:
    """Join it; the coordinator gives up the member when no heartbeat follows for 45 s."""
    while True:
        try:
            node = await client.coordinator_lookup(CoordinationType.GROUP, group)
            answer = await client.send(node, HeartbeatRequest(group, topic))
            if answer.error_code:
                raise errors.for_code(answer.error_code)(answer.error_message)
            return
        except errors.KafkaError as error:
            if not error.retriable:
                raise
