"""`find`: very many messages with a key of their own each, which are found by it; and what the index for that costs."""

import numpy as np

from duemq.bench.base.session import now_ms
from duemq.bench.clients.load import SendWindow
from duemq.bench.clients.lookups import LookedUp, find_singly
from duemq.bench.harness.harness import Harness
from duemq.bench.harness.reconciliation import spread
from duemq.bench.report.figures import Figure, ScenarioOutcome, vital
from duemq.bench.steps import parts

_FEWEST_SEALED_PER_S = 20_000
_SHOWN = (("p50", "p50"), ("p99", "p99"), ("max", "max"))


def find(
    stage: Harness,
    *,
    count: int,
    ahead_h: float,
    days: float,
    looked_up: int,
    indexed: bool,
    labelled: bool,
    at_rest: bool,
) -> ScenarioOutcome:
    """`count` messages due within `days` days from `ahead_h` hours ahead on; then `looked_up` of them, by key.

    `at_rest`: once sealing and compaction are over, when they are weighed too. Without `indexed` none are looked up.
    `labelled`: each message also has a unique label.
    """
    low = int(now_ms() + ahead_h * 3_600_000)
    before = stage.site.bill()
    job = stage.job(count, SendWindow(low, low + int(days * 86_400_000)), keyed=True, labelled=labelled)
    sent = stage.fill(job, "filling")
    quiet = stage.settle(180 + count / _FEWEST_SEALED_PER_S) if at_rest else True
    figures: tuple[Figure, ...] = (Figure("fill_rate", "accepted while filling", sent.rate, "msg/s"),)
    disk = stage.site.disk_bytes()
    if disk is not None and at_rest:
        figures += (Figure("disk_b", "disk per message, settled", disk / max(sent.accepted, 1), "B"),)
    cost = parts.cost_figures(stage, before, sent.accepted)
    if indexed:
        figures += _look_up(stage, [job.key(seq) for seq in _sample(count, looked_up, stage.setup.seed)])
    notes = parts.notes(sent, cost)
    if not quiet:
        notes = ("the data folder never came to rest: its size is that of a moment", *notes)
    return ScenarioOutcome((*figures, *cost), notes, parts.request_trace(sent))


def _sample(count: int, looked_up: int, seed: int) -> list[int]:
    numbers: list[int] = np.random.default_rng(seed).integers(0, count, looked_up).tolist()
    return numbers


def _look_up(stage: Harness, keys: list[str]) -> tuple[Figure, ...]:
    worker = stage.spawn(find_singly, stage.site.url, keys)
    answers: LookedUp = stage.wait(worker, "look-ups by key", len(keys))
    waits = spread(answers.wait_ms)
    return (
        *(Figure(f"find_{key}", f"found by key {name}", getattr(waits, key), "ms") for key, name in _SHOWN),
        vital("not_found", "looked up by key, not there once as scheduled", int(np.sum(~answers.scheduled))),
    )
