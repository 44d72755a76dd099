"""Which nodes are asked for a replica, and in which order."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from duemq.delay.api.peers import HttpPeers
from duemq.election.base import Member, NodeHealth, NodeState


class View:
    def __init__(self, members: list[Member], masters: Mapping[int, str]) -> None:
        self._members, self._masters = members, masters

    def members(self) -> list[Member]:
        return self._members

    def masters(self) -> Mapping[int, str]:
        return self._masters


def member(
    name: str, state: NodeState = NodeState.READY, *, unfit: str = "", holds: frozenset[int] | None = None
) -> Member:
    health = NodeHealth(state, unfit={0: unfit} if unfit else {})
    return Member(name, f"http://{name}", holds=holds, health=health)


STANDBY, MASTER = member("a"), member("m")
OUT, JOINING = member("o", NodeState.OUT), member("j", NodeState.JOINING)


@pytest.mark.parametrize(
    ("others", "asked"),
    [
        ([STANDBY, MASTER], ["a", "m"]),  # the master has more to do
        ([STANDBY, MASTER, member("z", NodeState.DRAINING)], ["a", "z", "m"]),
        ([STANDBY, member("b", unfit="shard 0 is stopped"), MASTER], ["m", "a"]),
        ([STANDBY, member("b", NodeState.OUT, unfit="all are behind"), MASTER], ["m", "a"]),
        ([member("b", unfit="behind"), member("m", unfit="behind")], []),
        ([OUT, JOINING, member("e", holds=frozenset({1}))], []),
    ],
)
def test_only_a_fit_replica_is_copied_and_the_masters_first_where_one_is_unfit(
    others: list[Member], asked: list[str]
) -> None:
    peers = HttpPeers(View([member("me", unfit="behind"), *others], {0: "m"}), "me")
    assert [peer.name for peer in peers._holders(0)] == asked
    assert peers.can_copy(0) == bool(asked)
