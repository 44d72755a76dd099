"""Checks that a process's logs belong to its cluster (ADR 58)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress

from duemq.bus.base import Bus, TopicRefused
from duemq.cluster.topics.internal_topics import BUFFER, LEDGER
from duemq.model.errors import Unavailable
from duemq.model.topics.cluster_identity import ClusterIdentity
from duemq.model.topics.topic_names import TopicNames

CHECK_S = 10.0  # between two checks of logs in use

KeepTopicIds = Callable[[Mapping[str, str], Mapping[str, str] | None], Awaitable[Mapping[str, str]]]
"""Stores the first ids in the cluster's identity if it still has the second ids. Returns the ids that it then has."""


class OwnLogs:
    """`accepted`: ids of topics that an operator has declared to be the cluster's, whatever ids are stored."""

    def __init__(self, identity: ClusterIdentity, keep: KeepTopicIds, accepted: Collection[str] = ()) -> None:
        self._cluster, self._names = identity.cluster, TopicNames(identity.prefix)
        self._stored, self._keep, self._accepted = identity.topic_ids, keep, accepted

    async def check(self, bus: Bus) -> None:
        """Raises TopicRefused for another cluster's logs, and for recreated or mirrored logs.

        The first process stores the logs' ids. Logs without ids are not checked.
        """
        ids = await bus.topic_ids((BUFFER, LEDGER))
        if not ids:
            return
        if self._stored == {} and not self._are_accepted(ids):
            await self._refuse_records_of_others(bus, ids)
        if not ids.keys() <= (self._stored or {}).keys():  # brokers may not know a new topic at first
            self._stored = await self._keep({**ids, **(self._stored or {})}, self._stored)
        assert self._stored is not None
        other = {topic: id_ for topic, id_ in ids.items() if self._stored.get(topic) != id_}
        if other and self._are_accepted(other):
            self._stored = await self._keep({**self._stored, **other}, self._stored)
            other = {topic: id_ for topic, id_ in ids.items() if self._stored.get(topic) != id_}
        for topic, id_ in other.items():
            raise TopicRefused(
                f"topic {self._names.on_brokers(topic)!r} has the id {id_}, and that of cluster {self._cluster} has "
                f"{self._stored.get(topic)}: it is another cluster's, or was recreated, mirrored or restored. Name "
                "the right brokers in kafka.bootstrap. If the topic was lost, see "
                "docs/operate/operations.md, Lost topics."
            )

    async def watch(self, bus: Bus) -> None:
        """Check repeatedly. Raises TopicRefused."""
        while True:
            await asyncio.sleep(CHECK_S)
            with suppress(Unavailable):
                await self.check(bus)

    def _are_accepted(self, ids: Mapping[str, str]) -> bool:
        return all(id_ in self._accepted for id_ in ids.values())

    async def _refuse_records_of_others(self, bus: Bus, ids: Mapping[str, str]) -> None:
        for topic in ids:
            info = await bus.topic(topic)
            if info is None or not any(info.end_offsets):
                continue
            # Processes of this cluster store the ids before they write, so read the stored ids again.
            self._stored = await self._keep({}, {})
            if not self._stored:
                raise TopicRefused(
                    f"topic {self._names.on_brokers(topic)!r} has records, and cluster {self._cluster} has just been "
                    "made: they are another cluster's. Give this one another name (cluster) or other brokers; if "
                    "its identity was lost, restore it in ZooKeeper or the data folder."
                )
