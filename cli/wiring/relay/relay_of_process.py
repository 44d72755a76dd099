"""Builds a relay from the settings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from os import getpid
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from duemq.bus.base import Bus
from duemq.cli.settings.settings import Settings
from duemq.cluster.admin.administration import Administration
from duemq.cluster.relays.log import RelayFiguresPublisher
from duemq.model.destinations.destination import Credentials, Destination
from duemq.model.errors import Rejected
from duemq.model.topics.topic_names import TopicNames

if TYPE_CHECKING:  # these import aiokafka, which a server without destinations does not need
    from duemq.client.consumer.base import ConsumerLog
    from duemq.client.consumer.options import ConsumerOptions
    from duemq.relay.base import Outlet
    from duemq.relay.embedded.log import Scheduler
    from duemq.relay.groups.lease_pool import LeasePool
    from duemq.relay.relay import OpenOutlet, Relay

_BY = "relay"


class RelayOfProcess:
    """The relay of this process. It starts with the first declaration."""

    def __init__(
        self,
        settings: Settings,
        admin: Administration,
        bus: Callable[[], Bus],
        schedule: Scheduler | None,
        metrics: CollectorRegistry,
        log: Path | None = None,
        names: TopicNames = TopicNames(),  # noqa: B008  # a value
    ) -> None:
        """`schedule`, `log`: scheduler and path of a server's own log; None on Kafka. `names`: on Kafka."""
        self._log, self._names = log, names
        self._settings, self._admin, self._bus, self._schedule = settings, admin, bus, schedule
        self._metrics = metrics
        self._made = asyncio.Event()
        self.relay: Relay | None = None

    async def run(self) -> None:
        await self._admin.log.ready.wait()
        await self._first_declaration()
        from duemq.relay.collector import RelayCollector

        self.relay = self._make()
        self._made.set()
        self._metrics.register(RelayCollector(lambda: self.relay))
        if self._schedule is not None:
            await self.relay.run()
            return
        publisher = RelayFiguresPublisher(self._bus, _name(), self.relay.measured, self._admin.clock)
        async with asyncio.TaskGroup() as group:
            group.create_task(publisher.run(), name="figures")
            group.create_task(self.relay.run(), name="relay")

    async def _first_declaration(self) -> None:
        changed = asyncio.Event()
        self._admin.log.on_change(changed.set)
        while not self._admin.destinations.by_name:
            await changed.wait()
            changed.clear()

    def shown(self, name: str) -> dict[str, Any] | None:
        """This process's counters of a destination; None if it is not at work here."""
        figures = None if self.relay is None else self.relay.measured_of(name)
        return None if figures is None else figures.shown()

    async def leases(self, name: str) -> LeasePool:
        """See `Relay.pool_of`."""
        await self._made.wait()
        assert self.relay is not None
        return await self.relay.pool_of(name)

    async def ended(self, name: str, topics: Collection[str]) -> None:
        """See `Relay.ended`."""
        if self.relay is not None:
            await self.relay.ended(name, topics)

    def _make(self) -> Relay:
        from duemq.relay.relay import Relay

        async def disable(name: str, reason: str) -> None:
            await self._admin.destinations.disable(name, reason, _BY)

        kafka: dict[str, Any] = {}
        if self._schedule is None:
            from duemq.cli.wiring.parts import kafka_options

            kafka = kafka_options(self._settings).client()
            kafka = {name: value for name, value in kafka.items() if name.startswith(("security_", "ssl_", "sasl_"))}
        registry, on_change = self._admin.destinations, self._admin.log.on_change
        return Relay(
            registry, on_change, self._log_of, outlet_opener(self._settings), disable, self._admin.clock, kafka,
            _name(), self._names, self._settings.relay,
        )  # fmt: skip

    def _log_of(self, group: str, options: ConsumerOptions) -> ConsumerLog:
        if self._schedule is not None:
            from duemq.relay.embedded.log import EmbeddedLog
            from duemq.storage.data_folder import log_id_of

            log_id = "" if self._log is None else log_id_of(self._log)
            return EmbeddedLog(group, self._bus, self._schedule, self._admin.clock, log_id)
        from duemq.client.consumer.kafka.log import KafkaLog

        return KafkaLog(group, ",".join(self._settings.kafka.bootstrap), options, self._names.own(group) or group)


def outlet_opener(settings: Settings) -> OpenOutlet:
    """Opens outlets under this operator's policy. Raises Rejected `not_supported` if a client library is missing."""

    def open_with(destination: Destination, credentials: Credentials) -> Outlet:
        # Most servers have no destinations, and start sooner without this import.
        from duemq.relay.base import OutletMissing
        from duemq.relay.outlets import RelayPolicy, open_outlet

        try:
            return open_outlet(destination, credentials, RelayPolicy(settings.relay.networks))
        except OutletMissing as error:
            raise Rejected("not_supported", str(error)) from error

    return open_with


def _name() -> str:
    return f"{gethostname()}:{getpid()}"
