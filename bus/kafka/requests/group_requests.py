"""A request that aiokafka lacks (KIP-848): describes a group with the newer protocol, which Kafka's Java and C clients
use with `group.protocol=consumer`. The older request reports such a group as dead."""

from __future__ import annotations

from typing import Any, ClassVar

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

_TEXT = CompactString("utf-8")
_TAGS = ("tags", TaggedFields)
_PARTITIONS = CompactArray(
    ("topic_id_high", Int64), ("topic_id_low", Int64), ("topic", _TEXT), ("partitions", CompactArray(Int32)), _TAGS
)
_ASSIGNMENT = Schema(("topics", _PARTITIONS), _TAGS)


class ConsumerGroupDescribeResponse(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY, API_VERSION = 69, 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "groups",
            CompactArray(
                ("error_code", Int16),
                ("error_message", _TEXT),
                ("group", _TEXT),
                ("state", _TEXT),
                ("epoch", Int32),
                ("assignment_epoch", Int32),
                ("assignor", _TEXT),
                (
                    "members",
                    CompactArray(
                        ("member", _TEXT),
                        ("instance", _TEXT),
                        ("rack", _TEXT),
                        ("epoch", Int32),
                        ("client", _TEXT),
                        ("host", _TEXT),
                        ("topics", CompactArray(_TEXT)),
                        ("pattern", _TEXT),
                        ("assignment", _ASSIGNMENT),
                        ("target", _ASSIGNMENT),
                        _TAGS,
                    ),
                ),
                ("authorized_operations", Int32),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class ConsumerGroupDescribeRequest_v0(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY, API_VERSION = 69, 0
    RESPONSE_TYPE = ConsumerGroupDescribeResponse
    SCHEMA = Schema(("groups", CompactArray(_TEXT)), ("include_authorized_operations", Boolean), _TAGS)


class ConsumerGroupDescribeRequest(Request[ConsumerGroupDescribeRequest_v0]):  # type: ignore[misc]
    """A request to the group's coordinator. With brokers before 4.0 it fails with IncompatibleBrokerVersion."""

    API_KEY: ClassVar[int] = 69

    def __init__(self, group: str) -> None:
        self._group = group

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class([self._group], False, {})
