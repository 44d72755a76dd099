"""Which messages get a publishing id: rule by rule. `tests/functional/relay/test_stream_model.py` breaks everything."""

from __future__ import annotations

from duemq.relay.rabbitmq.stream.numbering import Numbering, Turn
from duemq.relay.rabbitmq.stream.producers import producer_name


def pulled(*offsets: int, start: int | None = None) -> Numbering:
    numbering = Numbering()
    numbering.pulled(offsets, offsets[0] if start is None else start)
    return numbering


def test_records_are_numbered_in_their_order() -> None:
    numbering = pulled(3, 4, 9)
    assert [numbering.turn(offset) for offset in (3, 4, 9)] == [Turn.NUMBERED] * 3
    assert numbering.unconfirmed == [3, 4, 9]
    numbering.confirmed(4)
    assert numbering.unconfirmed == [3, 9]


def test_one_that_is_not_the_first_waits_for_its_turn() -> None:
    numbering = pulled(3, 4, 5)
    assert numbering.turn(4) is Turn.WAIT
    assert numbering.turn(3) is Turn.NUMBERED
    assert numbering.turn(4) is Turn.NUMBERED


def test_what_has_ended_is_waited_for_no_more() -> None:
    numbering = pulled(3, 4, 5, 6)
    numbering.ended(4)
    assert numbering.turn(5) is Turn.WAIT
    numbering.ended(3)
    assert numbering.turn(6) is Turn.WAIT
    assert numbering.turn(5) is Turn.NUMBERED


def test_behind_one_that_takes_long_there_are_no_publishing_ids_until_it_is_written() -> None:
    numbering = pulled(3, 4, 5, 6)
    assert numbering.turn(4) is Turn.WAIT
    numbering.stop_waiting()
    assert [numbering.turn(offset) for offset in (4, 5)] == [Turn.UNNUMBERED] * 2
    assert numbering.turn(3) is Turn.NUMBERED
    assert numbering.turn(6) is Turn.WAIT  # 4 and 5 are on their way without an id, and may be lost yet
    numbering.ended(4)
    numbering.ended(5)
    assert numbering.turn(6) is Turn.NUMBERED


def test_what_nobody_told_of_has_no_publishing_id() -> None:
    assert Numbering().turn(7) is Turn.UNNUMBERED
    numbering = pulled(7)
    assert numbering.turn(7) is Turn.NUMBERED
    assert numbering.turn(7) is Turn.UNNUMBERED  # it was confirmed and comes again: nobody knows why


def test_what_another_relay_did_meanwhile_is_not_waited_for() -> None:
    numbering = pulled(3, 4, 5)
    numbering.pulled([8, 9], start=8)
    assert numbering.turn(8) is Turn.NUMBERED


def test_records_that_come_again_begin_anew() -> None:
    numbering = pulled(3, 4, 5)
    assert numbering.turn(3) is Turn.NUMBERED
    numbering.pulled([3, 4], start=3)
    assert numbering.turn(3) is Turn.NUMBERED
    assert numbering.turn(4) is Turn.NUMBERED
    assert numbering.unconfirmed == [3, 4]


def test_the_name_of_a_producer_is_of_one_log_and_fits() -> None:
    name = producer_name("d" * 64, "log", "t" * 249, 65_535)
    assert len(name.encode()) <= 255
    others = {
        producer_name("d" * 64, "other", "t" * 249, 65_535), producer_name("d" * 64, "log", "t" * 248, 65_535),
        producer_name("d" * 63, "log", "t" * 249, 65_535), producer_name("d" * 64, "log", "t" * 249, 65_534),
    }  # fmt: skip
    assert len({name, *others}) == 5
