"""`drain`: delivery is stopped while messages fall due. How soon is the backlog delivered after the restart?"""

import math

import numpy as np

from duemq.bench.base.session import now_ms
from duemq.bench.clients.send import SendWindow
from duemq.bench.harness.harness import Harness
from duemq.bench.harness.tally import spread, tally
from duemq.bench.report.figures import Figure, ScenarioOutcome
from duemq.bench.steps import ceiling, shared_figures, warm_up

_FILL_PER_S = 15_000
_SPARE_S = 5.0
_WIDTH_MS = 2000


def drain(harness: Harness, *, count: int, kill: bool = False, away: bool = False) -> ScenarioOutcome:
    """`count` messages fall due within 2 s while the server or the nodes are stopped (`kill`: with kill -9).

    A cluster's proxies accept messages even without nodes. With `away`, the nodes are stopped before the first message
    is sent, so after the start they must also read all commands.
    """
    plain = ceiling.throughput(harness, count)
    warm = warm_up.warm_up(harness, warm_up.USUAL_RATE)
    away = away and harness.site.accepts_while_stopped
    if away:
        _end(harness, kill)
    first_due = int(now_ms() + (count / _FILL_PER_S + _SPARE_S) * 1000)
    before = harness.site.bill()
    window = SendWindow(first_due, first_due + _WIDTH_MS)
    sent = harness.fill(harness.job(count, window), "filling")
    if not away:
        _end(harness, kill)
    early_end = away or now_ms() < first_due
    harness.sleep_until(first_due + _WIDTH_MS, "waiting until all messages are overdue")
    reader = harness.reader()
    started = now_ms()
    ready_s = harness.site.start()
    received = harness.finish(reader, sent.accepted, now_ms())
    counts = tally(sent, received)
    first_s, last_s = math.nan, math.nan
    if len(counts.at_ms):
        first_s, last_s = ((float(at) - started) / 1000 for at in (counts.at_ms.min(), counts.at_ms.max()))
    later = np.count_nonzero(
        counts.at_ms > counts.at_ms.min(initial=math.inf)
    )  # messages that arrived together with the first one took 0 s
    rate = later / (last_s - first_s) if last_s > first_s else math.nan
    once_ready = counts.received / (last_s - ready_s) if last_s > ready_s else math.nan
    cost = shared_figures.cost_figures(harness, before, sent.accepted)
    figures = (
        Figure("ready_s", "start to ready", ready_s, "s"),
        Figure("drained_s", "start to the last one read", last_s, "s"),
        Figure("first_s", "start to the first one read", first_s, "s"),
        Figure("drain_rate", "from the first one read to the last", rate, "msg/s"),
        *ceiling.share(plain, rate),
        Figure("read_rate", "read once ready", once_ready, "msg/s"),
        *shared_figures.spread_figures("late", "lateness", spread(counts.lateness_ms)),
        *shared_figures.count_figures(counts),
        *cost,
        Figure("fill_rate", "accepted while filling", sent.rate, "msg/s"),
        *plain,
    )
    notes = (*warm, *shared_figures.notes(sent, cost))
    if not early_end:
        notes = ("it was stopped only after the first messages had fallen due", *notes)
    return ScenarioOutcome(figures, notes, shared_figures.lateness_trace(counts))


def _end(harness: Harness, kill: bool) -> None:
    if kill:
        harness.site.kill()
    else:
        harness.site.stop()
