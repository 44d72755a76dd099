"""How a process of a cluster finds the others: ZooKeeper, and what all of the cluster share."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack

from duemq.cli.settings.settings import Settings
from duemq.cli.wiring.parts import LOOK_AGAIN_S, zookeeper_options
from duemq.election.zookeeper.registry import Registry
from duemq.model.cluster_identity import ClusterIdentity
from duemq.model.errors import Unavailable
from duemq.tasks.loop import Loop, Pace

_SHARDS = 4  # the default of a new cluster: enough for a few nodes to share


async def open_directory(settings: Settings, opened: AsyncExitStack) -> Registry:
    directory = Registry(zookeeper_options(settings), settings.cluster)
    await directory.open()
    opened.push_async_callback(directory.close)
    return directory


async def shared_identity(
    directory: Registry, settings: Settings, stop: asyncio.Event, *, makes: bool
) -> ClusterIdentity | None:
    """What the cluster shares. Who makes it may be the first; others wait for that, None if they are stopped."""
    if "shards" in settings.model_fields_set:
        return await directory.identity(settings.shards)
    found: list[ClusterIdentity] = []

    async def turn() -> None:
        try:
            found.append(await directory.identity())
        except Unavailable:
            if not makes:
                raise
            found.append(await directory.identity(_SHARDS))

    pace = Pace(first_s=LOOK_AGAIN_S, longest_s=LOOK_AGAIN_S, level=logging.INFO)
    await Loop("waiting for a delay node", turn, ends_on=(Exception,), **pace).run(stop)
    return found[0] if found else None
