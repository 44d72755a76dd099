"""`drain`: the server was away while messages fell due; how soon is the backlog gone once it is back?"""

import math

from duemq.proxy.bench.figures import Figure, Outcome
from duemq.proxy.bench.load import Window
from duemq.proxy.bench.scenarios import parts
from duemq.proxy.bench.session import now_ms
from duemq.proxy.bench.stage import Stage
from duemq.proxy.bench.tally import spread, tally

_FILL_PER_S = 15_000
_SPARE_S = 5.0
_WIDTH_MS = 2000


def drain(stage: Stage, *, count: int, kill: bool = False) -> Outcome:
    """`count` messages fall due within 2 s while the server is stopped (`kill`: with kill -9)."""
    first_due = int(now_ms() + (count / _FILL_PER_S + _SPARE_S) * 1000)
    before = stage.server.usage()
    window = Window(first_due, first_due + _WIDTH_MS)
    sent = stage.fill(stage.job(count, window), "filling")
    if kill:
        stage.server.kill()
    else:
        stage.server.stop()
    early_end = now_ms() < first_due
    stage.sleep_until(first_due + _WIDTH_MS, "waiting until all are overdue")
    reader = stage.reader()
    started = now_ms()
    ready_s = stage.server.start()
    received = stage.finish(reader, sent.accepted, now_ms())
    counts = tally(sent, received)
    last_s = (float(counts.at_ms.max()) - started) / 1000 if len(counts.at_ms) else math.nan
    cost = parts.cost_figures(stage, before, sent.accepted)
    figures = (
        Figure("ready_s", "start to ready", ready_s, "s"),
        Figure("drained_s", "start to the last one read", last_s, "s"),
        Figure("read_rate", "read once ready", counts.received / max(last_s - ready_s, 1e-3), "msg/s"),
        *parts.spread_figures("late", "lateness", spread(counts.lateness_ms)),
        *parts.count_figures(counts),
        *cost,
        Figure("fill_rate", "accepted while filling", sent.rate, "msg/s"),
    )
    notes = parts.notes(sent, cost)
    if not early_end:
        notes = ("the server was stopped only after the first messages had fallen due", *notes)
    return Outcome(figures, notes, parts.lateness_trace(counts))
