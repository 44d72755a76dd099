"""`cancel`: measures the latency of a single cancel on an idle node, and bulk cancels per second."""

import numpy as np

from duemq.bench.base.session import now_ms
from duemq.bench.clients import cancels
from duemq.bench.clients.send import SendWindow
from duemq.bench.harness.harness import Harness
from duemq.bench.harness.tally import spread
from duemq.bench.report.figures import Figure, ScenarioOutcome, Trace, vital
from duemq.bench.steps import shared_figures

_AHEAD_MS, _WIDTH_MS = 3_600_000, 600_000


def cancel(harness: Harness, *, count: int, singles: int, batch: int, connections: int) -> ScenarioOutcome:
    """Of `count` pending messages, cancel `singles` one after another, then half of the others in batches of
    `batch`."""
    low = int(now_ms() + _AHEAD_MS)
    before = harness.site.bill()
    sent = harness.fill(harness.job(count, SendWindow(low, low + _WIDTH_MS), 1), "filling")
    one_by_one, rest = sent.ids[:singles], sent.ids[singles:]
    in_bulk = rest[::2]
    worker = harness.spawn(cancels.cancel_singly, harness.url, one_by_one, None, 1)
    single = harness.wait(worker, "single cancels", len(one_by_one))
    many = harness.spawn(cancels.cancel_many, harness.url, in_bulk, batch, connections)
    bulk = harness.wait(many, "bulk cancels", len(in_bulk))
    words = np.concatenate([single.word, bulk.word])
    answered = bulk.asked_ms + bulk.wait_ms
    seconds = float(answered.max() - bulk.asked_ms[bulk.asked_ms > 0].min()) / 1000
    waits, again = spread(single.wait_ms), harness.missing(rest[1::2])
    cost = shared_figures.cost_figures(harness, before, sent.accepted)
    figures = (
        Figure("single_p50", "single cancel p50", waits.p50, "ms"),
        Figure("single_p99", "single cancel p99", waits.p99, "ms"),
        Figure("single_max", "single cancel max", waits.max, "ms"),
        Figure("bulk_rate", "bulk cancels", np.count_nonzero(bulk.word == cancels.CANCELLED) / seconds, "cancels/s"),
        vital("not_cancelled", "answered other than cancelled", int(np.count_nonzero(words != cancels.CANCELLED))),
        vital("missing", "not cancelled, yet not scheduled any more (sample)", again),
        Figure("pending", "answered 202 pending at first", single.pending + bulk.pending),
        *cost,
    )
    refusal = single.refusal or bulk.refusal
    notes = shared_figures.notes(sent, cost) + ((f"the first refusal: {refusal}",) if refusal else ())
    ones = np.ones(len(single.wait_ms), np.int64)
    trace = Trace("answer time of a cancel", "single cancels/s", single.wait_ms, single.asked_ms + single.wait_ms, ones)
    return ScenarioOutcome(figures, notes, trace)
