"""How a client finds the leaders of topics that it has not heard of: at once, and all with one look."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import LeaderNotAvailableError, NotLeaderForPartitionError

from duemq.bus.kafka.options import KafkaOptions
from duemq.bus.kafka.requests import wire as wire_module
from duemq.bus.kafka.requests.wire import Wire
from duemq.model.errors import LogFailed
from tests.support.patience import WITHIN_S

pytestmark = pytest.mark.anyio


class Client:
    """Knows a topic's leader only once it was told of the topic and has looked."""

    def __init__(self) -> None:
        self.looks = 0
        self._asked: set[str] = set()
        self._known: set[str] = set()
        self.cluster = SimpleNamespace(leader_for_partition=lambda where: 1 if where.topic in self._known else None)

    def add_topic(self, topic: str) -> None:
        self._asked.add(topic)

    def force_metadata_update(self) -> Any:
        self.looks += 1
        self._known |= self._asked
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(True)
        return answer


def wire_with(client: Client, monkeypatch: pytest.MonkeyPatch, retry_s: float = 3600.0) -> Wire:
    monkeypatch.setattr(wire_module, "_RETRY_S", retry_s)
    wire = Wire(KafkaOptions(bootstrap="nobody:1").client())
    wire.client = client
    return wire


async def test_all_leaders_are_found_with_one_look_and_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = wire_with(client := Client(), monkeypatch)

    async def group() -> dict[int, list[tuple[str, int]]]:
        return wire.by_leader([("a", 0), ("b", 0), ("c", 1)])

    async with asyncio.timeout(WITHIN_S):
        assert await wire.retry(group) == {1: [("a", 0), ("b", 0), ("c", 1)]}
    assert client.looks == 1


async def test_a_leader_that_stays_away_is_asked_for_with_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = wire_with(client := Client(), monkeypatch)

    async def fail() -> None:
        raise NotLeaderForPartitionError

    task = asyncio.create_task(wire.retry(fail))
    done, _ = await asyncio.wait([task], timeout=0.1)
    assert not done and client.looks == 2
    task.cancel()


async def test_what_no_look_cures_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = wire_with(Client(), monkeypatch)
    monkeypatch.setattr(wire, "_closed", True)

    async def fail() -> None:
        raise LeaderNotAvailableError

    with pytest.raises(LogFailed):
        await wire.retry(fail)
