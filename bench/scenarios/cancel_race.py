"""`cancel-race`: sends cancels around the time of delivery, and compares every answer with the deliveries."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from duemq.bench.base.session import now_ms
from duemq.bench.clients import cancels
from duemq.bench.clients.cancels import Answers
from duemq.bench.clients.reader import ReceivedRecords
from duemq.bench.clients.send import ACCEPTED, SendWindow, SentMessages
from duemq.bench.harness.harness import Harness
from duemq.bench.harness.tally import spread, tally
from duemq.bench.report.figures import Figure, ScenarioOutcome, Trace, vital
from duemq.bench.steps import shared_figures

_LEAD_S = 5.0
_IN_TIME_MS = 60.0
_IN_TIME = "of those sent 60 ms or more before due"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The numbers of cancels, by answer and actual outcome. `*_in_time`: cancels sent at least 60 ms before the message
    was due."""

    told_cancelled: int
    told_delivered: int
    wrong_cancelled: int
    wrong_delivered: int
    wrong_unknown: int
    refused: int
    lost: int
    in_time: int
    cancelled_in_time: int
    delivered_in_time: int
    refused_in_time: int


def judge(sent: SentMessages, answers: Answers, received: ReceivedRecords) -> Verdict:
    """Compare answers with deliveries. Cancelled messages must be missing, and no others may be."""
    accepted = sent.outcome == ACCEPTED
    is_received = np.bincount(received.seq, minlength=len(sent.dues)) > 0
    word = answers.word
    cancelled, delivered = accepted & (word == cancels.CANCELLED), accepted & (word == cancels.DELIVERED)
    refused = accepted & np.isin(word, (cancels.REFUSED, cancels.PENDING, cancels.OPEN))
    in_time = accepted & (sent.dues - answers.asked_ms >= _IN_TIME_MS)

    def count(mask: npt.NDArray[np.bool_]) -> int:
        return int(np.count_nonzero(mask))

    return Verdict(
        told_cancelled=count(cancelled),
        told_delivered=count(delivered),
        wrong_cancelled=count(cancelled & is_received),
        wrong_delivered=count(delivered & ~is_received),
        wrong_unknown=count(accepted & (word == cancels.UNKNOWN)),
        refused=count(refused),
        # A cancel without an answer may have been carried out. Only a cancel that was clearly refused leaves its
        # message pending.
        lost=count(accepted & (word == cancels.REFUSED) & ~is_received),
        in_time=count(in_time),
        cancelled_in_time=count(in_time & cancelled),
        delivered_in_time=count(in_time & is_received),
        refused_in_time=count(in_time & refused),
    )


def cancel_race(
    harness: Harness, *, count: int, spread_ms: float, over_s: float, connections: int = 64
) -> ScenarioOutcome:
    """Send `count` messages that fall due over `over_s`, and one DELETE for each, within ±`spread_ms` of its due
    time."""
    first_due = int(now_ms() + _LEAD_S * 1000 + count / 10)
    before = harness.site.bill()
    sent = harness.fill(harness.job(count, SendWindow(first_due, first_due + int(over_s * 1000)), 1), "filling")
    reader = harness.reader()
    random = np.random.default_rng(harness.setup.seed + 2)
    at = sent.dues + random.uniform(-spread_ms, spread_ms, count)
    racer = harness.spawn(cancels.cancel_singly, harness.url, sent.ids, at, connections)
    answers = harness.wait(racer, "cancelling", count)
    # All other messages must arrive. If some do not, the reader waits until its time limit.
    expected = sent.accepted - int(np.count_nonzero(answers.word == cancels.CANCELLED))
    received = harness.finish(reader, expected, float(sent.dues.max()) + 1000)
    counts, verdict = tally(sent, received), judge(sent, answers, received)
    waits = spread(answers.wait_ms)
    cost = shared_figures.cost_figures(harness, before, sent.accepted)
    share = 100 / max(verdict.in_time, 1)
    figures = (
        vital(
            "wrong_answers", "wrong answers", verdict.wrong_cancelled + verdict.wrong_delivered + verdict.wrong_unknown
        ),
        vital("wrong_cancelled", "  told cancelled, but delivered", verdict.wrong_cancelled),
        vital("wrong_delivered", "  told delivered, never delivered", verdict.wrong_delivered),
        vital("wrong_unknown", "  told unknown", verdict.wrong_unknown),
        vital("refused", "not answered (refused, pending for 10 s, broken)", verdict.refused),
        vital("lost", "refused a cancel, never delivered", verdict.lost),
        vital("duplicate", "read more than once", counts.duplicate),
        vital("early", "read before due", counts.early),
        Figure("told_cancelled", "told cancelled", verdict.told_cancelled),
        Figure("told_delivered", "told delivered", verdict.told_delivered),
        Figure("cancelled_in_time", f"cancelled, {_IN_TIME}", verdict.cancelled_in_time * share, "%"),
        Figure("delivered_in_time", f"delivered, {_IN_TIME}", verdict.delivered_in_time * share, "%"),
        Figure("refused_in_time", f"refused, {_IN_TIME}", verdict.refused_in_time * share, "%"),
        Figure("pending", "first answered 202 pending", answers.pending),
        Figure("cancel_p50", "cancel answered p50", waits.p50, "ms"),
        Figure("cancel_p99", "cancel answered p99", waits.p99, "ms"),
        Figure("cancel_max", "cancel answered max", waits.max, "ms"),
        *cost,
    )
    notes = shared_figures.notes(sent, cost) + ((f"the first refusal: {answers.refusal}",) if answers.refusal else ())
    if not (verdict.told_cancelled and verdict.told_delivered):
        notes = ("no race: all cancels came on the same side of the delivery, so the answers prove little", *notes)
    trace = Trace(
        "answer time of a cancel",
        "cancels answered/s",
        answers.wait_ms,
        answers.asked_ms + answers.wait_ms,
        np.ones(count, np.int64),
    )
    return ScenarioOutcome(figures, notes, trace)
