"""Replicas from other nodes, over their internal HTTP."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

from duemq.delay.cluster import ClusterView
from duemq.delay.snapshot import fetch
from duemq.election.base import Member, NodeState
from duemq.model.errors import CorruptStore, DiskFull, StoreFailed, Unavailable
from duemq.proxy.snapshots import HttpSnapshotSource
from duemq.proxy.wire import token_headers

log = logging.getLogger(__name__)

_SOUND = (NodeState.READY, NodeState.DRAINING)
_TOLD_EVERY_S = 5.0


class HttpPeers:
    """See `Peers`. `name`: this node's own."""

    def __init__(self, view: ClusterView, name: str, token: str = "") -> None:
        self._view, self._name = view, name
        self._headers = token_headers(token)

    def have(self, shard: int) -> bool:
        return next(self._holders(shard), None) is not None

    async def fetch(self, shard: int, path: Path) -> bool:
        for peer in list(self._holders(shard)):
            source = HttpSnapshotSource(peer.url, self._headers)
            try:
                await fetch(source, shard, path, _Progress(shard, peer.name))
                return True
            except (DiskFull, StoreFailed):
                raise  # our own disk: another peer would not help
            except (Unavailable, CorruptStore) as error:
                log.warning(
                    "shard %d cannot be copied from node %s: %s", shard, peer.name, error,
                    extra={"action": "rebuild", "shard": shard, "peer": peer.name},
                )  # fmt: skip
            finally:
                await source.close()
        return False

    def _holders(self, shard: int) -> Iterator[Member]:
        """A standby before the master, who has more to do."""
        master = self._view.masters().get(shard)
        for member in sorted(self._view.members(), key=lambda one: one.name == master):
            if member.name != self._name and member.standing.state in _SOUND and member.has(shard):
                yield member


class _Progress:
    """Tells how far a copy is, now and then."""

    def __init__(self, shard: int, peer: str) -> None:
        self._shard, self._peer, self._told_at = shard, peer, time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._told_at >= _TOLD_EVERY_S:
            self._told_at = now
            log.info(
                "shard %d: %d of %d MiB copied from node %s", self._shard, done >> 20, total >> 20, self._peer,
                extra={"action": "rebuild", "shard": self._shard, "peer": self._peer},
            )  # fmt: skip
