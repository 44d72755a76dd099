"""`pending`: very many messages that wait for weeks. Measures the cost of each, a restart, look-ups and cancels."""

from duemq.bench.base.session import now_ms
from duemq.bench.clients.send import SendWindow
from duemq.bench.far import waiting
from duemq.bench.harness.harness import Harness
from duemq.bench.report.figures import Figure, ScenarioOutcome, vital
from duemq.bench.steps import shared_figures
from duemq.dev.servers.usage import Bill, holder

_IDS = 25_000
_SINGLES, _BULK = 1_000, 10_000
_LOOKED_UP_AGAIN = 500
_FEWEST_SEALED_PER_S = 20_000


def pending(harness: Harness, *, count: int, ahead_h: float, days: float) -> ScenarioOutcome:
    """Schedule `count` messages that are due within `days` days, starting `ahead_h` hours from now.

    Their cost is measured after sealing and compaction. Then follow a kill -9, a restart, look-ups and cancels.
    """
    low = int(now_ms() + ahead_h * 3_600_000)
    before = harness.site.bill()
    job = harness.job(count, SendWindow(low, low + int(days * 86_400_000)), max(count // _IDS, 1))
    sent = harness.fill(job, "filling")
    filled = harness.site.bill()
    spent = shared_figures.cost_figures(harness, before, sent.accepted)
    quiet = harness.wait_until_quiet(180 + count / _FEWEST_SEALED_PER_S)
    disk, bill_at_rest = harness.site.disk_bytes(), harness.site.bill()
    figures: tuple[Figure, ...] = (Figure("fill_rate", "accepted while filling", sent.rate, "msg/s"),)
    figures += waiting.far_figures(harness)
    if before is not None and filled is not None and bill_at_rest is not None and disk is not None:
        each = max(sent.accepted, 1)
        figures += (
            Figure(
                "rss_settled_mib", "server memory, settled", holder(bill_at_rest).rss_bytes / shared_figures.MIB, "MiB"
            ),
            Figure("rss_b", "  growth per message", _growth(before, bill_at_rest) / each, "B"),
            Figure("rss_full_b", "  growth per message right after filling", _growth(before, filled) / each, "B"),
            Figure("disk_b", "disk per message, settled", disk / each, "B"),
            Figure("disk_ratio", "  by payload bytes", disk / each / harness.setup.payload_bytes, "x"),
        )
    figures += waiting.restart(harness, sent.ids)
    missing = harness.missing(sent.ids, _LOOKED_UP_AGAIN)
    figures += (vital("missing", f"of {_LOOKED_UP_AGAIN:,} looked up after kill -9, not there", missing),)
    figures += waiting.changes(harness, waiting.sample(sent.ids, _SINGLES, _BULK, harness.setup.seed))
    cost = shared_figures.cost_figures(harness, before, sent.accepted)
    whole = {figure.key: figure for figure in cost}
    # The CPU time is only for filling, because the later steps do not depend on the number of messages.
    figures += tuple(figure if figure.key.startswith("cpu") else whole[figure.key] for figure in spent)
    notes = shared_figures.notes(sent, cost)
    if not quiet:
        notes = ("the data folder never came to rest: its size is a snapshot", *notes)
    return ScenarioOutcome(figures, notes, shared_figures.request_trace(sent))


def _growth(before: Bill, after: Bill) -> int:
    return holder(after).rss_bytes - holder(before).rss_bytes
