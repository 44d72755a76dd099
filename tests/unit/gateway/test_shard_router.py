"""Queue selection, and what a gateway makes of it."""

from __future__ import annotations

from collections import Counter

from duemq.bus.partitioner import partition_of
from duemq.proxy.gateway.shard_router import ByKey, LeastLatency, RoundRobin, router_of


def test_round_robin_takes_every_shard_in_turn() -> None:
    selection = RoundRobin(3)
    assert [selection.pick(b"k") for _ in range(6)] == [0, 1, 2, 0, 1, 2]


def test_a_key_has_one_shard_and_the_keyless_take_turns() -> None:
    selection = ByKey(4)
    keys = [b"%d" % number for number in range(100)]
    assert [selection.pick(key) for key in keys] == [partition_of(key, 4) for key in keys]
    assert [selection.pick() for _ in range(4)] == [0, 1, 2, 3]
    assert selection.ordered and not router_of("round_robin", 2).ordered


class Shards:
    """Shards with a latency each (s), None for one that fails, and a clock that goes on by that."""

    def __init__(self, latencies: list[float | None], explore: int = 20) -> None:
        self.latencies, self.now = latencies, 100.0
        self.selection = LeastLatency(len(latencies), rest_s=5.0, explore=explore, clock=lambda: self.now)

    def send(self, count: int) -> Counter[int]:
        picked: Counter[int] = Counter()
        for _ in range(count):
            shard = self.selection.pick()
            picked[shard] += 1
            latency = self.latencies[shard]
            self.now += latency or 0.01
            if latency is None:
                self.selection.failed(shard)
            else:
                self.selection.measured(shard, latency)
        return picked


def test_the_quick_shards_share_the_load_and_a_slow_one_is_only_tried() -> None:
    shards = Shards([0.002, 0.050, 0.0021, 0.002])
    shards.send(20)
    picked = shards.send(1000)
    assert 0 < picked[1] <= 1000 / 20
    assert min(picked[shard] for shard in (0, 2, 3)) > 250


def test_a_slow_shard_that_recovers_gets_its_share_again() -> None:
    shards = Shards([0.002, 0.050])
    shards.send(100)
    shards.latencies[1] = 0.002
    shards.send(2000)
    assert shards.send(100)[1] > 40


def test_a_failed_shard_rests_and_is_then_tried_again() -> None:
    shards = Shards([0.002, None])
    shards.send(10)
    assert shards.send(100)[1] == 0
    shards.now += 5
    shards.latencies[1] = 0.002
    assert shards.send(10)[1] > 2


def test_where_all_failed_all_are_tried() -> None:
    assert set(Shards([None, None, None]).send(30)) == {0, 1, 2}
