"""Chooses the node that should be master of each shard, by pure functions of the shards and the live nodes.

The strategies are those of RocketMQ's `AllocateMessageQueueStrategy`. Every node computes the same table from the same
members, in any order. Nodes that see different members may disagree for a while. Then the locks decide, and the tables
agree again once the nodes see the same members.

Each strategy is complete (every shard gets a node) and exactly balanced (the nodes' numbers of shards differ by at most
one; with `same_rack`, this is true within each rack, and of the racks' totals). The strategies differ in how many
shards move when a node joins or leaves.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b

from duemq.election.base import Member, NodeState

Strategy = Callable[[Sequence[int], Sequence[Member]], dict[int, str]]

_POINTS_PER_NODE = 64


class StrategyName(StrEnum):
    AVERAGE = "average"
    CIRCLE = "circle"
    CONSISTENT_HASH = "consistent_hash"
    SAME_RACK = "same_rack"


def average(shards: Sequence[int], members: Sequence[Member]) -> dict[int, str]:
    """Blocks of consecutive shards. If the division leaves a remainder, the first nodes by name get one more shard."""
    names, table = _names(members), {}
    share, longer = divmod(len(shards), len(names))
    rest = iter(sorted(shards))
    for place, name in enumerate(names):
        for _ in range(share + (place < longer)):
            table[next(rest)] = name
    return table


def circle(shards: Sequence[int], members: Sequence[Member]) -> dict[int, str]:
    """Round robin."""
    names = _names(members)
    return {shard: names[place % len(names)] for place, shard in enumerate(sorted(shards))}


def consistent_hash(shards: Sequence[int], members: Sequence[Member]) -> dict[int, str]:
    """The next node on the ring that has room (consistent hashing with bounded loads, Mirrokni et al. 2016).

    The bound is as tight as possible. The price for this: in addition to the shards that a leaving node had, or that a
    new node gets, other shards move to restore the balance. In trials with 8 to 64 shards and 2 to 8 nodes, these were
    on average less than half a node's share and never more than half of all shards.
    """
    return _on_ring(shards, _names(members))


def same_rack(shards: Sequence[int], members: Sequence[Member]) -> dict[int, str]:
    """Shards are allocated to racks first, then to the nodes in each rack, both by consistent hashing.

    So when a node leaves, its shards stay in its rack if the rack has another node. Nodes without a rack count as one
    rack. Racks get equal shares, whatever their numbers of nodes.
    """
    by_rack: defaultdict[str, list[Member]] = defaultdict(list)
    for member in members:
        by_rack[member.rack].append(member)
    table: dict[int, str] = {}
    for rack, its_shards in _invert(_on_ring(shards, sorted(by_rack))).items():
        table |= consistent_hash(its_shards, by_rack[rack])
    return table


STRATEGIES: Mapping[StrategyName, Strategy] = {
    StrategyName.AVERAGE: average,
    StrategyName.CIRCLE: circle,
    StrategyName.CONSISTENT_HASH: consistent_hash,
    StrategyName.SAME_RACK: same_rack,
}


def allocate(strategy: StrategyName, shards: Iterable[int], members: Iterable[Member]) -> dict[int, str]:
    """The node for each shard that can have one: a ready node with a replica that can lead, or else such a draining
    node.

    Shards that can go to the same nodes are balanced among those nodes.
    """
    members = list(members)
    groups: defaultdict[frozenset[str], list[int]] = defaultdict(list)
    for shard in shards:
        groups[_candidates(shard, members)].append(shard)
    table: dict[int, str] = {}
    for names, its_shards in groups.items():
        if names:
            table |= STRATEGIES[strategy](its_shards, [member for member in members if member.name in names])
    return table


def _candidates(shard: int, members: Iterable[Member]) -> frozenset[str]:
    holders = [member for member in members if member.can_lead(shard)]
    for state in (NodeState.READY, NodeState.DRAINING):
        if names := frozenset(member.name for member in holders if member.health.state is state):
            return names
    return frozenset()


def _on_ring(shards: Iterable[int], names: Sequence[str]) -> dict[int, str]:
    ring = sorted((point, name) for name in names for point in _points(name))
    points = [point for point, _ in ring]
    by_hash = sorted((_hash(f"shard {shard}"), shard) for shard in shards)
    share, longer = divmod(len(by_hash), len(names))
    load: Counter[str] = Counter()
    table: dict[int, str] = {}
    for place, shard in by_hash:
        first = bisect_left(points, place)
        for step in range(len(ring)):
            name = ring[(first + step) % len(ring)][1]
            if load[name] < share or (load[name] == share and longer > 0):
                longer -= load[name] == share
                load[name] += 1
                table[shard] = name
                break
    return table


@lru_cache(maxsize=1024)
def _points(name: str) -> tuple[int, ...]:
    return tuple(_hash(f"{name}#{number}") for number in range(_POINTS_PER_NODE))


def _hash(text: str) -> int:
    """A hash that is the same in every process, unlike `hash`."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


def _names(members: Iterable[Member]) -> list[str]:
    return sorted(member.name for member in members)


def _invert(table: Mapping[int, str]) -> dict[str, list[int]]:
    shards_by_name: defaultdict[str, list[int]] = defaultdict(list)
    for shard, name in table.items():
        shards_by_name[name].append(shard)
    return shards_by_name
