"""`duemq bench` counts every message: its arithmetic on small, known samples."""

from dataclasses import replace

import numpy as np
import pytest

from duemq.bench.clients import cancels
from duemq.bench.clients.cancels import Answers
from duemq.bench.clients.payloads import SEQUENCE, Payloads
from duemq.bench.clients.reader import ReceivedRecords
from duemq.bench.clients.send import ACCEPTED, OPEN, REJECTED, SentMessages
from duemq.bench.harness.tally import out_of_order, spread, tally
from duemq.bench.scenarios.cancel_race import judge
from duemq.model.messages.ids import IdCodec


def sent(dues: list[int], outcome: list[int]) -> SentMessages:
    nothing = np.zeros(0)
    return SentMessages(
        dues=np.array(dues, np.int64),
        outcome=np.array(outcome, np.int8),
        ids=[],
        answered_ms=nothing,
        wait_ms=nothing,
        size=nothing.astype(np.int64),
        began_ms=0.0,
        ended_ms=1000.0,
        late_sends=0,
        retries=0,
        problem=None,
    )


def received(*rows: tuple[int, int, float]) -> ReceivedRecords:
    seq, due, at = zip(*rows, strict=True) if rows else ((), (), ())
    whole = np.array(seq, np.int64)
    return ReceivedRecords(whole, np.array(due, np.int64), np.array(at, np.float64), np.zeros_like(whole), [], 1, 0)


def test_every_kind_of_fault_is_counted() -> None:
    messages = sent([100, 200, 300, 400, 500], [ACCEPTED, ACCEPTED, ACCEPTED, REJECTED, OPEN])
    counts = tally(
        messages,
        received(
            (0, 100, 103.0),
            (0, 100, 150.0),  # twice
            (1, 200, 199.9),  # a tenth of a millisecond early
            (3, 401, 405.0),  # refused, delivered all the same, and with another due time
            (9, 900, 901.0),  # nobody sent this
        ),
    )
    assert (counts.accepted, counts.received) == (3, 5)
    assert (counts.lost, counts.duplicate, counts.early, counts.unasked, counts.wrong_due) == (1, 1, 1, 2, 1)
    assert counts.lateness_ms.tolist() == pytest.approx([3.0, -0.1, 5.0])


def test_a_message_without_an_answer_may_come_or_not() -> None:
    messages = sent([100, 200], [OPEN, OPEN])
    counts = tally(messages, received((1, 200, 201.0)))
    assert (counts.lost, counts.unasked, counts.duplicate) == (0, 0, 0)


def test_nothing_received_is_everything_lost() -> None:
    counts = tally(sent([1, 2], [ACCEPTED, ACCEPTED]), received())
    assert counts.lost == 2
    assert np.isnan(spread(counts.lateness_ms).p99)


def test_quantiles_are_values_that_occurred_and_err_upwards() -> None:
    values = spread(np.arange(1.0, 101.0))
    assert (values.p50, values.p99, values.p999, values.max) == (51.0, 100.0, 100.0, 100.0)


def test_order_is_judged_within_a_shard_and_a_partition() -> None:
    issue = IdCodec(b"0123456789abcdef").issue
    ids = [issue(0, 1000, 7), issue(1, 900, 1), issue(0, 1000, 8), issue(0, 1000, 6), issue(1, 900, 2)]
    five = received(*[(number, 0, 0.0) for number in range(5)])
    assert out_of_order(replace(five, ids=ids)) == 1
    assert out_of_order(replace(five, ids=ids, partition=np.array([0, 0, 0, 1, 0]))) == 0


def test_answers_are_held_against_deliveries() -> None:
    messages = sent([1000] * 6, [ACCEPTED] * 6)
    word = [
        cancels.CANCELLED,  # never came: right
        cancels.CANCELLED,  # came: wrong
        cancels.DELIVERED,  # came: right
        cancels.DELIVERED,  # never came: wrong
        cancels.UNKNOWN,  # an accepted message is known
        cancels.REFUSED,  # and so it has to be delivered
    ]
    asked = np.array([900.0, 940.0, 941.0, 1000.0, 1000.0, 900.0])
    answers = Answers(np.array(word, np.int8), asked, np.zeros(6), 0, None)
    verdict = judge(messages, answers, received((1, 1000, 1001.0), (2, 1000, 1001.0)))
    assert (verdict.wrong_cancelled, verdict.wrong_delivered, verdict.wrong_unknown) == (1, 1, 1)
    assert (verdict.told_cancelled, verdict.told_delivered, verdict.refused, verdict.lost) == (2, 2, 1, 1)
    assert (verdict.in_time, verdict.cancelled_in_time, verdict.delivered_in_time, verdict.refused_in_time) == (
        3,
        2,
        1,
        1,
    )


@pytest.mark.parametrize("size", [20, 60, 256, 3000, 200_000])
def test_payloads_have_their_size_and_their_number(size: int) -> None:
    texts = Payloads(size, seed=3).make(first=41, count=3)
    assert [len(text.encode()) for text in texts] == [size] * 3
    assert [int(text[SEQUENCE]) for text in texts] == [41, 42, 43]
    assert len(set(texts)) == 3
