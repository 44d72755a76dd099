"""Which protocol of transactions is used, by what a broker says of its cluster."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest
from aiokafka import errors
from aiokafka.protocol.types import Int16, UnsignedVarInt32

from duemq.bus.kafka.options import KafkaOptions
from duemq.bus.kafka.produce.choice import uses_v2
from duemq.bus.kafka.requests.api_versions import ApiVersionsRequest, ApiVersionsRequest_v4, ApiVersionsResponse
from duemq.model.errors import BadConfig, LogFailed

pytestmark = pytest.mark.anyio

OPTIONS = KafkaOptions("127.0.0.1:1")
ALL = {0: (3, 13), 26: (0, 5), 22: (0, 6)}


def answer(levels: dict[str, int], apis: dict[int, tuple[int, int]] = ALL) -> Any:
    """An answer of version 4, byte by byte as the brokers' message definitions have it."""
    number = UnsignedVarInt32.encode
    body = Int16.encode(0) + number(len(apis) + 1)
    for key, (low, high) in apis.items():
        body += Int16.encode(key) + Int16.encode(low) + Int16.encode(high) + number(0)
    features = number(len(levels) + 1)
    for name, level in levels.items():
        features += number(len(name) + 1) + name.encode() + Int16.encode(level) + Int16.encode(0) + number(0)
    tags = {0: number(1), 1: (7).to_bytes(8, "big"), 2: features}
    body += (
        bytes(4) + number(len(tags)) + b"".join(number(tag) + number(len(part)) + part for tag, part in tags.items())
    )
    return ApiVersionsResponse.decode(BytesIO(body))


class Brokers:
    def __init__(self, says: Any) -> None:
        self._says = says

    async def ask_any(self, request: Any) -> Any:
        assert isinstance(request, ApiVersionsRequest)
        if isinstance(self._says, BaseException):
            raise self._says
        return self._says


async def chosen(says: Any, options: KafkaOptions = OPTIONS) -> bool:
    wire: Any = Brokers(says)
    return await uses_v2(options, wire)


@pytest.mark.parametrize(
    ("levels", "v2"),
    [
        ({"metadata.version": 25, "transaction.version": 2}, True), ({"transaction.version": 3, "x": 1}, True),
        ({"transaction.version": 1}, False), ({"metadata.version": 25}, False), ({}, False),
    ],
)  # fmt: skip
async def test_version_2_is_used_once_the_cluster_has_it_in_use(levels: dict[str, int], v2: bool) -> None:
    assert await chosen(answer(levels)) is v2


@pytest.mark.parametrize("apis", [ALL | {0: (3, 11)}, ALL | {26: (0, 4)}, ALL | {22: (0, 4)}, {}])
async def test_not_without_its_requests(apis: dict[int, tuple[int, int]]) -> None:
    assert not await chosen(answer({"transaction.version": 2}, apis))


async def test_an_operator_may_refuse_it() -> None:
    nobody = AssertionError("asked")
    assert not await chosen(nobody, KafkaOptions("127.0.0.1:1", transactions="v1"))
    with pytest.raises(BadConfig, match=r"kafka\.transactions is one of auto, v1, not 'v3'"):
        KafkaOptions("127.0.0.1:1", transactions="v3")


async def test_old_brokers_do_not_have_it_and_silent_ones_are_no_old_ones() -> None:
    assert not await chosen(NotImplementedError())
    old = LogFailed("Kafka: x")
    old.__cause__ = errors.IncompatibleBrokerVersion()
    assert not await chosen(old)
    silent = LogFailed("Kafka: y")
    silent.__cause__ = errors.KafkaConnectionError()
    with pytest.raises(LogFailed, match="y"):
        await chosen(silent)


def test_the_answer_has_a_header_without_tags() -> None:
    request = ApiVersionsRequest().build(ApiVersionsRequest_v4)
    body = BytesIO((5).to_bytes(4, "big") + b"rest")
    assert request.parse_response_header(body).correlation_id == 5
    assert body.read() == b"rest"
