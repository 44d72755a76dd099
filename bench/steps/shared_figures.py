"""Figures that several scenarios share."""

import time
from functools import partial

import numpy as np

from duemq.bench.clients.send import OPEN, REJECTED, SentMessages
from duemq.bench.harness.harness import Harness
from duemq.bench.harness.tally import LatenessSpread, Tally, spread
from duemq.bench.report.figures import Figure, Trace, vital
from duemq.dev.servers.usage import Bill, cpu_s, holder

MIB = 1 << 20
NOISY_CORES = 0.3
_FULL_FLOW_S = 5.0
NOISY = "other work kept part of the machine busy: read the figures as a lower bound"


def spread_figures(prefix: str, text: str, values: LatenessSpread) -> tuple[Figure, ...]:
    """Quantiles in ms."""
    names = (("p50", "p50"), ("p90", "p90"), ("p99", "p99"), ("p999", "p99.9"), ("max", "max"))
    return tuple(Figure(f"{prefix}_{key}", f"{text} {name}", getattr(values, key), "ms") for key, name in names)


def count_figures(counts: Tally) -> tuple[Figure, ...]:
    """Figures for faults in the delivery of messages."""
    return (
        vital("early", "read before due", counts.early),
        vital("lost", "accepted, never read", counts.lost),
        vital("duplicate", "read more than once", counts.duplicate),
        vital("wrong", "due time wrong, or never asked for", counts.wrong_due + counts.unasked),
    )


def _cpu(then: Bill, now: Bill, messages: float, key: str, text: str, *roles: str) -> Figure:
    """The CPU time that processes with these roles used between two bills, per message."""
    return Figure(key, text, (cpu_s(now, *roles) - cpu_s(then, *roles)) * 1e6 / messages, "us")


def cost_figures(harness: Harness, before: Bill | None, messages: int) -> tuple[Figure, ...]:
    """The site's cost since `before`, for this number of messages; empty for a foreign site."""
    after = harness.site.bill()
    others = Figure("others_cores", "other processes on this machine", harness.neighbours.cores(), "cores")
    if before is None or after is None:
        return ()
    cpu = partial(_cpu, before, after, max(messages, 1))
    spent: tuple[Figure, ...] = (cpu("cpu_us", "server CPU per message", "server"),)
    name = "server"
    if harness.site.bootstrap is not None:
        name = "a node's" if sum(part.role == "node" for part in after) == 1 else "largest node's"
        spent = (
            cpu("cpu_us", "CPU per message, proxies and nodes", "proxy", "node"),
            cpu("cpu_proxy_us", "  proxies", "proxy"),
            cpu("cpu_node_us", "  nodes", "node"),
            cpu("cpu_broker_us", "  brokers", "broker"),
            cpu("cpu_all_us", "CPU per message, with the brokers", "proxy", "node", "broker"),
        )
    memory = holder(after)
    return (
        *spent,
        Figure("rss_peak_mib", f"{name} memory, peak", memory.peak_rss_bytes / MIB, "MiB"),
        Figure("rss_mib", f"{name} memory at the end", memory.rss_bytes / MIB, "MiB"),
        others,
    )


class FullFlow:
    """Measures CPU time in full flow, while as many messages arrive as are delivered. At the beginning and end of a
    stream the two rates differ, which matters in a short bench, but not over a day.

    Full flow lasts from `begin_s` after the creation of this object, when even the latest due times of the first
    messages have passed, until `end`.
    """

    def __init__(self, harness: Harness, rate: float, begin_s: float) -> None:
        self._harness, self._rate = harness, rate
        self._begin_at = time.monotonic() + begin_s
        self._began: tuple[float, Bill] | None = None
        self._ended: tuple[float, Bill] | None = None

    def update(self) -> None:
        """Record when the full flow begins. Call it often."""
        if self._began is None and time.monotonic() >= self._begin_at:
            self._began = time.monotonic(), self._harness.site.bill() or ()

    def end(self) -> None:
        if self._began is not None and time.monotonic() - self._began[0] >= _FULL_FLOW_S:
            self._ended = time.monotonic(), self._harness.site.bill() or ()

    def figures(self) -> tuple[Figure, ...]:
        """The CPU time in full flow; empty if full flow was too short, and on the embedded bus."""
        if self._began is None or self._ended is None or self._harness.site.bootstrap is None:
            return ()
        (began, then), (ended, now) = self._began, self._ended
        cpu = partial(_cpu, then, now, self._rate * (ended - began))
        return (
            cpu("flow_us", "in full flow: proxies and nodes", "proxy", "node"),
            cpu("flow_all_us", "in full flow, with the brokers", "proxy", "node", "broker"),
        )


def notes(sent: SentMessages, figures: tuple[Figure, ...] = ()) -> tuple[str, ...]:
    """Notes about problems with sending, and about other work on the machine."""
    lines = []
    refused, lost_answers = int(np.count_nonzero(sent.outcome == REJECTED)), int(np.count_nonzero(sent.outcome == OPEN))
    if refused or lost_answers:
        lines.append(f"{refused:,} messages refused, {lost_answers:,} without an answer; the first: {sent.problem}")
    if sent.retries:
        lines.append(f"{sent.retries:,} requests were sent again because the server asked for it (429 or 503)")
    if any(figure.key == "others_cores" and figure.value > NOISY_CORES for figure in figures):
        lines.append(NOISY)
    return tuple(lines)


def lateness_trace(counts: Tally) -> Trace | None:
    """The lateness of every message, over the time at which it was read."""
    if not len(counts.at_ms):
        return None
    weight = np.ones(len(counts.at_ms), np.int64)
    return Trace("lateness", "messages read/s", counts.lateness_ms, counts.at_ms, weight)


def request_trace(sent: SentMessages) -> Trace | None:
    """The duration of every request, over the time of its answer."""
    if not len(sent.answered_ms):
        return None
    return Trace("answer time of a request", "messages accepted/s", sent.wait_ms, sent.answered_ms, sent.size)


def wait_figures(sent: SentMessages, text: str) -> tuple[Figure, ...]:
    """Figures for the durations of the requests."""
    waits = spread(sent.wait_ms)
    return (Figure("accept_p50", f"{text} p50", waits.p50, "ms"), Figure("accept_p99", f"{text} p99", waits.p99, "ms"))
