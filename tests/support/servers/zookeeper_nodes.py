"""Nodes of an election on a real ZooKeeper: in this process, and in separate processes that can be killed."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import orjson

from duemq.election.base import Member, NodeHealth, NodeState
from duemq.election.zookeeper.election import ZooKeeperElection
from duemq.election.zookeeper.options import ZooKeeperOptions
from duemq.election.zookeeper.registry import Registry
from tests.support.patience import SERVERS_S

READY = NodeHealth(NodeState.READY)


class Node:
    """A node whose masters finish at once: what the election takes away is released in the same moment."""

    def __init__(self, registry: Registry, election: ZooKeeperElection, name: str) -> None:
        self.registry, self.election, self.name = registry, election, name
        self.hands_over = True

    async def obey(self) -> None:
        while True:
            await self.election.wait_for_change()
            for shard in range(64):
                if self.hands_over and shard not in self.election.owned_shards():
                    await self.election.release(shard)


class Cluster:
    """Nodes in one event loop, each with a separate session."""

    def __init__(self, options: ZooKeeperOptions, shards: int, stack: AsyncExitStack) -> None:
        self.options, self.shards, self._stack = options, shards, stack
        self.nodes: dict[str, Node] = {}

    async def registry(self) -> Registry:
        registry = Registry(self.options)
        await registry.open()
        self._stack.push_async_callback(registry.close)
        return registry

    async def add(self, name: str, rack: str = "", health: NodeHealth = READY) -> Node:
        registry = await self.registry()
        election = ZooKeeperElection(registry, Member(name, "http://127.0.0.1:1", rack=rack), self.shards)
        await election.report(health)
        await election.join()
        self._stack.push_async_callback(election.leave)
        node = self.nodes[name] = Node(registry, election, name)
        obeying = asyncio.create_task(node.obey(), name=f"obey-{name}")
        self._stack.callback(obeying.cancel)
        return node

    def owned(self, *names: str) -> Mapping[int, str]:
        """The owner of each shard, by what these nodes (default: all) say themselves. No shard may have two."""
        table: dict[int, str] = {}
        for name in names or self.nodes:
            for shard in self.nodes[name].election.owned_shards():
                assert shard not in table, f"shard {shard} is owned by {table[shard]} and {name}"
                table[shard] = name
        return table

    async def until(self, node: Node, condition: Callable[[], bool], within_s: float = SERVERS_S) -> float:
        """Seconds until it holds, looked at when anything changes for `node`."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        async with asyncio.timeout(within_s):
            while not condition():
                await node.election.wait_for_change(0.05)
        return loop.time() - started

    async def settled(self, *names: str) -> None:
        """Until these nodes (default: all) own every shard, each its part."""
        names = names or tuple(self.nodes)

        def even() -> bool:
            load = Counter(self.owned(*names).values())
            return load.total() == self.shards and max(load.values()) <= -(-self.shards // len(names))

        await self.until(self.nodes[names[0]], even)


@asynccontextmanager
async def cluster(options: ZooKeeperOptions, shards: int = 8) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        yield Cluster(options, shards, stack)


@asynccontextmanager
async def child(options: ZooKeeperOptions, name: str, shards: int = 8) -> AsyncIterator[asyncio.subprocess.Process]:
    """A node that is alone in its process; it has joined."""
    told = orjson.dumps({"hosts": options.hosts, "chroot": options.chroot, "session": options.session_timeout_s})
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", __file__, told.decode(), name, str(shards), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(SERVERS_S):
            assert await process.stdout.readline() == b"joined\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def _run_child(told: str, name: str, shards: str) -> None:
    fields = orjson.loads(told)
    options = ZooKeeperOptions(fields["hosts"], fields["chroot"], session_timeout_s=fields["session"])
    async with cluster(options, int(shards)) as alone:
        await alone.add(name)
        print("joined", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_run_child(*sys.argv[1:]))
