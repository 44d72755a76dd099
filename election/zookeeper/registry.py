"""A cluster in ZooKeeper: its nodes, masters and drain requests. Proxies and nodes use it."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from duemq.election.base import Member, NodeState
from duemq.election.changes import ChangeSignal
from duemq.election.zookeeper.layout import (
    Layout,
    Lock,
    Registration,
    decode_identity,
    decode_locks,
    decode_member,
    encode_identity,
)
from duemq.election.zookeeper.options import ZooKeeperOptions, check_name, is_name
from duemq.election.zookeeper.registry_cache import RegistryCache
from duemq.election.zookeeper.session import SessionState, ZooKeeperSession
from duemq.model.errors import BadConfig, Rejected, Unavailable
from duemq.model.topics.cluster_identity import ClusterIdentity
from duemq.model.topics.topic_names import prefix_of

log = logging.getLogger(__name__)

_ANSWER_S = 5.0
_BURIALS = 3


class Registry:
    """Follows ZooKeeper while open. All calls are made in one event loop.

    `cluster`: the cluster's path under the chroot. Asynchronous calls raise Unavailable while ZooKeeper is out of
    reach. Other reads return the last known state, which is empty once the session is lost.
    """

    def __init__(self, options: ZooKeeperOptions, cluster: str = "duemq") -> None:
        check_name("cluster", cluster)
        self.cluster, self.options, self.layout = cluster, options, Layout(f"{options.chroot}/{cluster}")
        self.session = ZooKeeperSession(options, self._on_state, self._on_touched)
        self.cache = RegistryCache(
            self.session, (self.layout.nodes, self.layout.locks, self.layout.drain), self._on_cache_change
        )
        self.registrations: Mapping[str, Registration] = {}
        self.locks: Mapping[int, Lock] = {}
        self.failure: BaseException | None = None
        self._changes = ChangeSignal()
        self._listeners: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Raises Unavailable if ZooKeeper does not answer in time, BadConfig if it refuses access."""
        await self.session.open()
        try:
            async with asyncio.timeout(self.options.connect_timeout_s):
                for path in (self.layout.nodes, self.layout.locks, self.layout.drain):
                    await self.session.ensure(path)
                self._task = asyncio.create_task(self.cache.run(), name="zookeeper-cache")
                self._task.add_done_callback(self._on_end)
                await self.cache.current.wait()
        except BaseException as error:
            await self.close()
            if isinstance(error, TimeoutError):
                raise Unavailable(f"ZooKeeper at {self.options.hosts} stopped answering during the start") from error
            raise

    async def close(self) -> None:
        """Takes a limited time. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self.session.close()

    def is_paused(self) -> bool:
        """Whether ZooKeeper is out of reach, or can be reached again but was not yet read again."""
        return not self.cache.current.is_set()

    async def wait_for_change(self, timeout_s: float | None = None) -> bool:
        """Wait as `Election.wait_for_change` does. If an error has ended the registry's background task, raises that
        error."""
        has_changed = await self._changes.wait(timeout_s)
        if self.failure is not None:
            raise self.failure
        return has_changed

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` at each change, until `unlisten`."""
        self._listeners.append(listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        self._listeners.remove(listener)

    def members(self) -> Sequence[Member]:
        """The live nodes, by name. A node with a drain request counts as draining, even before it has read the
        request."""
        return [self._with_wish(self.registrations[name].member) for name in sorted(self.registrations)]

    def masters(self) -> Mapping[int, str]:
        return {shard: lock.holder for shard, lock in sorted(self.locks.items()) if self.is_held(lock)}

    def is_held(self, lock: Lock) -> bool:
        """Whether the lock's holder is alive."""
        holder = self.registrations.get(lock.holder)
        return holder is not None and holder.born == lock.born

    def is_drain_requested(self, name: str) -> bool:
        """Whether an operator asked to drain the node."""
        return name in self.cache.folder(self.layout.drain)

    async def identity(
        self, shards: int | None = None, make_secret: Callable[[], bytes] | None = None
    ) -> ClusterIdentity:
        """The cluster's identity. The first caller with `shards` creates it; all later callers get the same one.

        Raises Unavailable if it does not exist and `shards` is None, BadConfig if it has another number of shards.
        """
        async with _limit_time():
            while (znode := await self.session.read(self.layout.meta)) is None:
                if shards is None:
                    raise Unavailable(f"no node has started in cluster {self.layout.root} of ZooKeeper yet")
                secret = make_secret() if make_secret else secrets.token_bytes(16)
                identity = ClusterIdentity(secrets.token_hex(8), shards, secret, prefix_of(self.cluster), {})
                await self.session.create(self.layout.meta, encode_identity(identity))
        meta = decode_identity(self.layout.meta, znode.data)
        if shards is not None and shards != meta.shards:
            raise BadConfig(
                f"shards = {shards}, but the cluster {self.layout.root} in ZooKeeper was made with {meta.shards}: "
                "a cluster keeps its number"
            )
        return meta

    async def keep_topic_ids(self, ids: Mapping[str, str], before: Mapping[str, str] | None) -> Mapping[str, str]:
        """See `KeepTopicIds`."""
        async with _limit_time():
            while True:
                znode = await self.session.read(self.layout.meta)
                if znode is None:
                    raise Unavailable(f"{self.layout.meta} in ZooKeeper is gone")
                identity = decode_identity(self.layout.meta, znode.data)
                if identity.topic_ids != before:
                    return identity.topic_ids or {}
                data = encode_identity(replace(identity, topic_ids=ids))
                if await self.session.write(self.layout.meta, data, znode.version) is not None:
                    return ids

    async def drain(self, name: str) -> None:
        """Ask a node to hand over its shards. Idempotent. Raises Rejected `unknown_node`."""
        async with _limit_time():
            await self._must_know(name)
            if await self.session.create(self.layout.wish(name), b"{}"):
                log.info("node %s is asked to hand over", name, extra={"action": "drain", "node": name})
            self.cache.touch(self.layout.drain)

    async def resume(self, name: str) -> None:
        """Withdraw the drain request for a node. Idempotent. Raises Rejected `unknown_node`."""
        async with _limit_time():
            await self._must_know(name)
            if await self.session.delete(self.layout.wish(name), -1):
                log.info("node %s takes part again", name, extra={"action": "resume", "node": name})
            self.cache.touch(self.layout.wish(name))

    async def remove_dead(self, name: str, born: int) -> None:
        """Delete a dead node's entry, if the entry still has this `born`. The node's locks are then free at once.

        If the process is alive after all, it simply registers again.
        """
        path = self.layout.node(name)
        for _ in range(_BURIALS):  # retried, because the dead process's last write may arrive in between
            znode = await self.session.read(path)
            if znode is None or znode.born != born:
                return
            if await self.session.delete(path, znode.version):
                log.warning("node %s is dead: its place is free", name, extra={"action": "dead node", "node": name})
                self.cache.put(path, None)
                return

    async def _must_know(self, name: str) -> None:
        if is_name(name):
            for path in (self.layout.node(name), self.layout.wish(name)):
                if await self.session.read(path) is not None:
                    return
        raise Rejected("unknown_node", f"There is no node {name} in the cluster.")

    def _with_wish(self, member: Member) -> Member:
        if member.health.state is NodeState.READY and self.is_drain_requested(member.name):
            return replace(member, health=replace(member.health, state=NodeState.DRAINING))
        return member

    def _on_state(self, state: SessionState) -> None:
        self.cache.on_state(state)

    def _on_touched(self, path: str) -> None:
        if path.startswith((self.layout.nodes, self.layout.locks, self.layout.drain)):
            self.cache.touch(path)

    def _on_cache_change(self) -> None:
        entries = [decode_member(name, znode) for name, znode in self.cache.folder(self.layout.nodes).items()]
        self.registrations = {entry.member.name: entry for entry in entries if entry is not None}
        self.locks = decode_locks(self.cache.folder(self.layout.locks))
        self._tell()

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelling():
            self.failure = Unavailable(f"{task.get_name()} was cancelled") if task.cancelled() else task.exception()
            self._tell()

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener()
        self._changes.tell()


@asynccontextmanager
async def _limit_time() -> AsyncIterator[None]:
    """Limits how long a person has to wait. A request that ZooKeeper has not answered by then may still take effect,
    and can be repeated."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            yield
    except TimeoutError as error:
        raise Unavailable("ZooKeeper is out of reach") from error
