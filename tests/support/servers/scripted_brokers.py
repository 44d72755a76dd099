"""Brokers with transactions of version 2, as one AIOKafkaClient sees them. Tests script their answers."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from aiokafka.client import ConnectionGroup
from aiokafka.structs import TopicPartition

from duemq.model.messages.record import Partition
from tests.support.servers.aiokafka_parts import topics_of

Answer = int | BaseException | asyncio.Future[Any]
"""An error code, what `send` raises, or what it waits for before the broker acts as it does without a script."""


class Link:
    """A connection."""

    def __init__(self) -> None:
        self.open = True

    def connected(self) -> bool:
        return self.open


class ScriptedBrokers:
    """`leaders`: by partition. `script`: answers by the name of a request, each given once; then all is in order.

    `sent` has the name of each request and its fields. Every record batch is kept in `batches`, by partition.
    """

    def __init__(self, leaders: dict[Partition, int], coordinator: int = 1) -> None:
        self.leaders, self.coordinator = leaders, coordinator
        self.script: defaultdict[str, list[Answer | dict[Partition, int]]] = defaultdict(list)
        self.sent: list[tuple[int, str, Any]] = []
        self.batches: defaultdict[Partition, list[bytes]] = defaultdict(list)
        self.producer = (7, 0)
        self.looked = 0
        self.cluster = SimpleNamespace(
            leader_for_partition=self._leader, partitions_for_topic=self._partitions, brokers=lambda: ()
        )
        self._conns = {(node, ConnectionGroup.DEFAULT): Link() for node in {coordinator, *leaders.values()}}
        self.on_metadata: Any = lambda: None

    def names(self) -> list[str]:
        return [name for _, name, _ in self.sent]

    def lose(self, node: int) -> None:
        """Its connection ends; the next request makes a new one."""
        self._conns[node, ConnectionGroup.DEFAULT].open = False
        self._conns[node, ConnectionGroup.DEFAULT] = Link()

    # --- as an AIOKafkaClient ---------------------------------------------------------------------------------------

    def _leader(self, where: TopicPartition) -> int | None:
        return self.leaders.get((where.topic, where.partition))

    def _partitions(self, topic: str) -> set[int] | None:
        return {number for name, number in self.leaders if name == topic} or None

    async def bootstrap(self) -> None: ...

    async def close(self) -> None: ...

    async def ready(self, node: int) -> bool:
        return True

    async def coordinator_lookup(self, kind: Any, key: str) -> int:
        self.looked += 1
        return self.coordinator

    async def force_metadata_update(self) -> bool:
        self.on_metadata()
        await asyncio.sleep(0)
        return True

    async def _wait_on_metadata(self, topic: str) -> None:
        self.on_metadata()
        await asyncio.sleep(0)

    async def send(self, node: int, request: Any) -> Any:
        name = type(request).__name__.removesuffix("Request")
        self.sent.append((node, name, request))
        await asyncio.sleep(0)
        answer = self.script[name].pop(0) if self.script[name] else 0
        if isinstance(answer, asyncio.Future):
            answer = await answer
        if isinstance(answer, BaseException):
            raise answer
        return getattr(self, f"_{name}")(request, answer)

    def _InitProducerId(self, request: Any, code: int) -> Any:
        return self._with_epoch(code)

    def _EndTxn(self, request: Any, code: int) -> Any:
        if not code:
            self.producer = self.producer[0], self.producer[1] + 1
        return self._with_epoch(code)

    def _with_epoch(self, code: int) -> Any:
        producer_id, epoch = (-1, -1) if code else self.producer
        return SimpleNamespace(error_code=code, producer_id=producer_id, producer_epoch=epoch)

    def _AddPartitionsToTxn(self, request: Any, code: int | dict[Partition, int]) -> Any:
        return SimpleNamespace(
            errors=[
                (
                    topic,
                    [(number, code if isinstance(code, int) else code.get((topic, number), 55)) for number in parts],
                )
                for topic, parts in topics_of(request)
            ]
        )

    def _Produce(self, request: Any, code: int | dict[Partition, int]) -> Any:
        topics: list[Any] = []
        for topic, parts, _ in topics_of(request):
            answers: list[Any] = []
            for number, records, _ in parts:
                one = code if isinstance(code, int) else code.get((topic, number), 0)
                if not one:
                    self.batches[topic, number].append(bytes(records))
                answers.append((number, one, 100 + len(self.batches[topic, number]), 5, 0, [], None, {}))
            topics.append((topic, answers, {}))
        return SimpleNamespace(topics=topics)


def batch_state(batch: bytes) -> Sequence[int]:
    """Producer id, epoch and base sequence of a record batch (KIP-98)."""
    return (
        int.from_bytes(batch[43:51], "big", signed=True), int.from_bytes(batch[51:53], "big", signed=True),
        int.from_bytes(batch[53:57], "big", signed=True),
    )  # fmt: skip
