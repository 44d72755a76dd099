"""The network is cut between processes that all live, and heals."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.faults import partitions
from tests.chaos.shape import Shape
from tests.chaos.world import World

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("chaos")]

_SMALL = Shape(network=True)
_THREE_BROKERS = Shape(brokers=3, network=True)
# One shard, and nobody who takes over has anything else to do: a partition of another shard, led by the broker that is
# cut off, would tell it in time that something is wrong.
_ONE_SHARD = Shape(brokers=3, network=True, shards=1, nodes=2)


def test_master_is_cut_off_from_the_brokers(world: Callable[..., World]) -> None:
    world(_SMALL).run(partitions.cut_master_from_brokers)


@pytest.mark.slow
def test_master_is_cut_off_from_zookeeper(world: Callable[..., World]) -> None:
    world(_SMALL).run(partitions.cut_master_from_zookeeper)


@pytest.mark.slow
def test_a_leader_of_the_ledger_is_deposed_and_does_not_know(world: Callable[..., World]) -> None:
    world(_ONE_SHARD).run(partitions.depose_a_leader)


@pytest.mark.slow
def test_broker_is_cut_off_from_the_other_brokers(world: Callable[..., World]) -> None:
    world(_THREE_BROKERS).run(partitions.cut_broker_from_brokers)


@pytest.mark.slow
def test_broker_is_cut_off_from_duemq(world: Callable[..., World]) -> None:
    world(_THREE_BROKERS).run(partitions.cut_broker_from_duemq)


@pytest.mark.slow
def test_broker_is_slow_in_one_direction(world: Callable[..., World]) -> None:
    world(_THREE_BROKERS).run(partitions.slow_down_a_broker)
