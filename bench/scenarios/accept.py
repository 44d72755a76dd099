"""`accept`: how many messages per second are taken in, one by one and in batches; nothing falls due meanwhile."""

from duemq.bench.base.session import now_ms
from duemq.bench.clients.load import SendWindow, SentMessages, send_singly
from duemq.bench.harness.harness import Harness
from duemq.bench.report.figures import Figure, ScenarioOutcome, vital
from duemq.bench.steps import parts
from duemq.dev.servers.usage import Bill

_AHEAD_MS, _WIDTH_MS = 3_600_000, 600_000
_SAMPLE = 500


def _job_window() -> SendWindow:
    low = int(now_ms() + _AHEAD_MS)
    return SendWindow(low, low + _WIDTH_MS)


def accept_singles(stage: Harness, *, count: int, connections: int) -> ScenarioOutcome:
    """`count` single POSTs from `connections` connections, each waiting for its 201 before the next."""
    before = stage.site.bill()
    job = stage.job(count, _job_window(), max(count // _SAMPLE, 1))
    sent = stage.wait(stage.spawn(send_singly, job, connections), "single POSTs", count)
    return _outcome(stage, before, sent, "201 received")


def accept_batches(stage: Harness, *, count: int, batch: int, connections: int) -> ScenarioOutcome:
    """`count` messages in batches of `batch`, over `connections` connections."""
    before = stage.site.bill()
    job = stage.job(count, _job_window(), max(count // _SAMPLE, 1))
    sent = stage.fill(job, f"batches of {batch:,}", batch, connections)
    return _outcome(stage, before, sent, "batch answered")


def _outcome(stage: Harness, before: Bill | None, sent: SentMessages, text: str) -> ScenarioOutcome:
    cost = parts.cost_figures(stage, before, sent.accepted)
    if stage.site.own:
        stage.site.kill()  # at once: what was accepted must be there although nobody had time to tidy up
        with stage.screen.phase("starting again after kill -9", 1):
            stage.site.start()
    figures = (
        Figure("rate", "accepted", sent.rate, "msg/s"),
        *parts.wait_figures(sent, text),
        vital("refused", "refused or without an answer", len(sent.outcome) - sent.accepted),
        vital("missing", f"of {len(sent.ids):,} looked up after kill -9, not there", stage.missing(sent.ids)),
        *cost,
    )
    return ScenarioOutcome(figures, parts.notes(sent, cost), parts.request_trace(sent))
