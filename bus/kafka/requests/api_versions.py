"""A request version that aiokafka lacks (KIP-584): a broker's API versions, and features of its cluster."""

from __future__ import annotations

from io import BytesIO
from typing import Any, ClassVar

from aiokafka.protocol.api import Request, RequestStruct, Response, ResponseHeader_v0
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Schema, TaggedFields

_TEXT = CompactString("utf-8")
_TAGS = ("tags", TaggedFields)
_FINALIZED_FEATURES = 2  # the tag of this field
_FEATURES = CompactArray(("name", _TEXT), ("max_level", Int16), ("min_level", Int16), _TAGS)


class ApiVersionsResponse(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY, API_VERSION = 18, 4
    SCHEMA = Schema(
        ("error_code", Int16),
        ("apis", CompactArray(("api_key", Int16), ("min_version", Int16), ("max_version", Int16), _TAGS)),
        ("throttle_time_ms", Int32),
        _TAGS,
    )


class ApiVersionsRequest_v4(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY, API_VERSION = 18, 4
    RESPONSE_TYPE = ApiVersionsResponse
    SCHEMA = Schema(("client_software_name", _TEXT), ("client_software_version", _TEXT), _TAGS)

    def parse_response_header(self, read_buffer: BytesIO | bytes) -> ResponseHeader_v0:
        """Parse a header without tags: it has none in any version, because a client may not know the version of the
        answer."""
        return ResponseHeader_v0.decode(read_buffer)


class ApiVersionsRequest(Request[ApiVersionsRequest_v4]):  # type: ignore[misc]
    """A request that any broker since Kafka 3.9 accepts."""

    API_KEY: ClassVar[int] = 18

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class("duemq", "1", {})


def finalized_level(answer: Any, feature: str) -> int:
    """The level of a feature that all brokers of the cluster use; 0 if the cluster does not have the feature."""
    levels = answer.tags.get(_FINALIZED_FEATURES)
    features = _FEATURES.decode(BytesIO(levels)) if levels else ()
    return next((level for name, level, *_ in features if name == feature), 0)


def offers(answer: Any, api_key: int, version: int) -> bool:
    """Whether the broker accepts this version of a request."""
    return any(key == api_key and low <= version <= high for key, low, high, _ in answer.apis)
