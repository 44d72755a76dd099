"""The arithmetic of lag, and what a sample says of the whole."""

from __future__ import annotations

import random

import pytest

from duemq.client.lag.sampling import Estimate, Sampling, counted, draws, total_of, wilson
from duemq.client.lag.values import (
    FirstMessage,
    GroupLag,
    GroupState,
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


# --- sampling -----------------------------------------------------------------------------------------------------


def test_wilson_as_published() -> None:
    """Newcombe (1998), Statistics in Medicine 17, table I: 81 of 263, and 15 of 148 and 0 of 20."""
    for hits, sample, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611)):
        told = wilson(hits, sample, 1_000_000)
        assert abs(told.low / 1e6 - low) < 1e-4 and abs(told.high / 1e6 - high) < 1e-4
        assert told.messages == round(hits / sample * 1_000_000) and not told.exact


def test_what_was_looked_at_is_certain() -> None:
    assert wilson(90, 95, 100) == Estimate(95, 90, 95, 95, False)
    assert wilson(3, 10, 10) == counted(3, 10) == Estimate(3, 3, 3, 10, True)
    assert wilson(0, 0, 50) == Estimate(0, 0, 50, 0, False)
    assert (wilson(3, 10, 10).error, Estimate(10, 4, 13, 5, False).error) == (0, 6)


def test_errors_add_up_as_squares() -> None:
    total = total_of([Estimate(100, 70, 140, 10, False), Estimate(50, 10, 80, 20, False), counted(7, 9)])
    assert total == Estimate(157, 107, 207, 39, False)
    assert total_of([counted(1, 2), counted(3, 4)]) == counted(4, 6)


def test_the_interval_holds_19_times_of_20() -> None:
    rng = random.Random(1)
    held = 0
    for _ in range(2_000):
        share, hits = rng.choice((0.02, 0.3, 0.9)), 0
        offsets, sample = 100_000, 300
        hits = sum(rng.random() < share for _ in range(sample))
        told = wilson(hits, sample, offsets)
        held += told.low <= share * offsets <= told.high
    assert 0.93 < held / 2_000 < 0.97


def test_draws_are_different_and_in_proportion() -> None:
    drawn = draws({"a": (10, 1010), "b": (0, 9000), "c": (5, 15)}, 500, random.Random(1))
    assert {part: len(offsets) for part, offsets in drawn.items()} == {"a": 50, "b": 450, "c": 10}
    assert all(len(set(offsets)) == len(offsets) for offsets in drawn.values())
    assert min(drawn["a"]) >= 10 and max(drawn["a"]) < 1010 and set(drawn["c"]) == set(range(5, 15))
    assert drawn["b"] != sorted(drawn["b"])


@pytest.mark.parametrize("name", ["exact", "offsets", "max_bytes"])
def test_an_option_out_of_its_limits_is_named(name: str) -> None:
    with pytest.raises(Rejected, match=name) as refused:
        Sampling(**{name: -1})
    assert refused.value.field == name
