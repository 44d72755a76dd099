"""The scenarios with their parameters, and the targets that duemq has set itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rich.markup import escape

from duemq.bench.clients.send import EVERY_MS
from duemq.bench.far.find import find
from duemq.bench.far.imports import import_windows
from duemq.bench.far.load_window import load
from duemq.bench.far.pending import pending
from duemq.bench.far.wheel import wheel
from duemq.bench.harness.harness import Harness, Setup
from duemq.bench.harness.progress_bar import ProgressScreen
from duemq.bench.relay.handing_on import relay
from duemq.bench.relay.isolation import relay_beside_bad
from duemq.bench.relay.receivers import place
from duemq.bench.report.figures import ScenarioOutcome, ScenarioResult, Target
from duemq.bench.scenarios.accept import accept_batches, accept_singles
from duemq.bench.scenarios.bad_topics import bad_topics
from duemq.bench.scenarios.cancel import cancel
from duemq.bench.scenarios.cancel_callers import cancel_callers
from duemq.bench.scenarios.cancel_race import cancel_race
from duemq.bench.scenarios.consume import consume
from duemq.bench.scenarios.drain import drain
from duemq.bench.scenarios.hand_overs import hand_overs
from duemq.bench.scenarios.hot_second import hot_second
from duemq.bench.scenarios.receive import receive
from duemq.bench.scenarios.start import start
from duemq.bench.scenarios.steady import steady

SCENARIOS: dict[str, Callable[..., ScenarioOutcome]] = {
    "steady": steady,
    "hot-second": hot_second,
    "drain": drain,
    "start": start,
    "cancel-race": cancel_race,
    "pending": pending,
    "accept-singles": accept_singles,
    "accept-batches": accept_batches,
    "cancel": cancel,
    "cancel-callers": cancel_callers,
    "consume": consume,
    "receive": receive,
    "bad-topics": bad_topics,
    "hand-overs": hand_overs,
    "relay": relay,
    "relay-beside-bad": relay_beside_bad,
    "load": load,
    "find": find,
    "import": import_windows,
}
_CALLERS = (1, 8, 64)
_RELAYING: Mapping[str, str] = {"relay.private_networks": "127.0.0.0/8"}
_RELAY_P99_MS = {1_000: 60, 2_000: 40}  # by rate
_RELAY_PER_S, _RELAY_PER_S_HTTP = 15_000, 6_000
ALONE: dict[str, Callable[..., ScenarioOutcome]] = {"wheel": wheel}
"""Scenarios that need no site."""


@dataclass(frozen=True, slots=True)
class BenchStep:
    """One scenario with its parameters (keyword arguments of its function) and targets by figure key."""

    name: str
    title: str
    parameters: Mapping[str, Any]
    targets: Mapping[str, Target] = field(default_factory=dict)
    shards: int | None = None  # shards of the started system for this step, whatever the setup says
    nodes: int | None = None  # nodes of the cluster, unless the setup sets them
    settings: Mapping[str, str] = field(
        default_factory=dict
    )  # settings of the started system; the setup's take precedence


def run(step: BenchStep, setup: Setup, runs: int, screen: ProgressScreen) -> ScenarioResult:
    """Run a step `runs` times, each on a new site and folder unless the setup names them."""
    setup = replace(
        setup, shards=step.shards or setup.shards, nodes=setup.nodes or step.nodes,
        settings={**step.settings, **setup.settings},
    )  # fmt: skip
    outcomes = []
    for number in range(1, runs + 1):
        title = step.title if runs == 1 else f"{step.title} ({number} of {runs})"
        screen.console.print(f"[bold]{escape(title)}[/bold]", highlight=False)
        if step.name in ALONE:
            outcome = ALONE[step.name](screen, **step.parameters)
        else:
            with Harness(setup, screen) as harness:
                outcome = SCENARIOS[step.name](harness, **step.parameters)
        # A foreign site reports neither memory nor a restart time: drop those targets.
        keys = {figure.key for figure in outcome.figures}
        outcomes.append(outcome.against({key: target for key, target in step.targets.items() if key in keys}))
    return ScenarioResult(step.name, step.title, step.parameters, tuple(outcomes))


def steady_step(rate: int, seconds: int, targets: Mapping[str, Target], every_ms: float = EVERY_MS) -> BenchStep:
    """A stream that must be accepted in full."""
    parameters = {"rate": rate, "seconds": seconds, "due_from_s": 5.0, "due_to_s": 20.0, "every_ms": every_ms}
    title = f"steady: {rate:,} msg/s for {seconds} s, due 5 to 20 s ahead"
    title += "" if every_ms == EVERY_MS else f", a batch every {every_ms:g} ms"
    return BenchStep("steady", title, parameters, {"rate": Target(rate * 0.99, at_least=True), **targets})


def hot_step(count: int, targets: Mapping[str, Target], kill_at: float | None = None) -> BenchStep:
    """A hot second, undisturbed or with a kill -9."""
    title = f"hot second: {count:,} due at once" + (f", kill -9 after {kill_at:.0f} %" if kill_at else "")
    return BenchStep("hot-second", title, {"count": count, "kill_at": kill_at}, targets)


def drain_step(count: int, targets: Mapping[str, Target]) -> BenchStep:
    """A backlog that fell due while delivery was stopped."""
    return BenchStep("drain", f"drain: {count:,} overdue at start", {"count": count}, targets)


def start_step(starts: int, targets: Mapping[str, Target]) -> BenchStep:
    """Starts of each kind of process with an empty folder."""
    return BenchStep("start", f"start: {starts} of each kind, with an empty folder", {"starts": starts}, targets)


def singles_step(count: int, targets: Mapping[str, Target], connections: int = 32) -> BenchStep:
    """Messages accepted one by one."""
    title = f"accept: single POSTs over {connections} connections"
    return BenchStep("accept-singles", title, {"count": count, "connections": connections}, targets)


def batches_step(count: int, targets: Mapping[str, Target], batch: int = 1_000, connections: int = 4) -> BenchStep:
    """Messages accepted in batches."""
    title = f"accept: batches of {batch:,} over {connections} connections"
    return BenchStep("accept-batches", title, {"count": count, "batch": batch, "connections": connections}, targets)


def race_step(count: int) -> BenchStep:
    """Cancels around the moment of delivery: every answer must be true, whichever it is."""
    parameters = {"count": count, "spread_ms": 200.0, "over_s": 5.0}
    return BenchStep("cancel-race", f"cancel race: {count:,} within ±200 ms of due", parameters)


def cancel_step(
    count: int, targets: Mapping[str, Target], singles: int = 1_000, batch: int = 1_000, connections: int = 4
) -> BenchStep:
    """Of `count` pending, some are cancelled one by one, then half of the others in bulk."""
    parameters = {"count": count, "singles": singles, "batch": batch, "connections": connections}
    return BenchStep("cancel", "cancel: single on an idle node, and in bulk", parameters, targets)


def callers_step(count: int, callers: tuple[int, ...], by_name: bool, targets: Mapping[str, Target]) -> BenchStep:
    """Single cancels by this many callers at a time, by id or by name."""
    title = f"cancel by {'name' if by_name else 'id'}, {', '.join(map(str, callers))} at a time"
    return BenchStep("cancel-callers", title, {"count": count, "callers": callers, "by_name": by_name}, targets)


def receive_step(count: int, workers: int, at_a_time: tuple[int, ...]) -> BenchStep:
    """Workers that share a topic over HTTP."""
    title = f"receive: {count:,} by {workers} workers, {', '.join(map(str, at_a_time))} at a time"
    parameters = {"count": count, "workers": workers, "at_a_time": at_a_time}
    targets = {"rate_100": Target(10_000, at_least=True)}
    return BenchStep("receive", title, parameters, targets)


def relay_step(to: str, destination: str | None, count: int, rates: tuple[int, ...], seconds: int) -> BenchStep:
    """Messages sent to one destination; `destination` is its URL."""
    targets = {f"{rate}_p99": Target(_RELAY_P99_MS[rate]) for rate in rates if rate in _RELAY_P99_MS}
    targets["burst_rate"] = Target(_RELAY_PER_S_HTTP if to == "http" else _RELAY_PER_S, at_least=True)
    title = f"relay to {to if destination is None else place(destination)}: {count:,} due at once"
    parameters = {"to": to, "destination": destination, "count": count, "rates": rates, "seconds": seconds}
    return BenchStep("relay", title, parameters, targets, settings=_RELAYING)


def beside_bad_step(endpoints: int, rate: int, seconds: int) -> BenchStep:
    """Messages sent to very many HTTP destinations, three of which are bad."""
    title = f"relay to {endpoints} endpoints, {rate:,} messages/s in all: without and beside three bad ones"
    parameters = {"endpoints": endpoints, "rate": rate, "seconds": seconds}
    return BenchStep("relay-beside-bad", title, parameters, settings=_RELAYING)


def everything(quick: bool) -> list[BenchStep]:
    """All figures of the embedded bus in docs/explain/benchmarks.md, in order; `quick`: a tenth of the messages."""
    part = 10 if quick else 1
    seconds, pending_count = (10, 200_000) if quick else (60, 2_000_000)
    cancels = {f"rate_{callers}": Target(rate, at_least=True) for callers, rate in ((1, 800), (8, 4_000), (64, 12_000))}
    return [
        steady_step(2_000, seconds, {"late_p50": Target(2), "late_p99": Target(6), "cpu_us": Target(170)}, every_ms=2),
        steady_step(5_000, seconds, {"late_p50": Target(8), "late_p99": Target(40)}),
        steady_step(10_000, seconds, {"late_p99": Target(80), "cpu_us": Target(60)}),
        hot_step(100_000 // part, {"last_s": Target(1.1)}),
        hot_step(500_000 // part, {"last_s": Target(4.5), "rss_peak_mib": Target(600)}),
        hot_step(100_000 // part, {"next_s": Target(1)}, kill_at=30),
        start_step(10, {"serve_p50": Target(0.7)}),
        drain_step(100_000 // part, {}),
        singles_step(20_000 // part, {"rate": Target(2_500, at_least=True)}),
        batches_step(400_000 // part, {"rate": Target(40_000, at_least=True)}),
        race_step(5_000 // part),
        cancel_step(200_000 // part, {"single_p99": Target(30), "bulk_rate": Target(30_000, at_least=True)}),
        callers_step(5_000 // part, _CALLERS, False, cancels),
        callers_step(5_000 // part, _CALLERS, True, cancels),
        receive_step(100_000 // part, 8, (100, 10)),
        relay_step("http", None, 30_000 // part, (1_000, 2_000), 10),
        beside_bad_step(100, 500, 10),
        BenchStep(
            "pending",
            f"pending: {pending_count:,} a day ahead",
            {"count": pending_count, "ahead_h": 24.0, "days": 1 / 24},
            {"rss_b": Target(100), "disk_ratio": Target(1.3), "serving_s": Target(5)},
        ),
    ]
