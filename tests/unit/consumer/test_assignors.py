"""Assignors of a consumer group: complete, balanced, only what is subscribed to; and who differs from the others."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from hypothesis import given
from hypothesis import strategies as st

from duemq.client.consumer.base import Mismatch
from duemq.client.consumer.kafka.assignors import Seat, assignor, mismatches, shares
from duemq.election.allocation import StrategyName
from duemq.model.errors import Rejected

pytestmark = pytest.mark.heavy

NAMES = st.from_regex(r"[a-z]{1,2}-[0-9]", fullmatch=True)
SEATS = st.dictionaries(
    NAMES,
    st.builds(Seat, st.frozensets(st.sampled_from(("orders", "paid", "retry.g"))), st.sampled_from(("", "r1", "r2"))),
    min_size=1,
    max_size=7,
)
PARTITIONS = st.dictionaries(st.sampled_from(("orders", "paid", "retry.g")), st.integers(0, 13).map(range))
FLAT = [StrategyName.AVERAGE, StrategyName.CIRCLE, StrategyName.CONSISTENT_HASH]
EVEN = {"orders": range(12), "retry.g": range(4)}


def seats(*names: str, rack: str = "") -> dict[str, Seat]:
    return {name: Seat(frozenset(EVEN), rack) for name in names}


def owners(shared: Mapping[str, Sequence[tuple[str, int]]]) -> dict[tuple[str, int], str]:
    return {partition: name for name, partitions in shared.items() for partition in partitions}


@pytest.mark.parametrize("strategy", StrategyName)
@given(seats=SEATS, partitions=PARTITIONS, random=st.randoms(use_true_random=False))
def test_every_partition_goes_once_to_a_member_that_subscribes_to_its_topic(
    strategy: StrategyName, seats: dict[str, Seat], partitions: dict[str, range], random: Random
) -> None:
    shared = shares(strategy, seats, partitions)
    assert set(shared) == set(seats)
    given_out = [partition for its in shared.values() for partition in its]
    wanted = {topic for seat in seats.values() for topic in seat.topics}
    assert sorted(given_out) == sorted((t, n) for t, numbers in partitions.items() if t in wanted for n in numbers)
    assert all(topic in seats[name].topics for name, its in shared.items() for topic, _ in its)
    mixed = list(seats.items())
    random.shuffle(mixed)
    assert shares(strategy, dict(mixed), dict(reversed(partitions.items()))) == shared


@pytest.mark.parametrize("strategy", FLAT)
@given(seats=SEATS, partitions=PARTITIONS)
def test_topics_of_the_same_members_are_balanced_among_them(
    strategy: StrategyName, seats: dict[str, Seat], partitions: dict[str, range]
) -> None:
    shared = shares(strategy, seats, partitions)
    members_of = {topic: frozenset(n for n, seat in seats.items() if topic in seat.topics) for topic in partitions}
    for members in set(members_of.values()):
        loads = [sum(members_of[topic] == members for topic, _ in shared[name]) for name in members]
        assert not loads or max(loads) - min(loads) <= 1


@given(st.integers(1, 6), st.integers(1, 16), st.integers(1, 16))
def test_with_average_no_member_has_a_topic_alone(members: int, of_one: int, of_other: int) -> None:
    subscribed = {f"m-{number}": Seat(frozenset(("orders", "retry.g"))) for number in range(members)}
    shared = shares(StrategyName.AVERAGE, subscribed, {"orders": range(of_one), "retry.g": range(of_other)})
    for topic, count in (("orders", of_one), ("retry.g", of_other)):
        loads = [sum(each == topic for each, _ in its) for its in shared.values()]
        assert max(loads) <= count / members + 2
        numbers = [[number for each, number in its if each == topic] for its in shared.values()]
        assert all(its == list(range(its[0], its[0] + len(its))) for its in numbers if its), "blocks of neighbours"


def test_a_circle_deals_out_one_after_the_other() -> None:
    shared = shares(StrategyName.CIRCLE, seats("a", "b"), {"orders": range(4), "retry.g": range(2)})
    assert shared == {"a": [("orders", 0), ("orders", 2), ("retry.g", 0)],
                      "b": [("orders", 1), ("orders", 3), ("retry.g", 1)]}  # fmt: skip


def moved_besides(strategy: StrategyName) -> int:
    """Partitions that move when a member leaves and were not its own, over groups of 3 to 8."""
    moved = 0
    for size in range(3, 9):
        names = [f"duemq-host-{number}" for number in range(size)]
        whole = owners(shares(strategy, seats(*names), EVEN))
        for gone in names:
            left = owners(shares(strategy, seats(*(n for n in names if n != gone)), EVEN))
            moved += sum(whole[each] not in (gone, left[each]) for each in whole)
    return moved


def test_with_consistent_hash_a_member_that_leaves_moves_little_beside_its_own() -> None:
    assert 3 * moved_besides(StrategyName.CONSISTENT_HASH) < moved_besides(StrategyName.CIRCLE)


def test_in_a_rack_a_member_that_leaves_gives_its_partitions_to_its_rack() -> None:
    group = seats("a", "b", rack="r1") | seats("c", "d", rack="r2")
    racks = {name: seat.rack for name, seat in group.items()}
    whole = owners(shares(StrategyName.SAME_RACK, group, EVEN))
    assert Counter(racks[name] for name in whole.values()) == {"r1": 8, "r2": 8}
    del group["b"]
    left = owners(shares(StrategyName.SAME_RACK, group, EVEN))
    assert {each: racks[name] for each, name in whole.items()} == {each: racks[name] for each, name in left.items()}


def told(**tags: Mapping[str, str] | None) -> dict[str, Seat]:
    return {name: Seat(frozenset(each or ()), tags=each) for name, each in tags.items()}


def test_a_group_that_agrees_has_no_mismatch() -> None:
    assert mismatches(told(a={"orders": "paid"}, b={"orders": "paid"})) == ()


def test_other_tags_and_missing_and_additional_topics_are_named() -> None:
    common = {"orders": "*", "bills": "paid"}
    group = told(a=common, b=common, c={"orders": "new", "bills": "paid", "more": "*"}, d={"orders": "*"})
    assert mismatches(group) == (
        Mismatch("c", "more", None, "*"),
        Mismatch("c", "orders", "*", "new"),
        Mismatch("d", "bills", "paid", None),
    )


def test_where_half_of_a_group_subscribes_the_other_half_should() -> None:
    assert mismatches(told(a={"orders": "x"}, b={})) == (Mismatch("b", "orders", "x", None),)


def test_a_member_that_does_not_say_is_not_judged_and_does_not_count() -> None:
    group = told(a={"orders": "x"}, b=None, c=None, d={"orders": "x"})
    assert mismatches(group) == ()


@given(st.dictionaries(NAMES, st.dictionaries(st.sampled_from("xyz"), st.sampled_from(("*", "p", "q"))), max_size=6))
def test_a_mismatch_is_named_exactly_where_a_member_differs_from_most(tags: dict[str, dict[str, str]]) -> None:
    found = {(each.member, each.topic): each for each in mismatches(told(**tags))}
    expected: defaultdict[str, set[str | None]] = defaultdict(set)
    for each in found.values():
        expected[each.topic].add(each.expected_tags)
        assert each.found_tags == tags[each.member].get(each.topic) != each.expected_tags
    for topic in {topic for its in tags.values() for topic in its}:
        said = [its.get(topic) for its in tags.values()]
        agreeing = [name for name in tags if (name, topic) not in found]
        assert len({tags[name].get(topic) for name in agreeing}) == 1 and len(expected[topic]) <= 1
        assert len(agreeing) == max(Counter(said).values())


# --- the assignor as aiokafka uses it ---------------------------------------------------------------------------------


class Cluster:
    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(EVEN[topic]) if topic in EVEN else None


def assigned(members: Mapping[str, tuple[Any, Sequence[str]]]) -> dict[str, ConsumerProtocolMemberAssignment]:
    """What each member reads in its answer, where the first of them leads."""
    metadata = {
        name: ConsumerProtocolMemberMetadata.decode(made.metadata(topics).encode())
        for name, (made, topics) in members.items()
    }
    leader = next(iter(members.values()))[0]
    answers = leader.assign(Cluster(), metadata)
    return {name: ConsumerProtocolMemberAssignment.decode(each.encode()) for name, each in answers.items()}


@pytest.mark.parametrize("strategy", StrategyName)
def test_an_assignor_is_named_after_its_strategy_and_assigns_as_it_does(strategy: StrategyName) -> None:
    racks = {"a": "r1", "b": "r2", "c": "r2"}
    answers = assigned({name: (assignor(strategy, rack), list(EVEN)) for name, rack in racks.items()})
    expected = shares(strategy, {name: Seat(frozenset(EVEN), rack) for name, rack in racks.items()}, EVEN)
    assert {name: [tuple(each) for each in answer.partitions()] for name, answer in answers.items()} == expected
    assert assignor(strategy).name == f"duemq-{strategy.replace('_', '-')}"


def test_all_members_are_told_who_differs_their_own_first_and_when_that_is_over() -> None:
    heard: dict[str, Sequence[Mismatch]] = {}
    made = {
        name: assignor("average", "", {"orders": tags}, lambda found, name=name: heard.update({name: found}))  # type: ignore[misc]
        for name, tags in {"a": "x", "b": "y||x", "c": "*", "d": " x "}.items()
    }

    def rebalance() -> None:
        for name, answer in assigned({name: (each, ["orders"]) for name, each in made.items()}).items():
            made[name].on_assignment(answer)

    rebalance()
    b, c = Mismatch("b", "orders", "x", "x || y"), Mismatch("c", "orders", "x", "*")
    assert heard == {"a": (b, c), "b": (b, c), "c": (c, b), "d": (b, c)}
    del made["b"], made["c"]
    rebalance()
    assert heard["a"] == heard["d"] == ()


def test_a_topic_that_the_cluster_does_not_know_is_no_partition() -> None:
    assert assigned({"a": (assignor("circle"), ["gone"])})["a"].partitions() == []


def test_what_a_group_is_told_stays_far_below_a_record_of_kafka() -> None:
    same = assignor("average")
    members: dict[str, tuple[Any, Sequence[str]]] = {f"m-{number:03}": (same, ["orders"]) for number in range(300)}
    for number in range(140):
        members[f"x-{number:03}"] = (assignor("average", "", {"orders": f"t{number}"}), ["orders"])
    answers = assigned(members)
    assert sum(len(each.user_data) for each in answers.values()) < 256 << 10
    heard: list[Sequence[Mismatch]] = []
    assignor("average", on_mismatch=heard.append).on_assignment(answers["x-139"])
    assert heard[0][0].member == "x-139", "its own is said"


@pytest.mark.parametrize("user_data", [None, b"", b"\xff", b"[1]", b'{"version": 2, "tags": 7}'])
def test_members_with_another_user_data_are_taken_in_and_not_judged(user_data: bytes | None) -> None:
    made = assignor("average", "", {"orders": "x"})
    metadata = {
        "a": made.metadata(["orders"]),
        "b": ConsumerProtocolMemberMetadata(0, ["orders"], user_data),
    }
    answers = made.assign(Cluster(), metadata)
    assert [len(answers[name].partitions()) for name in "ab"] == [6, 6]
    heard: list[Sequence[Mismatch]] = []
    assignor("average", on_mismatch=heard.append).on_assignment(ConsumerProtocolMemberAssignment(0, [], user_data))
    assert heard == [()]


def test_without_somebody_to_tell_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    made, other = assignor("average", "", {"orders": "x"}), assignor("average", "", {"orders": "y"})
    answers = assigned({"a": (made, ["orders"]), "b": (made, ["orders"]), "c": (other, ["orders"])})
    with caplog.at_level(logging.WARNING):
        made.on_assignment(answers["a"])
    assert (
        "member c subscribes with tags 'y' to topic orders; most of the group subscribes with tags 'x'" in caplog.text
    )


def test_an_error_of_who_is_told_does_not_stop_the_assignment(caplog: pytest.LogCaptureFixture) -> None:
    def broken(found: Sequence[Mismatch]) -> None:
        raise RuntimeError("broken")

    assignor("average", on_mismatch=broken).on_assignment(ConsumerProtocolMemberAssignment(0, [], b""))
    assert "cannot report a mismatch" in caplog.text


def test_a_wrong_strategy_or_filter_is_refused() -> None:
    with pytest.raises(Rejected, match="average, circle, consistent_hash, same_rack") as refused:
        assignor("sticky")
    assert (refused.value.code, refused.value.field) == ("bad_option", "allocation")
    with pytest.raises(Rejected) as refused:
        assignor("average", "", {"orders": "a ||"})
    assert refused.value.code == "bad_tags"
