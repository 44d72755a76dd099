"""`cancel-callers`: measures single cancels by several concurrent callers. Each waits for an answer before the next
cancel."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from duemq.bench.base.session import now_ms
from duemq.bench.clients import cancels
from duemq.bench.clients.send import SendWindow
from duemq.bench.harness.harness import Harness
from duemq.bench.harness.tally import spread
from duemq.bench.report.figures import Figure, ScenarioOutcome, vital
from duemq.bench.steps import shared_figures

_AHEAD_MS, _WIDTH_MS = 3_600_000, 600_000
_OTHERS = 1_000  # messages that are not cancelled; some are looked up at the end


def cancel_callers(harness: Harness, *, count: int, callers: Sequence[int], by_name: bool) -> ScenarioOutcome:
    """Cancel `count` messages for each number of callers, by id or by the name that the sender chose."""
    low = int(now_ms() + _AHEAD_MS)
    total = count * len(callers) + _OTHERS
    job = replace(harness.job(total, SendWindow(low, low + _WIDTH_MS), 1), named=by_name)
    before = harness.site.bill()
    sent = harness.fill(job, "filling")
    refs = [job.name(seq) for seq in range(total)] if by_name else sent.ids
    figures: list[Figure] = []
    words = []
    refusal = None
    for turn, number in enumerate(callers):
        some = refs[turn * count : (turn + 1) * count]
        worker = harness.spawn(cancels.cancel_singly, harness.url, some, None, number)
        answers = harness.wait(worker, f"cancels by {number}", count)
        seconds = float((answers.asked_ms + answers.wait_ms).max() - answers.asked_ms.min()) / 1000
        waits = spread(answers.wait_ms)
        figures += (
            Figure(f"rate_{number}", f"cancels by {number}", count / seconds, "cancels/s"),
            Figure(f"p50_{number}", f"cancel p50, {number} at a time", waits.p50, "ms"),
            Figure(f"p99_{number}", f"cancel p99, {number} at a time", waits.p99, "ms"),
        )
        words.append(answers.word)
        refusal = refusal or answers.refusal
    wrong = int(np.count_nonzero(np.concatenate(words) != cancels.CANCELLED))
    cost = shared_figures.cost_figures(harness, before, sent.accepted)
    figures += (
        vital("not_cancelled", "answered other than cancelled", wrong),
        vital("missing", "not cancelled, yet not scheduled any more (sample)", harness.missing(sent.ids[-_OTHERS:])),
        *cost,
    )
    notes = shared_figures.notes(sent, cost) + ((f"the first refusal: {refusal}",) if refusal else ())
    return ScenarioOutcome(tuple(figures), notes)
