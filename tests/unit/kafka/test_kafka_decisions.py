"""What is open in a partition is ended as the transaction that left it was decided, however many began since."""

from __future__ import annotations

from duemq.bus.kafka.produce.decisions import NONE, Decisions, LastTransaction

P, Q = ("a", 0), ("b", 0)


def committed(producer_id: int = 7) -> LastTransaction:
    return LastTransaction(producer_id, began=True, over=True, commits=True)


def aborted(producer_id: int = 7) -> LastTransaction:
    return LastTransaction(producer_id, began=True, over=True, commits=False)


def nothing(producer_id: int = 7) -> LastTransaction:
    """What the coordinator says once the next producer has begun."""
    return LastTransaction(producer_id, began=False, over=True, commits=False)


def test_the_coordinators_word_counts_while_it_is_known() -> None:
    decisions = Decisions()
    decisions.learn(NONE, set())
    assert not decisions.commits(P)
    decisions.learn(committed(), set())
    assert decisions.commits(P)


def test_a_decision_outlasts_the_producers_that_began_since() -> None:
    decisions = Decisions()
    decisions.learn(committed(), set())
    for _ in range(10):
        decisions.learn(nothing(), set())
        assert decisions.commits(P)


def test_a_later_transaction_decides_only_where_it_may_have_written() -> None:
    """Nothing is written to a partition before it was seen in order."""
    decisions = Decisions()
    decisions.learn(committed(), set())
    decisions.in_order({Q})
    decisions.learn(aborted(), set())
    assert decisions.commits(P) and not decisions.commits(Q)
    decisions.learn(nothing(), set())
    assert decisions.commits(P) and not decisions.commits(Q)
    decisions.in_order({P, Q})
    decisions.learn(aborted(), set())
    assert not decisions.commits(P) and not decisions.commits(Q)


def test_once_all_is_in_order_only_what_comes_counts() -> None:
    decisions = Decisions()
    decisions.learn(committed(), set())
    decisions.in_order({P, Q})
    decisions.learn(aborted(), set())
    assert not decisions.commits(P)


def test_what_another_producer_id_left_says_nothing() -> None:
    decisions = Decisions()
    decisions.learn(committed(7), set())
    decisions.learn(nothing(8), set())
    assert not decisions.commits(P)


def test_however_many_transactions_end_the_first_one_decides_and_each_partition_is_kept_once() -> None:
    decisions = Decisions()
    decisions.learn(committed(), set())
    decisions.in_order({Q})
    for _ in range(100):
        decisions.learn(aborted(), set())
    assert len(decisions.first) == 1 and not decisions.seen
    assert decisions.commits(P) and not decisions.commits(Q)


def test_a_partition_that_nobody_asked_about_for_long_is_ended_as_it_was_left() -> None:
    """A take-over asks about the topics that were written to lately: of all others the first decision counts."""
    decisions = Decisions()
    decisions.learn(committed(), {Q})
    assert decisions.commits(P)
    decisions.learn(aborted(), {Q})
    assert decisions.commits(P) and not decisions.commits(Q)
    decisions.in_order({P})
    decisions.learn(committed(), {Q})
    decisions.learn(aborted(), {Q})
    assert decisions.commits(P)
