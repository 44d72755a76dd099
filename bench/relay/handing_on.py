"""`relay`: measures a relay's throughput and lateness, compared with the plain client for the same system."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

import numpy as np

from duemq.bench.base.session import now_ms
from duemq.bench.base.workers import BenchWorker
from duemq.bench.clients.reader import ReceivedRecords
from duemq.bench.clients.send import SendWindow, SentMessages, send_steadily
from duemq.bench.harness.harness import Harness
from duemq.bench.harness.tally import spread, tally
from duemq.bench.relay import plain, sink
from duemq.bench.relay.receivers import Receiver, receiver, server_cpu_s
from duemq.bench.relay.relayed import RelayedDestination, quantile
from duemq.bench.report.figures import Figure, ScenarioOutcome, vital
from duemq.bench.steps import shared_figures
from duemq.dev.servers.usage import cpu_s

_WINDOW = SendWindow(500, 1_500)
_FILL_PER_S, _SPARE_S = 8_000, 3.0
_BEGIN_S = 2.0  # until a new destination is being served
_PATIENCE_S = 20.0
_LINGER_S = 1.0


@dataclass(slots=True)
class _Flow:
    """One stream of messages through the relay."""

    key: str
    text: str
    sent: SentMessages
    figures: list[Figure] = field(default_factory=list)

    def of(self, received: ReceivedRecords) -> ReceivedRecords:
        """The records that belong to this flow. The due times of different flows never overlap."""
        low, high = int(self.sent.dues.min()), int(self.sent.dues.max())
        mine = (received.due >= low) & (received.due <= high)
        return replace(
            received, seq=received.seq[mine], due=received.due[mine], at=received.at[mine],
            partition=received.partition[mine],
        )  # fmt: skip


class _RelayRun:
    """A harness's relay, and the system to which it sends messages."""

    def __init__(self, harness: Harness, system: Receiver, own_sink: bool) -> None:
        self.harness, self.system = harness, system
        self.relayed = RelayedDestination(harness.site.url, "bench")
        self.sink: BenchWorker[ReceivedRecords] | None = None
        if own_sink:
            port = urlsplit(system.url).port
            assert port is not None
            self.sink = harness.spawn(sink.listen, port)
            sink.until_listening(port)
        self.accepted = 0

    def cpu(self) -> tuple[float, float]:
        """CPU seconds of the server, and of the other system; NaN for a process that is not visible to us."""
        bill, other = self.harness.site.bill(), server_cpu_s(self.system.url)
        return math.nan if bill is None else cpu_s(bill, "server"), math.nan if other is None else other

    def until_handed_on(self, count: int, text: str) -> None:
        """Wait until the other system has accepted `count` more messages, or has accepted none for several seconds."""
        self.accepted += count
        seen, moved_at = -1, time.monotonic()
        with self.harness.screen.phase(text, count) as advance:
            while (done := self._done()) < self.accepted and time.monotonic() - moved_at < _PATIENCE_S:
                if done != seen:
                    seen, moved_at = done, time.monotonic()
                advance(max(count - (self.accepted - done), 0))
                time.sleep(0.05)
                self.harness.hear()

    def _done(self) -> int:
        return int(self.relayed.figures().get("results", {}).get("accepted", 0))

    def steadily(self, rate: int, seconds: float) -> _Flow:
        harness, key = self.harness, str(rate)
        before, late = self.cpu(), self.relayed.lateness()
        job = harness.job(int(rate * seconds), _WINDOW)
        sent = harness.wait(harness.spawn(send_steadily, job, rate), f"{rate:,} messages/s", job.count)
        self.until_handed_on(sent.accepted, "handing on")
        flow = _Flow(key, f"{rate:,}/s", sent)
        if self.sink is None:
            now = self.relayed.lateness()
            flow.figures += _late(flow, quantile(late, now, 0.5), quantile(late, now, 0.99))
        flow.figures += self._costs(flow, before)
        return flow

    def at_once(self, count: int) -> _Flow:
        """Send `count` messages that are due at the same whole second."""
        harness = self.harness
        second = math.ceil(now_ms() / 1000 + count / _FILL_PER_S + _SPARE_S) * 1000
        sent = harness.fill(harness.job(count, SendWindow(second, second)), "filling")
        harness.sleep_until(second - 50, "waiting for the second")
        before = self.cpu()
        self.until_handed_on(sent.accepted, "handing on")
        flow = _Flow("burst", f"{count:,} due at once", sent)
        if self.sink is None:
            last = self.relayed.figures().get("last_accepted_at") or math.nan
            flow.figures += _speed(flow, second, second, last)
        flow.figures += self._costs(flow, before)
        return flow

    def _costs(self, flow: _Flow, before: tuple[float, float]) -> list[Figure]:
        (server, other), count = self.cpu(), max(flow.sent.accepted, 1)
        return [
            Figure(f"{flow.key}_cpu_us", "  CPU per message, duemq", (server - before[0]) * 1e6 / count, "us"),
            Figure(f"{flow.key}_other_us", "  and the other system", (other - before[1]) * 1e6 / count, "us"),
        ]


