"""Allocation strategies: complete, balanced, the same everywhere, and moving little."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.election.allocation import STRATEGIES, StrategyName, allocate, consistent_hash
from duemq.election.base import Member, NodeHealth, NodeState

READY = NodeHealth(NodeState.READY)
SHARDS = st.integers(1, 64).map(range)
NAMES = st.lists(st.from_regex(r"[a-z]{1,3}-[0-9]{1,2}", fullmatch=True), min_size=1, max_size=8, unique=True)
FLAT = [StrategyName.AVERAGE, StrategyName.CIRCLE, StrategyName.CONSISTENT_HASH]


def node(name: str, rack: str = "", health: NodeHealth = READY, holds: frozenset[int] | None = None) -> Member:
    return Member(name, f"http://{name}", rack=rack, holds=holds, health=health)


NODES = NAMES.flatmap(
    lambda names: st.tuples(*(st.builds(node, st.just(name), st.sampled_from("abc")) for name in names))
)


def loads(names: Iterable[str], keys: Iterable[str]) -> list[int]:
    counted = Counter(names)
    return [counted[key] for key in keys]


@pytest.mark.parametrize("strategy", StrategyName)
@given(SHARDS, NODES, st.randoms(use_true_random=False))
def test_every_shard_has_a_node_whatever_the_order(
    strategy: StrategyName, shards: range, nodes: tuple[Member, ...], random: Random
) -> None:
    table = STRATEGIES[strategy](shards, nodes)
    assert set(table) == set(shards)
    assert set(table.values()) <= {member.name for member in nodes}
    mixed_shards, mixed_nodes = list(shards), list(nodes)
    random.shuffle(mixed_shards)
    random.shuffle(mixed_nodes)
    assert STRATEGIES[strategy](mixed_shards, mixed_nodes) == table


@pytest.mark.parametrize("strategy", FLAT)
@given(SHARDS, NODES)
def test_no_node_has_two_shards_more_than_another(
    strategy: StrategyName, shards: range, nodes: tuple[Member, ...]
) -> None:
    load = loads(STRATEGIES[strategy](shards, nodes).values(), [member.name for member in nodes])
    assert max(load) - min(load) <= 1


@given(SHARDS, NODES)
def test_racks_are_balanced_and_so_are_the_nodes_of_each(shards: range, nodes: tuple[Member, ...]) -> None:
    table = STRATEGIES[StrategyName.SAME_RACK](shards, nodes)
    racks: defaultdict[str, list[str]] = defaultdict(list)
    for member in nodes:
        racks[member.rack].append(member.name)
    of_rack = {rack: loads(table.values(), names) for rack, names in racks.items()}
    totals = [sum(load) for load in of_rack.values()]
    assert max(totals) - min(totals) <= 1
    assert all(max(load) - min(load) <= 1 for load in of_rack.values())


@given(SHARDS, NODES, st.data())
def test_a_node_that_goes_leaves_its_shards_to_its_rack(
    shards: range, nodes: tuple[Member, ...], data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(nodes))
    left = [member for member in nodes if member is not gone]
    if not any(member.rack == gone.rack for member in left):
        return
    rack = {member.name: member.rack for member in nodes}
    before, after = (STRATEGIES[StrategyName.SAME_RACK](shards, members) for members in (nodes, left))
    assert {shard: rack[name] for shard, name in before.items()} == {shard: rack[name] for shard, name in after.items()}


def test_with_consistent_hash_little_moves_beside_the_shards_of_the_node_that_goes() -> None:
    besides = []
    for count in (8, 16, 64):
        for size in (3, 4, 5, 8):
            nodes = [node(f"node-{number}") for number in range(size)]
            whole = consistent_hash(range(count), nodes)
            for gone in nodes:
                rest = consistent_hash(range(count), [member for member in nodes if member is not gone])
                moved = sum(whole[shard] not in (gone.name, rest[shard]) for shard in whole)
                assert moved <= count / 2
                besides.append(moved / (count / size))
    assert sum(besides) / len(besides) < 0.5


def test_the_table_is_the_same_in_every_process() -> None:
    code = (
        "from duemq.election.allocation import consistent_hash; from duemq.election.base import Member;"
        "print(sorted(consistent_hash(range(16), [Member(n, '') for n in 'abc']).items()))"
    )
    there = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert there == str(sorted(consistent_hash(range(16), [node(name) for name in "abc"]).items()))


@pytest.mark.parametrize("strategy", StrategyName)
def test_only_ready_nodes_are_given_shards_and_draining_ones_where_none_is_ready(strategy: StrategyName) -> None:
    drained, joining, out = (
        node(state.value, health=NodeHealth(state)) for state in (NodeState.DRAINING, NodeState.JOINING, NodeState.OUT)
    )
    assert set(allocate(strategy, range(8), [drained, joining, node("b"), out]).values()) == {"b"}
    assert set(allocate(strategy, range(8), [drained, joining, out]).values()) == {"draining"}
    assert allocate(strategy, range(8), [joining, out]) == {}


@pytest.mark.parametrize("strategy", StrategyName)
def test_a_shard_goes_to_a_node_that_holds_it(strategy: StrategyName) -> None:
    even, odd = frozenset(range(0, 16, 2)), frozenset(range(1, 16, 2))
    workers = [node(f"{name}-{k}", holds=holds) for name in "ab" for k, holds in enumerate((even, odd))]
    table = allocate(strategy, range(17), workers)
    assert set(table) == set(range(16))
    assert all(table[shard].endswith(str(shard % 2)) for shard in table)
    assert Counter(table.values()) == dict.fromkeys([worker.name for worker in workers], 4)
