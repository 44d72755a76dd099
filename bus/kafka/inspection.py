"""Inspects a Kafka cluster without creating anything, for `duemq doctor`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Self

from duemq.bus.kafka.clock.clock_probe import ClockProbe
from duemq.bus.kafka.clock.clock_topic import CLOCK_TOPIC, ClockTopic
from duemq.bus.kafka.options import KafkaOptions
from duemq.bus.kafka.produce.choice import uses_v2
from duemq.bus.kafka.requests.wire import Wire
from duemq.bus.kafka.topics.catalog import Catalog, TopicMetadata
from duemq.bus.kafka.topics.topics import NEVER, TopicMaker, settings_of_own

_MAX_TRANSACTION: Final = "transaction.max.timeout.ms"


class Inspection:
    """Created by `open`."""

    def __init__(self, options: KafkaOptions, clock: Callable[[], int]) -> None:
        self._options, self._clock = options, clock
        self._wire = Wire(options.client())
        self._catalog = Catalog(self._wire)
        self._maker = TopicMaker(self._wire, self._catalog, options)

    @classmethod
    async def open(cls, options: KafkaOptions, clock: Callable[[], int]) -> Self:
        """`clock` returns epoch ms. Raises BadConfig if the brokers refuse us, Unavailable if they are out of reach."""
        inspection = cls(options, clock)
        await inspection._wire.open()
        return inspection

    async def close(self) -> None:
        await self._catalog.close()
        await self._wire.close()

    def brokers(self) -> int:
        """The number of brokers in the cluster."""
        cluster = self._wire.client.cluster
        return sum(not cluster.is_bootstrap(broker.nodeId) for broker in cluster.brokers())

    async def has_transactions_v2(self) -> bool:
        return await uses_v2(self._options, self._wire)

    async def max_transaction_ms(self) -> int | None:
        """How long any client's transaction may stay open, ms; None if duemq's user may not see this setting. Raises
        LogFailed."""
        cluster = self._wire.client.cluster
        timeouts: list[int] = []
        for broker in cluster.brokers():
            if not cluster.is_bootstrap(broker.nodeId):
                answer = await self._wire.ask_broker_settings(broker.nodeId, [_MAX_TRANSACTION])
                timeouts += [int(value) for name, value in answer.items() if name == _MAX_TRANSACTION]
        return max(timeouts, default=None)

    async def topic(self, name: str) -> TopicMetadata | None:
        """A topic; None if it does not exist or duemq's user may not describe it. Raises LogFailed."""
        return (await self._catalog.find([name])).get(name)

    async def misfit(self, name: str, *, expires: bool) -> str | None:
        """Why the settings of one of duemq's existing topics are wrong; None if they are right. `expires`: see
        `Bus.create_log`."""
        return await self._maker.misfit(name, settings_of_own(self._options, None if expires else NEVER))

    async def clock_offset_ms(self) -> float | None:
        """The brokers' clock minus this machine's, ms; None if no server has compared clocks yet. Appends records to
        `duemq.clock`, as each server does every second."""
        if await self.topic(self._options.names.on_brokers(CLOCK_TOPIC)) is None:
            return None
        topic = ClockTopic(self._wire, self._maker, self._options, self._clock)
        return await ClockProbe(self._clock).measure(topic.ask)
