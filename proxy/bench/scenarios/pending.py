"""`pending`: very many messages that wait for tomorrow: what each costs in memory and on disk; a restart with them."""

import math
import time

from duemq.proxy.bench.figures import Figure, Outcome, vital
from duemq.proxy.bench.load import Window
from duemq.proxy.bench.scenarios import parts
from duemq.proxy.bench.session import now_ms
from duemq.proxy.bench.stage import Stage
from duemq.proxy.bench.usage import Bill, holder

_SAMPLE = 500


def pending(stage: Stage, *, count: int, ahead_h: float, width_h: float) -> Outcome:
    """`count` messages due within `width_h` hours from `ahead_h` hours ahead on; then kill -9 and start again."""
    low = int(now_ms() + ahead_h * 3_600_000)
    before = stage.site.bill()
    job = stage.job(count, Window(low, low + int(width_h * 3_600_000)), max(count // _SAMPLE, 1))
    sent = stage.fill(job, "filling")
    filled = stage.site.bill()
    quiet = stage.settle()
    disk, settled = stage.site.disk_bytes(), stage.site.bill()
    figures: tuple[Figure, ...] = (Figure("fill_rate", "accepted while filling", sent.rate, "msg/s"),)
    cost = parts.cost_figures(stage, before, sent.accepted)
    if before is not None and filled is not None and settled is not None and disk is not None:
        each = max(sent.accepted, 1)
        figures += (
            Figure("rss_b", "memory growth per message, settled", _growth(before, settled) / each, "B"),
            Figure("rss_full_b", "  right after filling", _growth(before, filled) / each, "B"),
            Figure("disk_b", "disk per message, settled", disk / each, "B"),
            Figure("disk_ratio", "  by payload bytes", disk / each / stage.setup.payload_bytes, "x"),
            *_restart(stage, sent.ids),
        )
    figures += (vital("missing", f"of {len(sent.ids):,} looked up, not there", stage.missing(sent.ids)), *cost)
    notes = parts.notes(sent, cost)
    if not quiet:
        notes = ("the data folder never came to rest: its size is that of a moment", *notes)
    return Outcome(figures, notes, parts.request_trace(sent))


def _growth(before: Bill, after: Bill) -> int:
    return holder(after).rss_bytes - holder(before).rss_bytes


def _restart(stage: Stage, ids: list[str]) -> tuple[Figure, ...]:
    stage.site.kill()
    began = time.monotonic()
    with stage.screen.phase("starting again after kill -9", 1):
        ready_s = stage.site.start()
        found_s = time.monotonic() - began if stage.missing(ids[-1:]) == 0 else math.nan
    return (
        Figure("ready_s", "kill -9 to ready", ready_s, "s"),
        Figure("serving_s", "kill -9 to a known message read", found_s, "s"),
    )
