"""The arithmetic of lag."""

from __future__ import annotations

import pytest

from duemq.client.lag import LagReader
from duemq.client.lag.values import (
    FirstMessage,
    GroupLag,
    GroupState,
    Matches,
    OffsetAndTime,
    PartitionEnds,
    PartitionLag,
    by_topic,
    clamped,
    measured,
)
from duemq.model.errors import Rejected

NOW = 1_000_000


def lag_of(
    place: OffsetAndTime, ends: PartitionEnds, oldest: FirstMessage | None = None, waiting: FirstMessage | None = None
) -> PartitionLag:
    return measured("orders", 0, place, ends, NOW, oldest, waiting)


def figures(one: PartitionLag) -> tuple[int | None, ...]:
    return one.lag, one.inflight, one.available


@pytest.mark.parametrize(
    ("place", "meant"),
    [
        (OffsetAndTime(5, 7), (5, 7)),
        (OffsetAndTime(5, None), (5, None)),
        (OffsetAndTime(2, 3), (4, 4)),  # retention removed both
        (OffsetAndTime(2, 9), (4, 9)),
        (OffsetAndTime(5, 12), (5, 10)),
        (OffsetAndTime(11, 12), (10, 10)),
        (OffsetAndTime(7, 5), (7, 7)),
        (OffsetAndTime(None, None), (None, None)),
    ],
)
def test_places_are_brought_into_the_log(place: OffsetAndTime, meant: tuple[int | None, int | None]) -> None:
    assert clamped(place, PartitionEnds(4, 10)) == meant


def test_lag_is_what_is_in_hand_and_what_is_not_pulled() -> None:
    one = lag_of(OffsetAndTime(2, 5), PartitionEnds(0, 10), FirstMessage(2, NOW - 900), FirstMessage(6, NOW - 300))
    assert figures(one) == (8, 3, 5)
    assert (one.lag_ms, one.inflight_ms, one.available_ms, one.state, one.lost) == (900, 900, 300, GroupState.OK, 0)


def test_only_markers_are_nothing() -> None:
    assert figures(lag_of(OffsetAndTime(2, 5), PartitionEnds(0, 10))) == (0, 0, 0)
    assert figures(lag_of(OffsetAndTime(2, None), PartitionEnds(0, 10))) == (0, None, None)
    in_hand = lag_of(OffsetAndTime(2, 5), PartitionEnds(0, 10), FirstMessage(4, NOW))
    assert figures(in_hand) == (3, 3, 0)
    behind = lag_of(OffsetAndTime(2, 5), PartitionEnds(0, 10), FirstMessage(7, NOW - 40), FirstMessage(7, NOW - 40))
    assert (figures(behind), behind.inflight_ms, behind.available_ms) == ((5, 0, 5), 0, 40)


def test_what_is_not_known_is_none() -> None:
    one = lag_of(OffsetAndTime(None, None), PartitionEnds(0, 10))
    assert (one.state, figures(one), one.lag_ms) == (GroupState.NO_COMMIT, (None, None, None), None)
    one = lag_of(OffsetAndTime(4, None), PartitionEnds(0, 10), FirstMessage(4, NOW - 7))
    assert (figures(one), one.lag_ms, one.inflight_ms, one.available_ms) == ((6, None, None), 7, None, None)


def test_lost_and_ahead() -> None:
    one = lag_of(OffsetAndTime(1, 2), PartitionEnds(4, 10), FirstMessage(4, NOW), FirstMessage(4, NOW))
    assert (one.state, one.lost, figures(one)) == (GroupState.REMOVED, 3, (6, 0, 6))
    one = lag_of(OffsetAndTime(11, 11), PartitionEnds(4, 10))
    assert (one.state, one.lost, figures(one)) == (GroupState.AHEAD, 0, (0, 0, 0))


def test_totals() -> None:
    parts = [
        PartitionLag("b", 1, GroupState.OK, lag=5, inflight=2, available=3, lag_ms=9, inflight_ms=9, available_ms=1),
        PartitionLag(
            "b", 0, GroupState.OK, lag=1, inflight=0, available=1, lag_ms=4, inflight_ms=0, available_ms=4, lost=3
        ),
        PartitionLag("retry.g", 0, GroupState.OK, lag=7, lag_ms=70),
        PartitionLag("a", 0, GroupState.NO_COMMIT),
    ]
    topics = by_topic("g", parts)
    assert [(one.topic, one.retry, [part.partition for part in one.partitions]) for one in topics] == [
        ("a", False, [0]), ("b", False, [0, 1]), ("retry.g", True, [0]),
    ]  # fmt: skip
    group = GroupLag("g", "Stable", 1, topics)
    total = group.total
    assert (total.partitions, total.unknown, total.lag, total.inflight, total.available) == (3, 1, 6, 2, 4)
    assert (total.lag_ms, total.inflight_ms, total.available_ms, total.lost, total.matching) == (9, 9, 4, 3, None)
    retry = group.retry_total
    assert (retry.lag, retry.inflight, retry.available, retry.lag_ms, retry.inflight_ms) == (7, None, None, 70, None)
    alone = topics[0].total
    assert (alone.unknown, alone.lag, alone.lag_ms) == (1, None, None)


def test_one_that_does_not_tell_makes_the_total_unknown() -> None:
    parts = [
        PartitionLag("b", 0, GroupState.OK, lag=5, inflight=2, available=3),
        PartitionLag("b", 1, GroupState.OK, lag=1),
    ]
    total = by_topic("g", parts)[0].total
    assert (total.lag, total.inflight, total.available) == (6, None, None)


def test_a_total_is_exact_if_all_parts_are() -> None:
    parts = [PartitionLag("b", at, GroupState.OK, lag=5, matching=Matches(at + 1, at < 2)) for at in range(3)]
    assert by_topic("g", parts)[0].total.matching == Matches(6, False)
    assert by_topic("g", parts[:2])[0].total.matching == Matches(3, True)


def test_an_option_out_of_its_limits_is_named() -> None:
    with pytest.raises(Rejected, match="max_offsets") as refused:
        LagReader("nowhere:1", max_offsets=0)
    assert refused.value.field == "max_offsets"
