"""A request that aiokafka lacks (KIP-339): changes some settings of a topic and leaves the others as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Boolean, Int8, Int16, Int32, Schema, String

_TEXT = String("utf-8")
_TOPIC, _SET = 2, 0


class IncrementalAlterConfigsResponse(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY, API_VERSION = 44, 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "responses",
            Array(("error_code", Int16), ("error_message", _TEXT), ("resource_type", Int8), ("resource_name", _TEXT)),
        ),
    )


class IncrementalAlterConfigsRequest_v0(RequestStruct):  # type: ignore[misc]
    API_KEY, API_VERSION = 44, 0
    RESPONSE_TYPE = IncrementalAlterConfigsResponse
    SCHEMA = Schema(
        (
            "resources",
            Array(
                ("resource_type", Int8),
                ("resource_name", _TEXT),
                ("configs", Array(("name", _TEXT), ("config_operation", Int8), ("value", _TEXT))),
            ),
        ),
        ("validate_only", Boolean),
    )


class IncrementalAlterConfigsRequest(Request[IncrementalAlterConfigsRequest_v0]):  # type: ignore[misc]
    """A request to any broker, with the settings to change, by topic."""

    API_KEY: ClassVar[int] = 44

    def __init__(self, settings: Mapping[str, Mapping[str, str]]) -> None:
        self._resources = [
            (_TOPIC, topic, [(name, _SET, value) for name, value in values.items()])
            for topic, values in settings.items()
        ]

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class(self._resources, False)
