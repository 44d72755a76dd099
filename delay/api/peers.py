"""Fetches replicas, or single imported files, from other nodes over their internal HTTP."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import httpx
import orjson

from duemq.client.http.async_http import internal_http
from duemq.cluster.shards.codec import token_headers
from duemq.cluster.shards.view import ClusterView
from duemq.delay.api.imported_files import copy_of
from duemq.delay.api.snapshots import HttpSnapshotSource
from duemq.delay.imports.file_copies import FileCopy
from duemq.delay.recovery.replica_snapshot import fetch
from duemq.election.base import Member, NodeState
from duemq.model.errors import CorruptStore, DiskFull, StoreFailed, Unavailable

log = logging.getLogger(__name__)

_SOUND = (NodeState.READY, NodeState.DRAINING)
_REPORT_EVERY_S = 5.0
_CONNECT_S, _ANSWER_S = 2.0, 10.0


class HttpPeers:
    """See `Peers`. `name`: this node's name. Must be closed."""

    def __init__(self, view: ClusterView, name: str, token: str = "", tls: ssl.SSLContext | None = None) -> None:
        self._view, self._name, self._tls = view, name, tls
        self._headers = token_headers(token)
        self._refusals: dict[tuple[int, str], str] = {}  # why a shard's last copy from a node failed
        self.http: httpx.AsyncClient = internal_http(tls, timeout=httpx.Timeout(_ANSWER_S, connect=_CONNECT_S))

    def have(self, shard: int) -> bool:
        return any(member.health.state in _SOUND for member in self._others(shard))

    def can_copy(self, shard: int) -> bool:
        return bool(self._holders(shard))

    async def fetch(self, shard: int, path: Path, least: int, room: Callable[[int], None]) -> bool:
        for peer in self._holders(shard):
            source = self._source(peer)
            try:
                await fetch(source, shard, path, _Progress(shard, peer.name), least=least, room=room)
                return True
            except (DiskFull, StoreFailed):
                raise  # this node's disk failed: another peer would not help
            except (Unavailable, CorruptStore) as error:
                again = self._refusals.get((shard, peer.name)) == str(error)
                self._refusals[shard, peer.name] = str(error)
                log.log(
                    logging.DEBUG if again else logging.WARNING,
                    "shard %d cannot be copied from node %s: %s", shard, peer.name, error,
                    extra={"action": "rebuild", "shard": shard, "peer": peer.name},
                )  # fmt: skip
            finally:
                await source.close()
        return False

    def _source(self, peer: Member) -> HttpSnapshotSource:
        return HttpSnapshotSource(peer.url, self._headers, tls=self._tls)

    async def copies(self, shard: int, offsets: Sequence[int]) -> Mapping[str, Mapping[int, FileCopy]]:
        nodes = list(self._sources(shard))
        query = {"offsets": ",".join(map(str, offsets))}
        answers = await asyncio.gather(*(self._copies_of(node, shard, query) for node in nodes))
        return {node.name: answer for node, answer in zip(nodes, answers, strict=True) if answer is not None}

    async def _copies_of(self, node: Member, shard: int, query: Mapping[str, str]) -> dict[int, FileCopy] | None:
        try:
            raw = await self._get(node, f"{shard}/copies", query, {}, 200)
            return {int(offset): copy_of(document) for offset, document in orjson.loads(raw)["copies"].items()}
        except (Unavailable, ValueError, KeyError, TypeError, AttributeError) as error:
            log.info("node %s does not list its files: %s", node.name, error, extra={"action": "import"})
            return None

    async def read_copy(self, shard: int, node: str, offset: int, at: int, count: int) -> bytes:
        source = next((one for one in self._sources(shard) if one.name == node), None)
        if source is None:
            raise Unavailable(f"node {node} is not there any more")
        span = {"Range": f"bytes={at}-{at + count - 1}"}
        return await self._get(source, f"{shard}/copies/{offset}", {}, span, 206)

    async def _get(
        self, node: Member, path: str, query: Mapping[str, str], headers: Mapping[str, str], expected_status: int
    ) -> bytes:
        try:
            response = await self.http.get(
                f"{node.url}/internal/shards/{path}", params=dict(query), headers={**self._headers, **headers}
            )
        except httpx.HTTPError as error:
            raise Unavailable(f"node {node.name} did not answer: {error or type(error).__name__}") from error
        if response.status_code != expected_status:
            raise Unavailable(f"node {node.name} answered {response.status_code}: {response.text[:200]}")
        return response.content

    async def close(self) -> None:
        await self.http.aclose()

    def _sources(self, shard: int) -> Iterator[Member]:
        """The nodes that may have a file of the shard. Even a node that is catching up may have it."""
        for member in self._others(shard):
            if member.health.state is not NodeState.OUT:
                yield member

    def _holders(self, shard: int) -> list[Member]:
        """The nodes with a replica of the shard that is fit for copying, in the order in which to ask them.

        Standbys come before the master, which is busier. If any replica is unfit, standbys may have the same fault,
        undetected: then the master comes first.
        """
        others, master = list(self._others(shard)), self._view.masters().get(shard)
        master_first = not all(member.can_lead(shard) for member in others)
        fit = [member for member in others if member.health.state in _SOUND and member.can_lead(shard)]
        return sorted(fit, key=lambda one: (one.name == master) != master_first)

    def _others(self, shard: int) -> Iterator[Member]:
        return (member for member in self._view.members() if member.name != self._name and member.has(shard))


class _Progress:
    """Logs the progress of a copy at intervals."""

    def __init__(self, shard: int, peer: str) -> None:
        self._shard, self._peer, self._reported_at = shard, peer, time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._reported_at >= _REPORT_EVERY_S:
            self._reported_at = now
            log.info(
                "shard %d: %d of %d MiB copied from node %s", self._shard, done >> 20, total >> 20, self._peer,
                extra={"action": "rebuild", "shard": self._shard, "peer": self._peer},
            )  # fmt: skip
