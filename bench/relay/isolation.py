"""`relay --endpoints`: measures the lateness of good destinations without bad destinations, and next to them."""

import time
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from duemq.bench.clients.reader import ReceivedRecords
from duemq.bench.clients.send import REJECTED, SendWindow, SentMessages, send_steadily
from duemq.bench.harness.harness import Harness
from duemq.bench.harness.tally import spread, tally
from duemq.bench.relay import sink
from duemq.bench.relay.receivers import Http
from duemq.bench.relay.relayed import RelayedDestination
from duemq.bench.report.figures import Figure, ScenarioOutcome, Target, vital
from duemq.bench.steps import shared_figures
from duemq.bench.system.system import free_port
from duemq.dev.servers.usage import Bill, cpu_s

MAX_MOVED = 10.0  # percent
_WINDOW = SendWindow(1_000, 2_000)
_ROUNDS = 3
_SETTLE_S = 3.0  # until a pause, or the end of a pause, has taken effect everywhere
_DRAIN_S = 3.0


def relay_beside_bad(harness: Harness, *, endpoints: int, rate: int, seconds: float) -> ScenarioOutcome:
    """Send `rate` messages/s in total to `endpoints` destinations for `seconds`, alternately without and with three bad
    destinations.

    One of these refuses connections, one answers after 30 s, and one answers 500. The good destinations get the same
    number of messages each time.
    """
    port, good = free_port(), endpoints - 3
    receiving = harness.spawn(sink.listen, port)
    sink.until_listening(port)
    relayed = [RelayedDestination(harness.site.url, f"bench-{number}") for number in range(endpoints)]
    bad_urls = [
        f"http://127.0.0.1:{free_port()}/dead",
        *(f"http://127.0.0.1:{port}{p}" for p in (sink.SLOW, sink.ERROR)),
    ]
    urls = [f"http://127.0.0.1:{port}{sink.HOOK}"] * good + bad_urls
    for each, number, url in zip(relayed, range(endpoints), urls, strict=True):
        each.declare(Http(url, each.name), [f"{harness.topic}.{number}"])
    bad = relayed[good:]
    flows: dict[str, list[SentMessages]] = {"without": [], "beside": []}
    cpu: dict[str, float] = dict.fromkeys(flows, 0.0)
    for number in range(_ROUNDS + 1):  # the first round is a warm-up and does not count
        for way, topics in (("without", good), ("beside", endpoints)):
            for each in bad:
                each.resume() if way == "beside" else each.pause()
            time.sleep(_SETTLE_S)
            before = harness.site.bill()
            share = rate * topics / endpoints
            job = replace(harness.job(int(share * seconds), _WINDOW), topics=topics)
            text = f"{way} bad ones ({number} of {_ROUNDS})"
            sent = harness.wait(harness.spawn(send_steadily, job, share), text, job.count)
            harness.sleep_until(float(sent.dues.max()) + _DRAIN_S * 1000, text)
            if number:
                cpu[way] += _spent(before, harness.site.bill())
                flows[way].append(_of_good(sent, topics, good))
    shown = [each.figures() for each in bad]
    receiving.stop()
    return _outcome(harness, flows, receiving.result(), cpu, [each.get("results", {}) for each in shown])


def _of_good(sent: SentMessages, topics: int, good: int) -> SentMessages:
    """Mark the messages to bad destinations as rejected, because they do not arrive."""
    seq = np.arange(len(sent.dues))
    return replace(sent, outcome=np.where(seq % topics < good, sent.outcome, REJECTED).astype(np.int8))


def _spent(before: Bill | None, after: Bill | None) -> float:
    return 0.0 if before is None or after is None else cpu_s(after, "server") - cpu_s(before, "server")


def _outcome(
    harness: Harness,
    flows: dict[str, list[SentMessages]],
    received: ReceivedRecords,
    cpu: dict[str, float],
    results: list[dict[str, int]],
) -> ScenarioOutcome:
    late: dict[str, list[npt.NDArray[np.float64]]] = {way: [] for way in flows}
    wrong = 0
    for way, several in flows.items():
        for sent in several:
            mine = (received.due >= sent.dues.min()) & (received.due <= sent.dues.max())
            of_flow = replace(
                received, seq=received.seq[mine], due=received.due[mine], at=received.at[mine],
                partition=received.partition[mine],
            )  # fmt: skip
            counts = tally(sent, of_flow)
            late[way].append(counts.lateness_ms)
            wrong += counts.lost + counts.duplicate + counts.early + counts.wrong_due + counts.unasked
    spreads = {way: spread(np.concatenate(parts_)) for way, parts_ in late.items()}
    figures: list[Figure] = []
    for way, each in spreads.items():
        text = f"{way} bad ones: lateness of the good ones"
        figures += [Figure(f"{way}_{q}", f"{text} {q}", getattr(each, q), "ms") for q in ("p50", "p99", "max")]
        each_p99 = [spread(one).p99 for one in late[way]]
        figures += [
            Figure(f"{way}_p99_low", "  p99, lowest of the rounds", min(each_p99), "ms"),
            Figure(f"{way}_p99_high", "  p99, highest of the rounds", max(each_p99), "ms"),
            Figure(f"{way}_cpu_s", "  CPU of duemq", cpu[way], "s"),
        ]
    moved = (spreads["beside"].p99 / spreads["without"].p99 - 1) * 100
    tried = [sum(each.values()) for each in results]
    others = Figure("others_cores", "other processes on this machine", harness.neighbours.cores(), "cores")
    figures += [
        Figure("moved", "p99 moved by", moved, "%", Target(MAX_MOVED)),
        vital("wrong", "to good ones: lost, twice, early or never asked for", wrong),
        vital("untried", "bad ones that nothing was sent to", sum(not count for count in tried)),
        others,
    ]
    return ScenarioOutcome(tuple(figures), (shared_figures.NOISY,) if others.value > shared_figures.NOISY_CORES else ())
