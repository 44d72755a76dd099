"""How a process of a cluster finds the others: ZooKeeper, and the cluster's shared identity."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack

from duemq.background.loop import Loop, OutageOptions
from duemq.cli.settings.settings import Settings
from duemq.cli.wiring.parts import LOOK_AGAIN_S, check_prefix, zookeeper_options
from duemq.election.zookeeper.registry import Registry
from duemq.model.errors import BadConfig, Unavailable
from duemq.model.topics.cluster_identity import ClusterIdentity
from duemq.model.topics.topic_names import DEFAULT_CLUSTER, OWN, prefix_of

_SHARDS = 4  # the default for a new cluster: enough for a few nodes to share


async def open_directory(settings: Settings, opened: AsyncExitStack) -> Registry:
    directory = Registry(zookeeper_options(settings), settings.cluster)
    await directory.open()
    opened.push_async_callback(directory.close)
    return directory


async def prefix_for_relay(settings: Settings, opened: AsyncExitStack, stop: asyncio.Event) -> str | None:
    """The cluster's prefix, for a process that needs nothing else from the identity; None if stopped. Raises BadConfig
    if the prefix is unknown."""
    if settings.kafka.prefix or settings.cluster == DEFAULT_CLUSTER:
        return settings.kafka.prefix or OWN
    if not settings.zookeeper.hosts:
        raise BadConfig(
            f"the prefix of the topics of cluster {settings.cluster} is not known: set its ZooKeeper in "
            f"zookeeper.hosts, or set kafka.prefix ({prefix_of(settings.cluster)}, or {OWN} if the cluster was made "
            "before there were prefixes)"
        )
    identity = await shared_identity(await open_directory(settings, opened), settings, stop, makes=False)
    return None if identity is None else identity.prefix


async def shared_identity(
    directory: Registry, settings: Settings, stop: asyncio.Event, *, makes: bool
) -> ClusterIdentity | None:
    """The cluster's shared identity; None if stopped. A process creates it if that is its task (`makes`) or if its
    settings have `shards`; other processes wait for it."""
    if "shards" in settings.model_fields_set:
        return check_prefix(settings, await directory.identity(settings.shards))
    identities: list[ClusterIdentity] = []

    async def turn() -> None:
        try:
            identities.append(check_prefix(settings, await directory.identity()))
        except Unavailable:
            if not makes:
                raise
            identities.append(check_prefix(settings, await directory.identity(_SHARDS)))

    pace = OutageOptions(first_s=LOOK_AGAIN_S, longest_s=LOOK_AGAIN_S, level=logging.INFO)
    await Loop("waiting for a delay node", turn, ends_on=(Exception,), **pace).run(stop)
    return identities[0] if identities else None
