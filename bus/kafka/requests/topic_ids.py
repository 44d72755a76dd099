"""A request version that aiokafka lacks (KIP-516): the ids of topics.

A topic that was deleted and recreated has a different id.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

from aiokafka import errors
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields

_TEXT = CompactString("utf-8")
_TAGS = ("tags", TaggedFields)
_ID = ("topic_id_high", Int64), ("topic_id_low", Int64)
_NUMBERS = CompactArray(Int32)
_64 = (1 << 64) - 1


class MetadataResponse(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY, API_VERSION = 3, 12
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", CompactArray(("node", Int32), ("host", _TEXT), ("port", Int32), ("rack", _TEXT), _TAGS)),
        ("cluster_id", _TEXT),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("topic", _TEXT),
                *_ID,
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", _NUMBERS),
                        ("isr", _NUMBERS),
                        ("offline", _NUMBERS),
                        _TAGS,
                    ),
                ),
                ("authorized_operations", Int32),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class MetadataRequest_v12(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY, API_VERSION = 3, 12
    RESPONSE_TYPE = MetadataResponse
    SCHEMA = Schema(
        ("topics", CompactArray(*_ID, ("topic", _TEXT), _TAGS)),
        ("allow_auto_topic_creation", Boolean),
        ("include_authorized_operations", Boolean),
        _TAGS,
    )


class MetadataRequest(Request[MetadataRequest_v12]):  # type: ignore[misc]
    """A request that any broker since Kafka 3.0 accepts."""

    API_KEY: ClassVar[int] = 3

    def __init__(self, topics: Collection[str]) -> None:
        self._topics: list[Any] = [(0, 0, topic, {}) for topic in topics]

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class(self._topics, False, False, {})


async def topic_ids(client: Any, topics: Collection[str]) -> dict[str, str]:
    """The ids (hex) of the existing topics; empty if the brokers have no ids. `client`: an AIOKafkaClient.

    Raises KafkaError.
    """
    node = client.get_random_node()
    if node is None:
        raise errors.NodeNotReadyError("no broker is known")
    try:
        answer = await client.send(node, MetadataRequest(topics))
    except (errors.IncompatibleBrokerVersion, NotImplementedError):
        return {}
    return {
        topic: f"{high & _64:016x}{low & _64:016x}"
        for code, topic, high, low, *_ in answer.topics
        if not code and (high or low)
    }
