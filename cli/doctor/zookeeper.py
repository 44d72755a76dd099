"""Reads ZooKeeper's records of the cluster. Creates nothing there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from duemq.cli.doctor.finding import Finding, error, ok, warning
from duemq.cli.settings.settings import Settings
from duemq.election.zookeeper.layout import Layout, decode_identity
from duemq.election.zookeeper.options import ZooKeeperOptions
from duemq.election.zookeeper.session import ZooKeeperSession
from duemq.model.errors import DuemqError
from duemq.model.topics.cluster_identity import ClusterIdentity

_SUBJECT = "zookeeper"


async def examine_zookeeper(
    options: ZooKeeperOptions, cluster: str
) -> tuple[ClusterIdentity | None, Sequence[str] | None]:
    """The cluster's shared identity, and the names of its live nodes; each is None if it does not exist yet.

    Raises Unavailable and BadConfig.
    """
    session = ZooKeeperSession(options, lambda state: None, lambda path: None)
    await session.open()
    try:
        layout = Layout(f"{options.chroot}/{cluster}")
        meta = await session.read(layout.meta)
        if meta is None:
            return None, None
        nodes = None if await session.read(layout.nodes) is None else await session.children(layout.nodes)
        return decode_identity(layout.meta, meta.data), nodes
    finally:
        await session.close()


def judge_zookeeper(
    settings: Settings, identity: ClusterIdentity | None, nodes: Sequence[str] | None
) -> Iterator[Finding]:
    servers = len(settings.zookeeper.hosts)
    if servers < 3:
        yield warning(
            _SUBJECT, f"zookeeper.hosts names {servers}: without it no shard changes its master",
            "run three or five servers, and name all",
        )  # fmt: skip
    elif servers % 2 == 0:
        yield warning(_SUBJECT, f"{servers} servers survive no more failures than {servers - 1}", "use an odd number")
    if identity is None:
        yield ok(_SUBJECT, f"it answers; cluster {settings.cluster} has not been started yet")
        return
    if "shards" in settings.model_fields_set and settings.shards != identity.shards:
        yield error(
            _SUBJECT, f"shards = {settings.shards}, and the cluster was made with {identity.shards}",
            f"set shards = {identity.shards}, or leave it out: a cluster's number is fixed",
        )  # fmt: skip
    if not nodes:
        yield error(
            _SUBJECT, f"no node of cluster {settings.cluster} is alive: no messages are delivered", "start `duemq node`"
        )
    else:
        yield ok(_SUBJECT, f"cluster {identity.cluster}: {identity.shards} shards, nodes {', '.join(sorted(nodes))}")


def unreachable(failed: DuemqError) -> Finding:
    return error(_SUBJECT, str(failed), "start ZooKeeper, or correct zookeeper.*")
