"""Steps that the scenarios for the far future share: a restart, look-ups, cancels, and a stream during these."""

import math
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from duemq.bench.base.session import now_ms
from duemq.bench.clients import cancels
from duemq.bench.clients.lookups import LookupTimes, get_singly
from duemq.bench.far.stream import LoadStream, during, lateness_figures
from duemq.bench.harness.harness import Harness
from duemq.bench.harness.tally import spread
from duemq.bench.report.figures import Figure, vital
from duemq.bench.steps import shared_figures
from duemq.bench.system import delay_files
from duemq.bench.system.delay_files import Span
from duemq.bench.system.metrics import gauge

_STREAM_PER_S = 200
_ALONE_S = 3.0
_BATCH, _LANES = 1_000, 4
_SHOWN = (("p50", "p50"), ("p99", "p99"), ("max", "max"))


@dataclass(frozen=True, slots=True)
class WaitingSample:
    """The ids of waiting messages for each operation; no id is in more than one list."""

    looked_up: list[str]
    cancelled: list[str]
    in_bulk: list[str]


def sample(ids: list[str], singles: int, bulk: int, seed: int) -> WaitingSample:
    """Choose random ids; fewer for each operation if there are not enough."""
    real_ids = np.array([each for each in ids if each])
    drawn = np.random.default_rng(seed).permutation(real_ids).tolist()
    share = min(1.0, len(drawn) / (2 * singles + bulk))
    one, many = int(singles * share), int(bulk * share)
    return WaitingSample(drawn[:one], drawn[one : 2 * one], drawn[2 * one : 2 * one + many])


def far_figures(harness: Harness) -> tuple[Figure, ...]:
    """Figures about the messages in delay files; none for a foreign site."""
    if harness.site.folder is None:
        return ()
    files = delay_files.counts(harness.site.folder).files
    sealed = gauge(harness.site.url, "duemq_sealed_messages")
    figures = (Figure("far_files", "delay files", files),)
    return figures if sealed is None else (Figure("far_messages", "messages in delay files", sealed), *figures)


def restart(harness: Harness, ids: list[str]) -> tuple[Figure, ...]:
    """Kill the site with kill -9, start it again, and measure how long this takes. Does nothing for a foreign site."""
    if not harness.site.own:
        return ()
    harness.site.bill()
    harness.site.kill()
    began = time.monotonic()
    with harness.screen.phase("starting again after kill -9", 1):
        ready_s = harness.site.start()
        found_s = time.monotonic() - began if harness.missing(ids[-1:]) == 0 else math.nan
    return (
        Figure("ready_s", "kill -9 to ready", ready_s, "s"),
        Figure("serving_s", "kill -9 to a known message read", found_s, "s"),
    )


def changes(harness: Harness, chosen: WaitingSample) -> tuple[Figure, ...]:
    """Look up messages, cancel them one by one, and cancel in bulk, during a stream of 200 messages/s that are due
    soon."""
    stream = LoadStream(harness, "beside", _STREAM_PER_S)
    harness.sleep_until(now_ms() + _ALONE_S * 1000, "the stream alone")
    began = now_ms()
    lookups: LookupTimes = harness.wait(
        harness.spawn(get_singly, harness.site.url, chosen.looked_up), "look-ups", len(chosen.looked_up)
    )
    worker = harness.spawn(cancels.cancel_singly, harness.url, chosen.cancelled, None, 1)
    single = harness.wait(worker, "single cancels", len(chosen.cancelled))
    one_by_one = Span(began, now_ms())
    many = harness.spawn(cancels.cancel_many, harness.url, chosen.in_bulk, _BATCH, _LANES, True)
    bulk = harness.wait(many, "bulk cancels", len(chosen.in_bulk))
    ended_ms = float((bulk.asked_ms + bulk.wait_ms).max(initial=one_by_one.ended_ms))
    in_bulk = Span(float(bulk.asked_ms.min(initial=ended_ms, where=bulk.asked_ms > 0)), ended_ms)
    counts = stream.end()
    words = np.concatenate([single.word, bulk.word])
    late = counts.lateness_ms
    return (
        *_waits("get", "get by id", lookups.wait_ms),
        *_waits("cancel", "cancel by id", single.wait_ms),
        Figure("bulk_rate", "bulk cancels, until all were decided", _rate(bulk.word, in_bulk), "cancels/s"),
        vital("not_found", "looked up, not there as scheduled", int(np.count_nonzero(~lookups.scheduled))),
        vital("not_cancelled", "answered other than cancelled", int(np.count_nonzero(words != cancels.CANCELLED))),
        Figure("answered_202", "cancels answered 202 pending at first", single.pending + bulk.pending),
        *lateness_figures("beside", "due at the same time, lateness", late[during(counts, [one_by_one])]),
        *lateness_figures("beside_bulk", "due during bulk cancels, lateness", late[during(counts, [in_bulk])]),
        *shared_figures.count_figures(counts),
    )


def _waits(prefix: str, text: str, sample_ms: npt.NDArray[np.float64]) -> tuple[Figure, ...]:
    waits = spread(sample_ms)
    return tuple(Figure(f"{prefix}_{key}", f"{text} {name}", getattr(waits, key), "ms") for key, name in _SHOWN)


def _rate(words: npt.NDArray[np.int8], span: Span) -> float:
    return np.count_nonzero(words == cancels.CANCELLED) / span.seconds if span.seconds > 0 else math.nan
