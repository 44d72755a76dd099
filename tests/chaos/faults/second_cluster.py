"""A second duemq on the same brokers and the same ZooKeeper, and a third that takes the name of the first."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from duemq.dev.cluster.duemq_process import DuemqProcess
from duemq.dev.servers.ports import free_port
from tests.chaos.faults import nodes
from tests.chaos.topics import committed, make_topic
from tests.chaos.world import World
from tests.e2e.load import Load
from tests.e2e.reconcile import final_states, nothing_pending, reconcile

_SENDERS, _PAUSE_S, _DUE_S, _LOAD_S = 2, 0.05, 300.0, 3.0


async def run_second_cluster(world: World) -> None:
    """Its load goes on while masters of both are killed. Its messages are reconciled as those of the first are."""
    topic = f"neighbour.{world.load.topic}.{world.chance.randrange(1 << 32):08x}"
    with ExitStack() as stack:
        node, proxy = (_process(world, kind, f"neighbour-{kind}", stack) for kind in ("node", "proxy"))
        for process in (node, proxy):
            await asyncio.to_thread(process.start)
        stranger = _process(world, "node", "stranger", stack, **{"cluster": "duemq", "zookeeper.chroot": "/elsewhere"})
        stranger.spawn()
        await make_topic(world.bootstrap, topic, 3, world.shape.brokers)
        load = Load([proxy.url], world.chance.randrange(1 << 32), topic, _PAUSE_S)
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run(_SENDERS), name="load of the neighbour")
            load.up.set()
            await asyncio.sleep(_LOAD_S)
            node.process.kill()
            await nodes.kill_master(world)
            await asyncio.to_thread(node.start)
            await asyncio.sleep(_LOAD_S)
            load.stop()
        await nothing_pending(proxy.url, topic, _DUE_S)
        reconcile(load.messages.values(), await committed(world.bootstrap, topic))
        await final_states([proxy.url], list(load.messages.values()))

        async def refused() -> bool:
            return not stranger.process.running

        await world.until(refused, "a stranger of the same name to end")
        assert "they are another cluster's" in stranger.log.read_text()
        for process in (proxy, node):
            assert await asyncio.to_thread(process.process.stop) == 0
            assert "Traceback" not in process.log.read_text()


def _process(world: World, kind: str, name: str, stack: ExitStack, **settings: str) -> DuemqProcess:
    common = dict(world.cluster.nodes[0].settings) | {"cluster": "neighbour", "topics.partitions": "0", **settings}
    process = DuemqProcess(kind, name, free_port(), world.folder, common)
    stack.callback(process.process.kill)
    return process
