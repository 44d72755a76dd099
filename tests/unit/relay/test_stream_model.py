"""Publishing ids under random crashes, losses of connections, time-outs and orders: nothing is lost, and what has an id
is stored once. Each mutant loses something, and is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duemq.relay.rabbitmq.stream.connection import StreamConnection
from duemq.relay.rabbitmq.stream.numbering import Numbering, Turn
from duemq.relay.rabbitmq.stream.producers import Producers
from tests.support.outlets.stream_world import play, steps_of

_GAMES = 5_000  # until a mutant loses something; most do within 100


def producers() -> Producers:
    return Producers("there", "stream")


@settings(max_examples=1_000, deadline=None)
@given(st.integers(0, 1 << 32))
def test_nothing_is_lost_and_what_has_a_publishing_id_is_stored_once(seed: int) -> None:
    play(steps_of(seed), producers)


def test_a_message_that_was_never_read_is_not_taken_for_a_repeat() -> None:
    steps = ["connect", "pull", "send", "lose", "drop_former", "connect", "send", "read", "crash"]
    play([(step, 2 if step == "pull" else 0) for step in steps], producers)


class AnyOrder(Numbering):
    """Each open record is numbered when it comes."""

    def turn(self, offset: int) -> Turn:
        if offset not in self._members:
            return Turn.UNNUMBERED
        self._members.discard(offset)
        self._unconfirmed.add(offset)
        return Turn.NUMBERED


class EndedTooSoon(Numbering):
    """What is written without an id is not waited for."""

    def turn(self, offset: int) -> Turn:
        if (turn := super().turn(offset)) is Turn.UNNUMBERED:
            self.ended(offset)
        return turn


class NotAgain(Producers):
    """What was in flight is not written again on a new connection."""

    def connected(self, connection: StreamConnection) -> None:
        for producer in self.by_partition.values():
            for number in producer.numbering.unconfirmed:
                producer.numbering.confirmed(number)
                self._forget(producer.entries.pop(number))
        super().connected(connection)


class Downwards(Producers):
    """It is written again in the wrong order."""

    def connected(self, connection: StreamConnection) -> None:
        class Reversed(Numbering):
            unconfirmed = property(lambda self: sorted(self._unconfirmed, reverse=True))

        for producer in self.by_partition.values():
            producer.numbering.__class__ = Reversed
        super().connected(connection)


def search(make: Callable[[], Producers]) -> None:
    for seed in range(_GAMES):
        play(steps_of(seed), make)


def with_numbering(numbering: type[Numbering], monkeypatch: pytest.MonkeyPatch) -> Callable[[], Producers]:
    monkeypatch.setattr("duemq.relay.rabbitmq.stream.producers.Numbering", numbering)
    return producers


@pytest.mark.parametrize("mutant", [AnyOrder, EndedTooSoon])
def test_a_mutant_of_the_numbering_loses_messages(mutant: type[Numbering], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="is lost"):
        search(with_numbering(mutant, monkeypatch))


@pytest.mark.parametrize("mutant", [NotAgain, Downwards])
def test_a_mutant_of_the_producers_loses_messages(mutant: type[Producers]) -> None:
    with pytest.raises(AssertionError, match="is lost"):
        search(lambda: mutant("there", "stream"))
