"""`hand-overs`: the lateness of a stream next to many cancels, before and after shards change hands."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from duemq.bench.base.session import now_ms
from duemq.bench.clients import cancels
from duemq.bench.clients.send import SendWindow, send_steadily
from duemq.bench.harness.harness import Harness
from duemq.bench.harness.tally import Tally, spread, tally
from duemq.bench.report.figures import Figure, ScenarioOutcome, Target, vital
from duemq.bench.steps import warm_up
from duemq.bench.system.system import SiteError
from duemq.model.timing import WINDOW_MS

if TYPE_CHECKING:
    from duemq.bench.system.cluster import BenchCluster

MAX_MOVED = 10.0  # percent
_STREAM = SendWindow(1_000, 5_000)
_AHEAD_MS = 4 * 3_600_000
_SEALED_WITHIN_S = 600.0
_BATCH = 500
_SETTLED_MS = 1_000  # messages that waited during a hand-over are delivered by then
_BEGUN = 0.02  # share of the cancels: then the last ledger entry before the first take-over has answers


def hand_overs(harness: Harness, *, count: int, times: int, rate: float, cancels_per_s: float) -> ScenarioOutcome:
    """`rate` messages/s next to `cancels_per_s`, three times: for `count` cancels in each of three windows.

    All windows are in delay files by then. Nothing happens beside the first and the second, so that they show how
    much two equal parts differ. Early in the third one node hands over all of its shards, and a node
    does so `times` more.
    """
    from duemq.bench.system.cluster import BenchCluster  # imports aiokafka, which the embedded bus does not need

    site = harness.site
    if not isinstance(site, BenchCluster) or len(site.nodes) < 2:
        raise SiteError("shards change hands between nodes: use --nodes 2 or more")
    notes = warm_up.warm_up(harness, rate)
    start = (int(now_ms()) + _AHEAD_MS) // WINDOW_MS * WINDOW_MS
    windows = [SendWindow(start + n * WINDOW_MS, start + (n + 1) * WINDOW_MS) for n in range(3)]
    first, second, third = [harness.fill(harness.job(count, window, 1), "filling").ids for window in windows]
    harness.sleep_while(lambda: site.sealed() < 3 * count, _SEALED_WITHIN_S, "sealing")
    pauses: list[tuple[float, float]] = []
    before, wrong = _beside(harness, site, "before", rate, first, cancels_per_s, [], pauses)
    harness.wait_until_quiet()  # cancelled messages are dropped from the file of their window afterwards
    control, wrong_control = _beside(harness, site, "control", rate, second, cancels_per_s, [], pauses)
    harness.wait_until_quiet()
    turns = [_BEGUN, *((turn + 1) / (times + 1) for turn in range(times))]
    after, wrong_after = _beside(harness, site, "after", rate, third, cancels_per_s, turns, pauses)
    due = after.at_ms - after.lateness_ms
    apart = np.ones(len(due), np.bool_)
    for began, ended in pauses:
        apart &= (due < began) | (due > ended)
    then, still = spread(before.lateness_ms), spread(control.lateness_ms)
    now, whole = spread(after.lateness_ms[apart]), spread(after.lateness_ms)
    lost = sum(one.lost + one.duplicate + one.early + one.wrong_due + one.unasked for one in (before, control, after))
    figures = (
        Figure("before_p99", "lateness p99 beside cancels, before any take-over", then.p99, "ms"),
        Figure("control_p99", "  the same once more, still without a take-over", still.p99, "ms"),
        Figure("control_moved", "    moved by", (still.p99 / then.p99 - 1) * 100, "%"),
        Figure("after_p99", f"  after one and {times} hand-overs, apart from these", now.p99, "ms"),
        Figure("moved", "    moved from the second by", (now.p99 / still.p99 - 1) * 100, "%", Target(MAX_MOVED)),
        Figure("whole_p99", "  with messages due in a hand-over, or in the second after it", whole.p99, "ms"),
        Figure("whole_max", "  highest", whole.max, "ms"),
        Figure("answers", "answers after the take-over", len(third)),
        vital("failures", "shards that failed or were stopped", site.failures()),
        vital("not_cancelled", "answered other than cancelled", wrong + wrong_control + wrong_after),
        vital("wrong", "lost, twice, early or never asked for", lost),
    )
    return ScenarioOutcome(figures, notes)


def _beside(
    harness: Harness,
    site: "BenchCluster",
    name: str,
    rate: float,
    ids: list[str],
    cancels_per_s: float,
    turns: list[float],
    pauses: list[tuple[float, float]],
) -> tuple[Tally, int]:
    """A stream next to the cancels of `ids`, and the number of cancels with another answer.

    One node hands over its shards whenever one of the shares in `turns` is answered. `pauses` gets the times between
    which (epoch ms) that may delay due messages.
    """
    topic, count = f"{harness.topic}.{name}", int(rate * len(ids) / cancels_per_s)
    site.create_topic(topic)
    reader = harness.read(topic)
    canceller = harness.spawn(cancels.cancel_many, site.url, ids, _BATCH, 4, until_decided=True, per_s=cancels_per_s)
    sender = harness.spawn(send_steadily, replace(harness.job(count, _STREAM), topic=topic), rate)

    def over() -> bool:
        canceller.poll()
        if turns and canceller.count >= turns[0] * len(ids):
            turns.pop(0)
            began = now_ms()
            site.hand_over()
            pauses.append((began - _SETTLED_MS, now_ms() + _SETTLED_MS))
        return sender.poll()

    harness.watch(reader, name, count, over)
    answers = harness.wait(canceller, f"cancels {name}", len(ids))
    sent = sender.result()
    counts = tally(sent, harness.finish(reader, sent.accepted, float(sent.dues.max()), name))
    return counts, int(np.count_nonzero(answers.word != cancels.CANCELLED))
