"""The administrative side of a process: the state that all processes share, and the audit trail."""

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
    """`bus`: see `AdminLog`. `clock` returns epoch ms."""

    def __init__(self, bus: Callable[[], Bus], clock: Callable[[], int]) -> None:
        self.clock = clock
        self.log = AdminLog(bus, clock)
        self.keys = ApiKeys(self.log, clock)
        self.sessions = Sessions(self.log, clock)
        self.jobs = Jobs(self.log, clock)
        self.destinations = DestinationRegistry(self.log)
        self.trail = Trail(bus, clock)

    async def run(self) -> None:
        """Follow the log until cancelled. `trail.run` must end before the log is closed: see `Trail.run`."""
        await self.log.run()
