"""Transaction requests in versions that aiokafka lacks (KIP-890), and their errors.

With these versions, a Produce request adds its partitions to the transaction, and the answer to EndTxn contains the
producer id and epoch for the next transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from aiokafka import errors
from aiokafka.errors import KafkaError
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactBytes,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)  # fmt: skip

_PRODUCE, _END, _INIT = 0, 26, 22
VERSIONS = {_PRODUCE: 12, _END: 5, _INIT: 5}  # Produce 13 has topic ids instead of topic names

_TEXT = CompactString("utf-8")
_TAGS = ("tags", TaggedFields)
_ALL_IN_SYNC = -1


class TransactionAbortable(KafkaError):  # type: ignore[misc]
    """The transaction must be aborted."""

    errno, message = 120, "TRANSACTION_ABORTABLE"


class NetworkException(KafkaError):  # type: ignore[misc]
    """A broker lost its connection to another broker while it handled the request."""

    errno, message, retriable = 13, "NETWORK_EXCEPTION", True


class OperationNotAttempted(KafkaError):  # type: ignore[misc]
    """Another part of the request was refused, so no part was carried out."""

    errno, message = 55, "OPERATION_NOT_ATTEMPTED"


class FencedLeaderEpoch(KafkaError):  # type: ignore[misc]
    """The request had an outdated leader epoch: another broker leads the partition by now."""

    errno, message, retriable, invalid_metadata = 74, "FENCED_LEADER_EPOCH", True, True


# Errors that aiokafka lacks, or has under a different number.
_ERRORS: dict[int, type[KafkaError]] = {
    13: NetworkException, 55: OperationNotAttempted, 74: FencedLeaderEpoch, 90: errors.ProducerFenced,
    120: TransactionAbortable,
}  # fmt: skip


def error_of(code: int) -> type[KafkaError]:
    """The exception class for an error code."""
    return _ERRORS.get(code) or errors.for_code(code)


class InitProducerIdResponse(Response):  # type: ignore[misc]
    API_KEY, API_VERSION = _INIT, VERSIONS[_INIT]
    SCHEMA = Schema(
        ("throttle_time_ms", Int32), ("error_code", Int16), ("producer_id", Int64), ("producer_epoch", Int16), _TAGS
    )


class InitProducerIdRequest_v5(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY, API_VERSION = _INIT, VERSIONS[_INIT]
    RESPONSE_TYPE = InitProducerIdResponse
    SCHEMA = Schema(
        ("transactional_id", _TEXT),
        ("transaction_timeout_ms", Int32),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        _TAGS,
    )


class InitProducerIdRequest(Request[InitProducerIdRequest_v5]):  # type: ignore[misc]
    """A request to the coordinator for an epoch that fences all earlier ones."""

    API_KEY: ClassVar[int] = _INIT

    def __init__(self, transactional_id: str, transaction_timeout_ms: int) -> None:
        self._id, self._timeout_ms = transactional_id, transaction_timeout_ms

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class(self._id, self._timeout_ms, -1, -1, {})


class EndTxnResponse(Response):  # type: ignore[misc]
    API_KEY, API_VERSION = _END, VERSIONS[_END]
    SCHEMA = InitProducerIdResponse.SCHEMA


class EndTxnRequest_v5(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY, API_VERSION = _END, VERSIONS[_END]
    RESPONSE_TYPE = EndTxnResponse
    SCHEMA = Schema(
        ("transactional_id", _TEXT), ("producer_id", Int64), ("producer_epoch", Int16), ("committed", Boolean), _TAGS
    )


class EndTxnRequest(Request[EndTxnRequest_v5]):  # type: ignore[misc]
    """A request to the coordinator to end a transaction."""

    API_KEY: ClassVar[int] = _END

    def __init__(self, transactional_id: str, producer_id: int, producer_epoch: int, committed: bool) -> None:
        self._fields = transactional_id, producer_id, producer_epoch, committed

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class(*self._fields, {})


class ProduceResponse(Response):  # type: ignore[misc]
    API_KEY, API_VERSION = _PRODUCE, VERSIONS[_PRODUCE]
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(
                ("topic", _TEXT),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("error_code", Int16),
                        ("offset", Int64),
                        ("timestamp", Int64),
                        ("log_start_offset", Int64),
                        ("record_errors", CompactArray(("index", Int32), ("error_message", _TEXT), _TAGS)),
                        ("error_message", _TEXT),
                        _TAGS,
                    ),
                ),
                _TAGS,
            ),
        ),
        ("throttle_time_ms", Int32),
        _TAGS,
    )


class ProduceRequest_v12(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY, API_VERSION = _PRODUCE, VERSIONS[_PRODUCE]
    RESPONSE_TYPE = ProduceResponse
    SCHEMA = Schema(
        ("transactional_id", _TEXT),
        ("required_acks", Int16),
        ("timeout_ms", Int32),
        (
            "topics",
            CompactArray(
                ("topic", _TEXT),
                ("partitions", CompactArray(("partition", Int32), ("records", CompactBytes), _TAGS)),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class ProduceRequest(Request[ProduceRequest_v12]):  # type: ignore[misc]
    """A request to the leader of these partitions, with one record batch for each, as (topic, [(partition, batch)])."""

    API_KEY: ClassVar[int] = _PRODUCE

    def __init__(
        self, transactional_id: str, timeout_ms: int, topics: Iterable[tuple[str, list[tuple[int, bytes]]]]
    ) -> None:
        self._id, self._timeout_ms = transactional_id, timeout_ms
        self._topics: list[Any] = [
            (topic, [(partition, records, {}) for partition, records in batches], {}) for topic, batches in topics
        ]

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class(self._id, _ALL_IN_SYNC, self._timeout_ms, self._topics, {})
