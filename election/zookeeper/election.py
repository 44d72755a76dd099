"""The election through ZooKeeper. At every change, each node compares the allocation with the locks.

    free, allocated to this node        ──▶ claim it                    owned
    locked, still allocated to it       ──▶                             owned
    locked, now allocated to another    ──▶ not owned from now on; released when the master has finished

Pending writes are not tracked. If the answer to a write is lost, the next pass sees whether the write was done.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from urllib.parse import urlsplit

from duemq.background.loop import Loop
from duemq.election.allocation import allocate
from duemq.election.base import Member, NodeHealth
from duemq.election.changes import ChangeSignal
from duemq.election.zookeeper.failure_detector import ConnectionOutcome, FailureDetector, Peer, address_of, talk_to
from duemq.election.zookeeper.layout import NO_HOLDER, Lock, Registration, decode_member, encode_lock, encode_member
from duemq.election.zookeeper.options import check_name
from duemq.election.zookeeper.registry import Registry
from duemq.model.errors import BadConfig, DuemqError, Unavailable

log = logging.getLogger(__name__)

_RETRY_S, _LOOK_S = 0.2, 1.0
_LEAVE_S = 2.0


class ZooKeeperElection:
    """One node's part in the election. `registry` is open and is not closed here: it belongs to the caller and may be
    shared.

    `shards`: the cluster's number of shards. `host`, `link_port`: where to listen for other nodes' links; the other
    nodes connect to the host in `me.url`. Port 0 means any port. If `host` is empty, there are no links, and deaths are
    noticed only when sessions expire. Only nodes use links, so `host` is the bind address of a node's HTTP server.
    """

    def __init__(
        self, registry: Registry, me: Member, shards: int, host: str = "127.0.0.1", link_port: int = 0
    ) -> None:
        check_name("node.name", me.name)
        self._registry, self._me, self._shards = registry, me, range(shards)
        self._host, self._link_port = host, link_port
        self._path = registry.layout.node(me.name)
        self._instance = ""
        self._detector: FailureDetector | None = None
        self._task: asyncio.Task[None] | None = None
        self._loop = Loop(
            "claims", self._turn, first_s=_RETRY_S, longest_s=_LOOK_S, ends_on=(Exception,),
            on_failure=lambda error: registry.cache.touch_all(),
        )  # fmt: skip
        self._changes = ChangeSignal()
        self._last_view: object = None
        self._owned_shards: frozenset[int] = frozenset()
        self._shown_shards: frozenset[int] = frozenset()  # locked shards that `owned_shards` has returned
        self._released_shards: frozenset[int] = frozenset()  # locked shards that the master has finished with

    async def join(self) -> None:
        """Raises Unavailable if ZooKeeper is out of reach, BadConfig if another live process has the same name."""
        if self._task is not None:
            return
        if self._registry.is_paused():
            raise Unavailable("ZooKeeper is out of reach")
        self._instance = secrets.token_hex(8)
        try:
            if self._host:
                self._detector = FailureDetector(self._me.name, self._instance, self._on_dead)
                port = await self._detector.open(self._host, self._link_port)
                self._me = replace(self._me, link=address_of(urlsplit(self._me.url).hostname or self._host, port))
            await self._replace_predecessor()
            await self._register()
        except BaseException:
            await self._close_detector()
            raise
        self._registry.listen(self._on_change)
        self._task = asyncio.create_task(self._loop.run(), name="election")
        self._task.add_done_callback(lambda _: self._changes.tell())
        self._on_change()

    def owned_shards(self) -> frozenset[int]:
        self._shown_shards |= self._owned_shards
        return self._owned_shards

    def is_paused(self) -> bool:
        return self._registry.is_paused()

    async def wait_for_change(self, timeout_s: float | None = None) -> bool:
        """See `Election`. Raises the error that ended the election, if any."""
        has_changed = await self._changes.wait(timeout_s)
        if self._task is not None and self._task.done():
            self._task.result()
        if self._registry.failure is not None:
            raise self._registry.failure
        return has_changed

    async def release(self, shard: int) -> None:
        """May be called at any time for any shard that the caller is not master of. It only affects shards that this
        node has locked but does not own."""
        if shard not in self._released_shards and shard in self._locked_shards() - self._owned_shards:
            self._released_shards |= {shard}
            self._loop.wake()

    async def report(self, health: NodeHealth) -> None:
        """Publish the health soon, or once ZooKeeper can be reached again."""
        self._me = replace(self._me, health=health)
        self._loop.wake()

    def members(self) -> Sequence[Member]:
        return self._registry.members()

    def masters(self) -> Mapping[int, str]:
        return self._registry.masters()

    def draining(self) -> bool:
        return self._registry.is_drain_requested(self._me.name)

    async def leave(self) -> None:
        """Takes a limited time. When this node's entry in `nodes` is deleted, all its locks are free at once."""
        if self._task is None:
            return
        self._registry.unlisten(self._on_change)
        self._task.cancel()
        await asyncio.wait([self._task])
        self._task = None
        self._owned_shards = self._shown_shards = self._released_shards = frozenset()
        with suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                await self._unregister()
        await self._close_detector()
        self._on_change()

    async def _turn(self) -> float:
        """Move the locks towards the allocation. Runs at every change."""
        if not self._registry.is_paused():
            me = self._own_registration()
            if me is None or me.session != self._registry.session.id:
                await self._replace_predecessor()
                await self._register()
            await self._publish_health()
            await self._claim_and_release()
        return _LOOK_S

    async def _claim_and_release(self) -> None:
        """Claim free shards that are allocated to this node; release shards that it has finished with."""
        me = self._own_registration()
        if me is None:
            return
        locked_shards, allocated_shards = self._locked_shards(), self._allocated_shards()
        busy_shards = frozenset(shard for shard, lock in self._registry.locks.items() if self._registry.is_held(lock))
        # A shard that `owned_shards` never returned has no master here that could finish.
        finished_shards = (locked_shards - allocated_shards) & (
            self._released_shards | (locked_shards - self._shown_shards)
        )
        own_lock = encode_lock(me.member.name, me.born)
        writes = [(shard, own_lock) for shard in sorted(allocated_shards - busy_shards)] + [
            (shard, NO_HOLDER) for shard in sorted(finished_shards)
        ]
        await asyncio.gather(*(self._write_lock(shard, data) for shard, data in writes))

    async def _write_lock(self, shard: int, data: bytes) -> None:
        path, session = self._registry.layout.lock(shard), self._registry.session
        lock: Lock | None = self._registry.locks.get(shard)
        znode = await (session.create(path, data) if lock is None else session.write(path, data, lock.version))
        if znode is None:
            self._registry.cache.touch(path)  # another node has written it
            return
        verb = "released" if data == NO_HOLDER else "claimed"
        log.info("shard %d is %s", shard, verb, extra={"action": verb, "shard": shard})
        self._registry.cache.put(path, znode)

    async def _publish_health(self) -> None:
        me, path, cache = self._own_registration(), self._path, self._registry.cache
        if me is None or me.member == self._me:
            return
        znode = await self._registry.session.write(path, encode_member(self._me, self._instance), me.version)
        if znode is None:
            cache.touch(path)
        else:
            cache.put(path, znode)

    async def _register(self) -> None:
        data = encode_member(self._me, self._instance)
        znode = await self._registry.session.create(self._path, data, ephemeral=True)
        if znode is None:
            self._registry.cache.touch(self._path)
            return
        self._registry.cache.put(self._path, znode)
        log.info("node %s takes part", self._me.name, extra={"action": "join", "node": self._me.name})

    async def _unregister(self) -> None:
        while (registration := await self._find()) is not None and registration.instance == self._instance:
            if await self._registry.session.delete(self._path, registration.version):
                self._registry.cache.put(self._path, None)

    async def _replace_predecessor(self) -> None:
        """Remove the entry of an earlier process with this name, or of an earlier session of this process.

        Raises BadConfig if that other process is alive.
        """
        session = self._registry.session
        deadline = asyncio.get_running_loop().time() + self._registry.options.session_timeout_s + 2
        while (registration := await self._find()) is not None:
            if registration.instance == self._instance:
                if registration.session == session.id:
                    return
                talk = ConnectionOutcome.STRANGER
            elif registration.member.link:
                peer = Peer(self._me.name, registration.member.link, registration.born, registration.instance)
                talk = await talk_to(peer, stay=False)
            else:
                talk = ConnectionOutcome.SILENT
            late = asyncio.get_running_loop().time() > deadline
            if talk in (ConnectionOutcome.REFUSED, ConnectionOutcome.STRANGER):
                await session.delete(self._path, registration.version)
            elif talk is ConnectionOutcome.ENDED or late:
                raise BadConfig(
                    f"another node named {self._me.name} is alive (it answers at {registration.member.url}): "
                    "choose another node.name"
                )
            else:
                await asyncio.sleep(_RETRY_S)  # the session of the entry may be about to expire

    async def _find(self) -> Registration | None:
        """Read this node's entry again. An unreadable entry is removed."""
        while (znode := await self._registry.session.read(self._path)) is not None:
            if (registration := decode_member(self._me.name, znode)) is not None:
                return registration
            await self._registry.session.delete(self._path, znode.version)
        return None

    def _own_registration(self) -> Registration | None:
        """This process's registration in ZooKeeper; None if there is none."""
        registration = self._registry.registrations.get(self._me.name)
        return registration if registration is not None and registration.instance == self._instance else None

    def _locked_shards(self) -> frozenset[int]:
        me = self._own_registration()
        if me is None:
            return frozenset()
        own_lock = (me.member.name, me.born)
        return frozenset(shard for shard, lock in self._registry.locks.items() if (lock.holder, lock.born) == own_lock)

    def _allocated_shards(self) -> frozenset[int]:
        table = allocate(self._registry.options.strategy, self._shards, self._registry.members())
        return frozenset(shard for shard, name in table.items() if name == self._me.name)

    def _on_change(self) -> None:
        """Handle a possible change. Shards that are no longer owned are given up at once, even during a pass."""
        if self._task is not None:
            locked_shards = self._locked_shards()
            self._owned_shards = locked_shards & self._allocated_shards()
            self._shown_shards &= locked_shards
            self._released_shards &= locked_shards - self._owned_shards
            if self._detector is not None:
                self._detector.follow(self._peers())
            self._loop.wake()
        view = (self._owned_shards, self.is_paused(), self.members(), self.masters(), self.draining())
        if view != self._last_view:
            self._last_view = view
            self._changes.tell()

    def _peers(self) -> list[Peer]:
        return [
            Peer(entry.member.name, entry.member.link, entry.born, entry.instance)
            for entry in self._registry.registrations.values()
            if entry.member.link and entry.instance != self._instance
        ]

    async def _on_dead(self, peer: Peer) -> None:
        with suppress(DuemqError):  # called again as long as the peer's entry exists
            await self._registry.remove_dead(peer.name, peer.born)

    async def _close_detector(self) -> None:
        if self._detector is not None:
            await self._detector.close()
            self._detector = None
