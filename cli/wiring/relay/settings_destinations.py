"""Declares the destinations in the settings, once the administrative log has been read. Unchanged ones stay as they
are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from duemq.background.loop import Loop
from duemq.bus.base import Bus
from duemq.cli.settings.destinations import DeclaredDestination
from duemq.cluster.admin.administration import Administration
from duemq.cluster.admin.destination_registry import FIELDS, Begin
from duemq.cluster.admin.trail import TrailEntry
from duemq.model.errors import Rejected, Unavailable
from duemq.proxy.destinations.positions import begin_at
from duemq.proxy.relay_access import Ended, none_at_work

log = logging.getLogger(__name__)

_BY: Final = "settings"
_SILENT: Final = 2  # failures that are not logged


class SettingsDestinations:
    """`declared`: the destinations in the settings, by name. `bus`: returns the log in use. `ended`: see
    `RelayOfProcess.ended`."""

    def __init__(
        self,
        declared: Mapping[str, DeclaredDestination],
        admin: Administration,
        bus: Callable[[], Bus],
        ended: Ended = none_at_work,
    ) -> None:
        self._declared, self._admin, self._bus, self._ended = declared, admin, bus, ended

    async def run(self) -> None:
        """Declare each destination. If one is refused, this is logged, and the server continues."""
        if not self._declared:
            return
        await self._admin.log.ready.wait()
        async with asyncio.TaskGroup() as group:  # a destination that has to wait does not delay the others
            for name, declared in self._declared.items():
                turn = partial(self._try, name, declared)
                # A starting server is not ready for some ms, and other processes may declare the same destination at
                # the same time: do not log such short failures.
                loop = Loop("declaration", turn, name, expected=(Rejected, Unavailable), quiet=_SILENT, first_s=0.2)
                group.create_task(loop.run(), name=f"declare {name}")

    async def _try(self, name: str, declared: DeclaredDestination) -> None:
        try:
            await self._declare(name, declared)
        except Rejected as error:
            if error.code == "conflict":
                raise
            log.error(
                "destination %s in the settings is not declared: %s", name, error,
                extra={"action": "destination.declare", "destination": name},
            )  # fmt: skip

    async def _declare(self, name: str, declared: DeclaredDestination) -> None:
        registry, fields = self._admin.destinations, declared.destination.model_dump(include=set(FIELDS))
        credentials = None if declared.credentials is None else declared.credentials.value()
        begin: Begin = begin_at(self._bus(), "last", self._ended)
        before = registry.by_name.get(name)
        if before is None:
            await registry.declare({"name": name, **fields}, credentials, _BY, begin=begin)
        else:
            changes = {
                field: value for field, value in fields.items() if value != before.model_dump(include={field})[field]
            }
            same_credentials = declared.credentials in (None, registry.credentials_of(name))
            if not changes and same_credentials:
                return
            await registry.update(name, changes, _BY, None if same_credentials else credentials, begin=begin)
        log.info("destination %s is declared from the settings", name, extra={"action": "destination.declare"})
        action = "declare_destination"
        await self._admin.trail.act(TrailEntry(self._admin.clock(), _BY, "", action, name, 200, "", ""))
