"""Requests that aiokafka lacks (KIP-664): states and producers of transactions, and producers of partitions."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, ClassVar

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields

_TEXT = CompactString("utf-8")
_TAGS = ("tags", TaggedFields)


class DescribeTransactionsResponse(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY, API_VERSION = 65, 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "transactions",
            CompactArray(
                ("error_code", Int16),
                ("transactional_id", _TEXT),
                ("state", _TEXT),
                ("timeout_ms", Int32),
                ("start_time_ms", Int64),
                ("producer_id", Int64),
                ("producer_epoch", Int16),
                ("topics", CompactArray(("topic", _TEXT), ("partitions", CompactArray(Int32)), _TAGS)),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class DescribeTransactionsRequest_v0(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY, API_VERSION = 65, 0
    RESPONSE_TYPE = DescribeTransactionsResponse
    SCHEMA = Schema(("transactional_ids", CompactArray(_TEXT)), _TAGS)


class DescribeTransactionsRequest(Request[DescribeTransactionsRequest_v0]):  # type: ignore[misc]
    """A request to the coordinator of these transactional ids."""

    API_KEY: ClassVar[int] = 65

    def __init__(self, transactional_ids: Iterable[str]) -> None:
        self._ids = list(transactional_ids)

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class(self._ids, {})


class DescribeProducersResponse(Response):  # type: ignore[misc]
    API_KEY, API_VERSION = 61, 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("name", _TEXT),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("error_code", Int16),
                        ("error_message", _TEXT),
                        (
                            "producers",
                            CompactArray(
                                ("producer_id", Int64),
                                ("producer_epoch", Int32),
                                ("last_sequence", Int32),
                                ("last_timestamp", Int64),
                                ("coordinator_epoch", Int32),
                                ("transaction_start", Int64),
                                _TAGS,
                            ),
                        ),
                        _TAGS,
                    ),
                ),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class DescribeProducersRequest_v0(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY, API_VERSION = 61, 0
    RESPONSE_TYPE = DescribeProducersResponse
    SCHEMA = Schema(("topics", CompactArray(("name", _TEXT), ("partitions", CompactArray(Int32)), _TAGS)), _TAGS)


class DescribeProducersRequest(Request[DescribeProducersRequest_v0]):  # type: ignore[misc]
    """A request to the leader of these partitions, as (topic, partitions)."""

    API_KEY: ClassVar[int] = 61

    def __init__(self, topics: Iterable[tuple[str, list[int]]]) -> None:
        self._topics: list[Any] = [(topic, partitions, {}) for topic, partitions in topics]

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class(self._topics, {})


class ListTransactionsResponse(Response):  # type: ignore[misc]
    API_KEY, API_VERSION = 66, 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("unknown_states", CompactArray(_TEXT)),
        (
            "transactions",
            CompactArray(("transactional_id", _TEXT), ("producer_id", Int64), ("state", _TEXT), _TAGS),
        ),
        _TAGS,
    )


class ListTransactionsRequest_v0(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY, API_VERSION = 66, 0
    RESPONSE_TYPE = ListTransactionsResponse
    SCHEMA = Schema(("states", CompactArray(_TEXT)), ("producer_ids", CompactArray(Int64)), _TAGS)


class ListTransactionsRequest(Request[ListTransactionsRequest_v0]):  # type: ignore[misc]
    """A request to any broker, for the transactions of these producers that it coordinates."""

    API_KEY: ClassVar[int] = 66

    def __init__(self, producer_ids: Collection[int]) -> None:
        self._producer_ids = list(producer_ids)

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class([], self._producer_ids, {})
