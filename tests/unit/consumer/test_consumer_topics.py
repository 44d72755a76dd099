"""The topics of a consumer are prepared: what is missing is made, what is there is left alone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError

from duemq.client.consumer.kafka import topics as topics_module
from duemq.client.consumer.kafka.topics import prepare
from duemq.client.consumer.options import ConsumerOptions
from duemq.model.errors import Rejected, Unavailable
from tests.support.servers.aiokafka_parts import makes_topics, resources_of, topics_of


class Admin:
    """Topics with their partitions or an error, limits, and what was asked for."""

    topics: dict[str, int | None] = {}  # noqa: RUF012
    limits: dict[str, int] = {}  # noqa: RUF012
    start_errors: list[Exception] = []  # noqa: RUF012
    make_errors: list[int] = []  # noqa: RUF012
    alter_error = 0
    made: list[Any] = []  # noqa: RUF012
    altered: list[Any] = []  # noqa: RUF012

    def __init__(self, **_: object) -> None:
        self._client: Any = self

    async def send(self, *_: object, **__: object) -> None: ...
    async def start(self) -> None:
        if self.start_errors:
            raise self.start_errors.pop(0)

    async def close(self) -> None: ...
    async def force_metadata_update(self) -> None: ...

    async def _send_request(self, request: Any) -> Any:
        if hasattr(request, "_resources"):
            self.altered.append(resources_of(request))
            return SimpleNamespace(responses=[(self.alter_error, "no", 2, "")])
        assert makes_topics(request) is False
        found = []
        for topic in topics_of(request):
            count = self.topics.get(topic, 0)
            code = 29 if count is None else 0 if count else 3
            found.append((code, topic, False, [()] * (count or 0)))
        return SimpleNamespace(topics=found)

    async def describe_configs(self, resources: Any) -> list[Any]:
        return [
            SimpleNamespace(resources=[
                (0, "", 2, each.name, [("max.message.bytes", str(self.limits[each.name]), False)])
                if each.name in self.limits else (29, "not allowed", 2, each.name, [])
                for each in resources
            ])
        ]  # fmt: skip

    async def create_topics(self, new: list[Any]) -> Any:
        code = self.make_errors.pop(0) if self.make_errors else 0
        if not code:
            self.made.append({each.name: (each.num_partitions, each.topic_configs) for each in new})
        return SimpleNamespace(topic_errors=[(each.name, code, "why") for each in new])


LIMIT = "max.message.bytes"
ALL = {"duemq.buffer": 8, "t": 1, "retry.g": 4, "dlq.g": 1}
LIMITS = {"duemq.buffer": 100, "retry.g": 100, "dlq.g": 200}


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> type[Admin]:
    monkeypatch.setattr(topics_module, "new_admin", Admin)
    monkeypatch.setattr(topics_module, "_AGAIN_S", (0.0, 0.0))
    monkeypatch.setattr(ConsumerOptions, "kafka_of", lambda *_: {})
    for name, value in (
        ("topics", dict(ALL)), ("limits", dict(LIMITS)), ("make_errors", []), ("made", []), ("altered", []),
        ("alter_error", 0), ("start_errors", []),
    ):  # fmt: skip
        monkeypatch.setattr(Admin, name, value)
    return Admin


def prepared() -> int:
    return asyncio.run(prepare("g", "nowhere:1", ConsumerOptions(), ["t"]))


def test_topics_that_are_there_are_left_alone(admin: type[Admin]) -> None:
    """A user who may not make topics needs no right to."""
    assert prepared() == 8 and not admin.made and not admin.altered


def test_brokers_that_are_away_for_a_moment_stop_no_start(admin: type[Admin], caplog: pytest.LogCaptureFixture) -> None:
    admin.start_errors = [KafkaConnectionError("nowhere"), KafkaConnectionError("nowhere")]
    assert prepared() == 8
    assert caplog.text.count("consumer cannot start yet, and tries again: KafkaConnectionError('nowhere')") == 2
    admin.start_errors = [KafkaConnectionError("nowhere")] * 3
    with pytest.raises(KafkaConnectionError):
        prepared()


def test_only_what_is_missing_is_made_and_takes_what_the_buffer_takes(admin: type[Admin]) -> None:
    del admin.topics["dlq.g"]
    admin.make_errors = [41, 7]  # another controller, too late
    assert prepared() == 8
    assert admin.made == [{"dlq.g": (1, {"max.message.bytes": str(100 + (64 << 10))})}]


def test_another_member_may_have_made_it_this_moment(admin: type[Admin]) -> None:
    del admin.topics["retry.g"]
    admin.make_errors = [36]
    assert prepared() == 8


@pytest.mark.parametrize(
    ("codes", "error", "named"),
    [([29], Rejected, "retry.g"), ([41] * 9, Unavailable, "retry.g"), ([38], Unavailable, "retry.g")],
)
def test_what_cannot_be_made_is_named(codes: list[int], error: type[Exception], named: str, admin: type[Admin]) -> None:
    del admin.topics["retry.g"]
    admin.make_errors = codes
    with pytest.raises(error, match=named):
        prepared()


def test_a_topic_that_may_not_be_seen_is_named(admin: type[Admin]) -> None:
    admin.topics["dlq.g"] = None  # the consumer itself never uses it
    assert prepared() == 8
    admin.topics["t"] = None
    with pytest.raises(Rejected, match="see topic t") as refused:
        prepared()
    assert refused.value.code == "not_authorized"


def test_a_limit_below_the_buffers_is_raised_or_named(admin: type[Admin], caplog: pytest.LogCaptureFixture) -> None:
    admin.limits["retry.g"] = 99
    prepared()
    wanted = str(100 + (64 << 10))
    assert admin.altered == [[(2, "retry.g", [("max.message.bytes", 0, wanted)])]] and not caplog.text
    admin.alter_error = 29
    prepared()
    told = f"topic retry.g accepts messages of 99 bytes, so larger ones cannot be retried: set its {LIMIT} to {wanted}"
    assert told in caplog.text


def test_limits_that_may_not_be_seen_stop_nobody(admin: type[Admin], caplog: pytest.LogCaptureFixture) -> None:
    del admin.limits["duemq.buffer"], admin.topics["dlq.g"]
    assert prepared() == 8
    assert admin.made == [{"dlq.g": (1, {})}] and "dlq.g" in caplog.text
