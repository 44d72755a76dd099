"""`steady`: a constant stream on a schedule that waits for nobody, each message due some seconds later."""

from duemq.bench.clients.load import EVERY_MS, SendWindow, send_steadily
from duemq.bench.harness.harness import Harness
from duemq.bench.harness.reconciliation import spread, tally
from duemq.bench.report.figures import Figure, ScenarioOutcome
from duemq.bench.steps import ceiling, parts, warm_up

_REACHED = 0.99


def steady(
    stage: Harness, *, rate: float, seconds: float, due_from_s: float, due_to_s: float, every_ms: float = EVERY_MS
) -> ScenarioOutcome:
    """`rate` messages/s for `seconds`, due uniformly `due_from_s`..`due_to_s` ahead. On Kafka after a warm-up.

    A batch leaves every `every_ms`.
    """
    count = int(rate * seconds)
    window = SendWindow(int(due_from_s * 1000), int(due_to_s * 1000))
    plain = ceiling.throughput(stage, count) + ceiling.lateness(stage, rate, seconds)
    warm = warm_up.warm_up(stage, rate)
    reader = stage.reader()
    before = stage.site.bill()
    sender = stage.spawn(send_steadily, stage.job(count, window), rate, every_ms)
    flow = parts.FullFlow(stage, rate, due_to_s)

    def over() -> bool:
        flow.look()
        return sender.poll()

    stage.watch(reader, "sending and reading", count, over)
    flow.end()
    sent = sender.result()
    received = stage.finish(reader, sent.accepted, float(sent.dues.max()))
    counts = tally(sent, received)
    reached = sent.accepted / max(sent.seconds, seconds)  # the last batch leaves before its time is over
    cost = parts.cost_figures(stage, before, sent.accepted)
    figures = (
        Figure("rate", "accepted", reached, "msg/s"),
        *parts.spread_figures("late", "lateness", spread(counts.lateness_ms)),
        *parts.count_figures(counts),
        *cost,
        *flow.figures(),
        *parts.wait_figures(sent, "batch answered"),
        Figure("late_sends", "batches sent more than 5 ms behind schedule", sent.late_sends),
        *plain,
    )
    notes = (*warm, *parts.notes(sent, cost))
    if reached < rate * _REACHED:
        notes = (f"rate NOT reached: {reached:,.0f} of {rate:,.0f} msg/s", *notes)
    return ScenarioOutcome(figures, notes, parts.lateness_trace(counts))
