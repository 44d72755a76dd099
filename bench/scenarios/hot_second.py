"""`hot-second`: delivers very many messages that are due in the same second, optionally with a kill -9 in the
middle."""

import math

import numpy as np

from duemq.bench.base.session import now_ms
from duemq.bench.base.workers import BenchWorker
from duemq.bench.clients.reader import ReceivedRecords
from duemq.bench.clients.send import SendWindow
from duemq.bench.harness.harness import Harness
from duemq.bench.harness.tally import Tally, out_of_order, spread, tally
from duemq.bench.report.figures import Figure, ScenarioOutcome, vital
from duemq.bench.steps import ceiling, shared_figures, warm_up

_FILL_PER_S = 15_000  # a rate that a busy machine can fill at; by default it sets how far ahead the second is
_SPARE_S = 8.0


def hot_second(
    harness: Harness, *, count: int, ahead_s: float | None = None, kill_at: float | None = None
) -> ScenarioOutcome:
    """Send `count` messages that are due at the same whole second, `ahead_s` from now. `kill_at`: do a kill -9 after
    this percentage was read."""
    plain = ceiling.throughput(harness, count)
    warm = warm_up.warm_up(harness, warm_up.USUAL_RATE)
    lead_s = ahead_s if ahead_s is not None else count / _FILL_PER_S + _SPARE_S
    second = math.ceil(now_ms() / 1000 + lead_s) * 1000
    before = harness.site.bill()
    sent = harness.fill(harness.job(count, SendWindow(second, second)), "filling")
    reader = harness.reader(keep_ids=True)
    harness.sleep_until(second - 50, "waiting for the second")
    killed = _kill(harness, reader, count * kill_at / 100, count) if kill_at is not None else None
    received = harness.finish(reader, sent.accepted, second)
    counts = tally(sent, received)
    last_s = (float(counts.at_ms.max()) - second) / 1000 if len(counts.at_ms) else math.nan
    rate = counts.received / last_s if last_s > 0 else math.nan
    cost = shared_figures.cost_figures(harness, before, sent.accepted)
    figures = (
        Figure("last_s", "last one read, after the second", last_s, "s"),
        Figure("read_rate", "read", rate, "msg/s"),
        *ceiling.share(plain, rate),
        *shared_figures.spread_figures("late", "lateness", spread(counts.lateness_ms)),
        *shared_figures.count_figures(counts),
        vital("disorder", "out of due order within a shard", out_of_order(received)),
        *(_kill_figures(killed, received, counts) if killed else ()),
        *cost,
        Figure("fill_rate", "accepted while filling", sent.rate, "msg/s"),
        *plain,
    )
    notes = (*warm, *shared_figures.notes(sent, cost))
    if sent.ended_ms > second:
        notes = ("filling ended after the second had come: use a larger --ahead", *notes)
    return ScenarioOutcome(figures, notes, shared_figures.lateness_trace(counts))


def _kill(harness: Harness, reader: BenchWorker[ReceivedRecords], after: float, total: int) -> tuple[float, float]:
    """Kill the server after `after` messages were read, and restart it. Returns the times of both (epoch ms)."""
    harness.watch(reader, "reading, then kill -9", total, lambda: reader.count >= after)
    harness.site.kill()
    died = now_ms()
    ready_s = harness.site.start()
    return died, now_ms() - ready_s * 1000


def _kill_figures(killed: tuple[float, float], received: ReceivedRecords, counts: Tally) -> tuple[Figure, ...]:
    died, started = killed
    after = received.at[received.at > started]
    next_s = (float(after.min()) - died) / 1000 if len(after) else math.nan
    share = np.count_nonzero(counts.at_ms <= started) * 100 / max(len(counts.at_ms), 1)
    return (
        Figure("killed_at", "read when it was killed", share, "%"),
        Figure("next_s", "kill -9 to the next message read", next_s, "s"),
    )
