"""The topic whose records are appended only for their timestamps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiokafka import errors
from aiokafka.protocol.produce import ProduceRequest

from duemq.bus.kafka.options import KafkaOptions
from duemq.bus.kafka.record_batches import batches_of
from duemq.bus.kafka.requests.wire import Wire
from duemq.bus.kafka.topics.topics import TopicMaker, settings_of_own
from duemq.model.errors import LogFailed
from duemq.model.messages.record import pack_record

CLOCK_TOPIC = "duemq.clock"

_RETENTION_MS = 3_600_000
_BATCH_BYTES = 1 << 10
_BY_LEADER = 1  # acks: the leader's clock can be read without waiting for other replicas
_FRAMES = [pack_record(None, (), b"")]


class ClockTopic:
    """Appends to the topic by separate requests: if the topic were deleted, a shared producer would fail other appends,
    too."""

    def __init__(self, wire: Wire, maker: TopicMaker, options: KafkaOptions, clock: Callable[[], int]) -> None:
        self._wire, self._maker, self._options, self._clock = wire, maker, options, clock
        self._topic = options.names.on_brokers(CLOCK_TOPIC)
        self._exists = False

    async def ask(self) -> tuple[int, int, int]:
        """Return a broker's time, and this machine's time before and after the request, ms. Creates the topic if it is
        missing.

        Raises LogFailed, and the errors of creating a topic.
        """
        if self._exists:
            try:
                return await self._append()
            except (errors.KafkaError, OSError):
                self._exists = False
        # Create it before any request mentions it to a broker, which might create it with default settings.
        await self._maker.ensure(self._topic, 1, settings_of_own(self._options, _RETENTION_MS))
        self._exists = True
        return await self._wire.retry(self._append)

    async def _append(self) -> tuple[int, int, int]:
        """Raises KafkaError."""
        leader = self._wire.leader(self._topic, 0)
        if leader is None:
            raise errors.LeaderNotAvailableError(self._topic)
        before = self._clock()
        (batch,) = batches_of(_FRAMES, _BATCH_BYTES, before, transactional=False)
        data: Any = batch.builder._build()
        timeout_ms = self._options.request_timeout_ms // 2
        request = ProduceRequest(
            transactional_id=None, required_acks=_BY_LEADER, timeout=timeout_ms,
            topics=[(self._topic, [(0, data)])],
        )  # fmt: skip
        answer = await self._wire.ask(leader, request)
        after = self._clock()
        ((_, ((_, code, _, stamp, *_),)),) = answer.topics
        if code:
            raise errors.for_code(code)(self._topic)
        if stamp < 0:
            raise LogFailed(f"topic {self._topic!r} does not have message.timestamp.type=LogAppendTime: delete it")
        return stamp, before, after