def relay(
    harness: Harness, *, to: str, destination: str | None, count: int, rates: Sequence[int], seconds: float
) -> ScenarioOutcome:
    """Send messages at each of these `rates` (messages/s) in turn, for `seconds` each; then `count` messages that are
    due at once. `destination`: the URL of the other system."""
    system = receiver(to, destination, harness.topic.replace(".", "-"))
    relaying = _RelayRun(harness, system, own_sink=to == "http" and destination is None)
    system.make()
    try:
        straight = _plain(harness, to, system, count)
        there = 0 if relaying.sink else system.count()
        relaying.relayed.declare(system, [harness.topic])
        time.sleep(_BEGIN_S)
        flows = [relaying.steadily(rate, seconds) for rate in rates]
        flows.append(relaying.at_once(count))
        time.sleep(_LINGER_S)
        if relaying.sink is None:
            missing = sum(flow.sent.accepted for flow in flows) - (system.count() - there)
            figures = [vital("missing", "not arrived, or more than sent", abs(missing))]
        else:
            relaying.sink.stop()
            figures = _at_the_sink(flows, relaying.sink.result())
    finally:
        system.remove()
    shown = [figure for flow in flows for figure in flow.figures]
    speed = next(figure.value for figure in shown if figure.key == "burst_rate")
    share = Figure("plain_share", "relayed at once, by the plain client", speed / straight[0].value, "x")
    others = Figure("others_cores", "other processes on this machine", harness.neighbours.cores(), "cores")
    return ScenarioOutcome(
        (*shown, *straight, share, *figures, others), shared_figures.notes(flows[-1].sent, (others,))
    )


def _plain(harness: Harness, to: str, system: Receiver, count: int) -> list[Figure]:
    url = system.url.replace(sink.HOOK, sink.PLAIN) if to == "http" else system.url
    payloads = count, harness.setup.payload_bytes, harness.setup.seed
    worker = harness.spawn(plain.CLIENTS[to], url, system.name, payloads, system.at_once)
    done = harness.wait(worker, "the plain client", count)
    return [
        Figure("plain_rate", f"plain client, {system.at_once:,} at once", done.rate, "msg/s"),
        Figure("plain_cpu_us", "  its CPU per message", done.cpu_s * 1e6 / done.count, "us"),
    ]


def _at_the_sink(flows: Sequence[_Flow], received: ReceivedRecords) -> list[Figure]:
    """Compare each flow with the sink's records, and add figures to the flow; return the numbers of faults."""
    counts = [tally(flow.sent, flow.of(received)) for flow in flows]
    for flow, each in zip(flows, counts, strict=True):
        if flow.key == "burst":
            second, at = int(flow.sent.dues[0]), each.at_ms if len(each.at_ms) else np.array([math.nan])
            flow.figures[:0] = _speed(flow, second, float(at.min()), float(at.max()))
        else:
            late = spread(each.lateness_ms)
            flow.figures[:0] = _late(flow, late.p50, late.p99)
    return [
        vital("early", "before it was due", sum(each.early for each in counts)),
        vital("lost", "accepted, never relayed", sum(each.lost for each in counts)),
        vital("duplicate", "relayed more than once", sum(each.duplicate for each in counts)),
    ]


def _late(flow: _Flow, p50: float, p99: float) -> list[Figure]:
    return [
        Figure(f"{flow.key}_p50", f"{flow.text}: due until accepted, p50", p50, "ms"),
        Figure(f"{flow.key}_p99", "  p99", p99, "ms"),
    ]


def _speed(flow: _Flow, second: float, first: float, last: float) -> list[Figure]:
    rate = flow.sent.accepted * 1000 / (last - first) if last > first else math.nan
    begin = "the second" if first == second else "the first"
    return [
        Figure("burst_rate", f"{flow.text}: relayed, {begin} to the last", rate, "msg/s"),
        Figure("burst_s", "  last one, after the second", (last - second) / 1000, "s"),
    ]
