"""`accept`: measures how many messages are accepted per second, one by one and in batches, while no message falls
due."""

from duemq.bench.base.session import now_ms
from duemq.bench.clients.send import SendWindow, SentMessages, send_singly
from duemq.bench.harness.harness import Harness
from duemq.bench.report.figures import Figure, ScenarioOutcome, vital
from duemq.bench.steps import shared_figures
from duemq.dev.servers.usage import Bill

_AHEAD_MS, _WIDTH_MS = 3_600_000, 600_000
_SAMPLE = 500


def _job_window() -> SendWindow:
    low = int(now_ms() + _AHEAD_MS)
    return SendWindow(low, low + _WIDTH_MS)


def accept_singles(harness: Harness, *, count: int, connections: int) -> ScenarioOutcome:
    """Send `count` single POSTs over `connections` connections. Each connection waits for a 201 before the next
    POST."""
    before = harness.site.bill()
    job = harness.job(count, _job_window(), max(count // _SAMPLE, 1))
    sent = harness.wait(harness.spawn(send_singly, job, connections), "single POSTs", count)
    return _outcome(harness, before, sent, "201 received")


def accept_batches(harness: Harness, *, count: int, batch: int, connections: int) -> ScenarioOutcome:
    """Send `count` messages in batches of `batch`, over `connections` connections."""
    before = harness.site.bill()
    job = harness.job(count, _job_window(), max(count // _SAMPLE, 1))
    sent = harness.fill(job, f"batches of {batch:,}", batch, connections)
    return _outcome(harness, before, sent, "batch answered")


def _outcome(harness: Harness, before: Bill | None, sent: SentMessages, text: str) -> ScenarioOutcome:
    cost = shared_figures.cost_figures(harness, before, sent.accepted)
    if harness.site.own:
        harness.site.kill()  # at once, because accepted messages must survive without an orderly shutdown
        with harness.screen.phase("starting again after kill -9", 1):
            harness.site.start()
    figures = (
        Figure("rate", "accepted", sent.rate, "msg/s"),
        *shared_figures.wait_figures(sent, text),
        vital("refused", "refused or without an answer", len(sent.outcome) - sent.accepted),
        vital("missing", f"of {len(sent.ids):,} looked up after kill -9, not there", harness.missing(sent.ids)),
        *cost,
    )
    return ScenarioOutcome(figures, shared_figures.notes(sent, cost), shared_figures.request_trace(sent))
