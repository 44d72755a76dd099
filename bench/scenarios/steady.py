"""`steady`: sends a constant stream on a fixed schedule. Each message is due some seconds later."""

from duemq.bench.clients.send import EVERY_MS, SendWindow, send_steadily
from duemq.bench.harness.harness import Harness
from duemq.bench.harness.tally import spread, tally
from duemq.bench.report.figures import Figure, ScenarioOutcome
from duemq.bench.steps import ceiling, shared_figures, warm_up

_REACHED = 0.99


def steady(
    harness: Harness, *, rate: float, seconds: float, due_from_s: float, due_to_s: float, every_ms: float = EVERY_MS
) -> ScenarioOutcome:
    """Send `rate` messages/s for `seconds`, with due times drawn uniformly from `due_from_s` to `due_to_s` ahead.

    A batch is sent every `every_ms`. On Kafka there is a warm-up first.
    """
    count = int(rate * seconds)
    window = SendWindow(int(due_from_s * 1000), int(due_to_s * 1000))
    plain = ceiling.throughput(harness, count) + ceiling.lateness(harness, rate, seconds)
    warm = warm_up.warm_up(harness, rate)
    reader = harness.reader()
    before = harness.site.bill()
    sender = harness.spawn(send_steadily, harness.job(count, window), rate, every_ms)
    flow = shared_figures.FullFlow(harness, rate, due_to_s)

    def over() -> bool:
        flow.update()
        return sender.poll()

    harness.watch(reader, "sending and reading", count, over)
    flow.end()
    sent = sender.result()
    received = harness.finish(reader, sent.accepted, float(sent.dues.max()))
    counts = tally(sent, received)
    reached = sent.accepted / max(sent.seconds, seconds)  # the last batch is sent before its interval has ended
    cost = shared_figures.cost_figures(harness, before, sent.accepted)
    figures = (
        Figure("rate", "accepted", reached, "msg/s"),
        *shared_figures.spread_figures("late", "lateness", spread(counts.lateness_ms)),
        *shared_figures.count_figures(counts),
        *cost,
        *flow.figures(),
        *shared_figures.wait_figures(sent, "batch answered"),
        Figure("late_sends", "batches sent more than 5 ms behind schedule", sent.late_sends),
        *plain,
    )
    notes = (*warm, *shared_figures.notes(sent, cost))
    if reached < rate * _REACHED:
        notes = (f"rate NOT reached: {reached:,.0f} of {rate:,.0f} msg/s", *notes)
    return ScenarioOutcome(figures, notes, shared_figures.lateness_trace(counts))
