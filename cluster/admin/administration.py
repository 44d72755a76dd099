"""The administrative side of a process: the state that all processes share, and the trail of its changes."""

from __future__ import annotations

from collections.abc import Callable

from duemq.bus.base import Bus
from duemq.cluster.admin.api_keys import ApiKeys
from duemq.cluster.admin.destination_registry import DestinationRegistry
from duemq.cluster.admin.jobs import Jobs
from duemq.cluster.admin.log import AdminLog
from duemq.cluster.admin.sessions import Sessions
from duemq.cluster.admin.trail import Trail


class Administration:
    """`bus`: as for `AdminLog`. `clock` returns epoch ms."""

    def __init__(self, bus: Callable[[], Bus], clock: Callable[[], int]) -> None:
        self.clock = clock
        self.log = AdminLog(bus, clock)
        self.keys = ApiKeys(self.log, clock)
        self.sessions = Sessions(self.log, clock)
        self.jobs = Jobs(self.log, clock)
        self.destinations = DestinationRegistry(self.log)
        self.trail = Trail(bus, clock)

    async def run(self) -> None:
        """Follow the log until cancelled. `trail.run` ends sooner: see there."""
        await self.log.run()
