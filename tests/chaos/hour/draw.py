"""All breakages there are, drawn at random by a seed: each kind comes once before any comes again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random

from tests.chaos.faults import (
    clocks,
    copies,
    machines,
    neighbours,
    nodes,
    own_topics,
    partitions,
    replicas,
    second_cluster,
    servers,
    topics,
    versions,
)
from tests.chaos.faults.topics import BAD_TOPICS, BadTopic
from tests.chaos.world import World


@dataclass(frozen=True, slots=True)
class Breakage:
    """`servers`: how many brokers, and how many servers of ZooKeeper, it takes."""

    name: str
    act: Callable[[World], Awaitable[None]]
    servers: int = 1


async def _kill_some_broker(world: World) -> None:
    await servers.kill_broker(world, world.chance.choice(world.cluster.kafka.numbers))


async def _kill_in_some_cycle(step: str, world: World) -> None:
    await nodes.kill_in_cycle(world, step, world.chance.randrange(1, 60))


async def _come_back(kind: str, world: World) -> None:
    await copies.one_comes_back(world, (kind,))


async def _stand_beside(bad: BadTopic, world: World) -> None:
    await topics.stand_beside(world, bad, per_s=100, seconds=5)


async def _delete_own(topic: str, world: World) -> None:
    await own_topics.delete(world, topic)


async def _step(act: Callable[[World, int], Awaitable[None]], step_ms: int, world: World) -> None:
    await act(world, step_ms)


BREAKAGES = (
    Breakage("kill -9 of a master", nodes.kill_master),
    Breakage("kill -9 of all nodes", nodes.kill_all_nodes),
    Breakage("SIGSTOP of a master past its session", nodes.freeze_master),
    *(
        Breakage(f"kill -9 in a cycle: {step}", partial(_kill_in_some_cycle, step))
        for step in ("before_commit", "in_transaction", "after_commit")
    ),
    Breakage("rolling restart", nodes.restart_one_by_one),
    Breakage("drain and resume", nodes.drain_and_resume),
    Breakage("rolled back to the earlier version, and forward", versions.roll_back_and_forward),
    Breakage("all of ZooKeeper killed", servers.restart_zookeeper),
    Breakage("ZooKeeper's leader killed", servers.kill_zookeeper_leader, servers=3),
    Breakage("ZooKeeper's quorum lost", servers.lose_zookeeper_quorum, servers=3),
    Breakage("a broker killed", _kill_some_broker, servers=3),
    Breakage("all brokers restarted", servers.restart_all_brokers),
    Breakage("proxies killed", servers.kill_proxies),
    Breakage("a second cluster on the same Kafka", second_cluster.run_second_cluster),
    Breakage("a disk wiped", machines.wipe_disk),
    Breakage("a disk that fails", machines.fail_disk),
    *(
        Breakage(f"logs emptied, a node comes back: {kind}", partial(_come_back, kind))
        for kind in ("stale", "empty", "backup")
    ),
    Breakage("logs emptied, all nodes start, an empty one first", copies.an_empty_one_comes_first),
    Breakage("a stopped and a stale replica beside a sound master", replicas.unsound_beside_a_master),
    Breakage("a copy on a disk without room", replicas.copy_without_room),
    Breakage("a leader deposed", partitions.depose_a_leader, servers=3),
    Breakage("a broker cut off from the brokers", partitions.cut_broker_from_brokers, servers=3),
    Breakage("a broker cut off from duemq, both ways and one way", partitions.cut_broker_from_duemq),
    Breakage("a master cut off from the brokers", partitions.cut_master_from_brokers),
    Breakage("a master cut off from ZooKeeper", partitions.cut_master_from_zookeeper),
    Breakage("a broker slow in one direction", partitions.slow_down_a_broker),
    *(
        Breakage(f"the clock of a {kind} an hour {where}", partial(_step, act, step_ms))
        for kind, act in (
            ("master", clocks.step_master), ("standby", clocks.step_standby), ("proxy", clocks.step_proxy),
        )
        for where, step_ms in (("ahead", clocks.HOUR_MS), ("back", -clocks.HOUR_MS))
    ),
    Breakage("a stranger's transaction open on the buffer", neighbours.hold_a_transaction_open),
    *(Breakage(f"{topic} deleted", partial(_delete_own, topic)) for topic in own_topics.ADMINISTRATIVE),
    Breakage("administrative topics without a leader", own_topics.lose_the_leaders, servers=3),
    *(Breakage(f"bad topic: {bad.name}", partial(_stand_beside, bad), bad.brokers) for bad in BAD_TOPICS),
)  # fmt: skip


def draw(chance: Random, servers: int = 3) -> Iterator[Breakage]:
    """For ever. `servers`: how many of Kafka and of ZooKeeper there are; what takes more is left out."""
    possible = [breakage for breakage in BREAKAGES if breakage.servers <= servers]
    while True:
        yield from chance.sample(possible, len(possible))
