"""Which shards are called stuck."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from duemq.delay.probes.liveness import Liveness
from duemq.delay.shard.states import ShardState

LIMIT_S = 60.0


@dataclass
class FakeShard:
    pulse: float = 0.0
    state: ShardState = ShardState.LEADING


class Watch:
    def __init__(self) -> None:
        self.now, self.held_up = 0.0, False
        self.shards = {0: FakeShard(), 1: FakeShard()}
        self.liveness = Liveness(self.shards, LIMIT_S, lambda: self.held_up, now=lambda: self.now)


def test_a_shard_that_does_not_go_on_is_stuck_until_it_does() -> None:
    watch = Watch()
    watch.now = watch.shards[1].pulse = LIMIT_S
    assert watch.liveness.check() == {}
    watch.now = LIMIT_S + 1
    assert watch.liveness.check() == {0: LIMIT_S + 1}
    watch.shards[0].pulse = watch.now
    assert watch.liveness.check() == {}


def test_time_in_which_something_else_holds_it_up_does_not_count() -> None:
    watch = Watch()
    watch.held_up = True
    watch.now = 10 * LIMIT_S
    assert watch.liveness.check() == {}
    watch.held_up = False
    watch.now += LIMIT_S
    assert watch.liveness.check() == {}, "it is given the whole time anew"
    watch.now += 1
    assert watch.liveness.check().keys() == {0, 1}


@pytest.mark.parametrize("state", [ShardState.REBUILDING, ShardState.STOPPED, ShardState.CLOSED])
def test_a_shard_without_work_is_not_stuck(state: ShardState) -> None:
    watch = Watch()
    watch.shards[0].state = state
    watch.now = LIMIT_S + 1
    assert watch.liveness.check().keys() == {1}
    watch.shards[0].state = ShardState.FOLLOWING
    watch.now += LIMIT_S
    assert watch.liveness.check().keys() == {1}
    watch.now += 1
    assert watch.liveness.check().keys() == {0, 1}
