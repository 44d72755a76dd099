"""`find`: looks up messages by key, among very many with different keys, and measures the cost of the index."""

import numpy as np

from duemq.bench.base.session import now_ms
from duemq.bench.clients.lookups import LookupTimes, find_singly
from duemq.bench.clients.send import SendWindow
from duemq.bench.harness.harness import Harness
from duemq.bench.harness.tally import spread
from duemq.bench.report.figures import Figure, ScenarioOutcome, vital
from duemq.bench.steps import shared_figures

_FEWEST_SEALED_PER_S = 20_000
_SHOWN = (("p50", "p50"), ("p99", "p99"), ("max", "max"))


def find(
    harness: Harness,
    *,
    count: int,
    ahead_h: float,
    days: float,
    looked_up: int,
    indexed: bool,
    labelled: bool,
    at_rest: bool,
) -> ScenarioOutcome:
    """Schedule `count` messages that are due within `days` days, starting `ahead_h` hours from now; then look up
    `looked_up` of them by key.

    `at_rest`: do this, and measure the size, after sealing and compaction. Without `indexed` there are no look-ups.
    `labelled`: each message also has a unique label.
    """
    low = int(now_ms() + ahead_h * 3_600_000)
    before = harness.site.bill()
    job = harness.job(count, SendWindow(low, low + int(days * 86_400_000)), keyed=True, labelled=labelled)
    sent = harness.fill(job, "filling")
    quiet = harness.wait_until_quiet(180 + count / _FEWEST_SEALED_PER_S) if at_rest else True
    figures: tuple[Figure, ...] = (Figure("fill_rate", "accepted while filling", sent.rate, "msg/s"),)
    disk = harness.site.disk_bytes()
    if disk is not None and at_rest:
        figures += (Figure("disk_b", "disk per message, settled", disk / max(sent.accepted, 1), "B"),)
    cost = shared_figures.cost_figures(harness, before, sent.accepted)
    if indexed:
        figures += _look_up(harness, [job.key(seq) for seq in _sample(count, looked_up, harness.setup.seed)])
    notes = shared_figures.notes(sent, cost)
    if not quiet:
        notes = ("the data folder never came to rest: its size is a snapshot", *notes)
    return ScenarioOutcome((*figures, *cost), notes, shared_figures.request_trace(sent))


def _sample(count: int, looked_up: int, seed: int) -> list[int]:
    numbers: list[int] = np.random.default_rng(seed).integers(0, count, looked_up).tolist()
    return numbers


def _look_up(harness: Harness, keys: list[str]) -> tuple[Figure, ...]:
    worker = harness.spawn(find_singly, harness.site.url, keys)
    answers: LookupTimes = harness.wait(worker, "look-ups by key", len(keys))
    waits = spread(answers.wait_ms)
    return (
        *(Figure(f"find_{key}", f"found by key {name}", getattr(waits, key), "ms") for key, name in _SHOWN),
        vital("not_found", "looked up by key, not there once as scheduled", int(np.sum(~answers.scheduled))),
    )
