"""`duemq bench`: measures a running system as its users see it."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from duemq.bench.plans.bench_steps import BenchStep

app = typer.Typer(
    name="bench",
    no_args_is_help=True,
    help="Measure duemq as its users see it: open loop, every message counted, lateness = receive time - due.",
    epilog="Exit code 1: a message was lost, repeated, early or answered wrongly. A missed speed is only shown.",
)


@dataclass(frozen=True)
class Common:
    """Options that every scenario has."""

    on: Annotated[
        Literal["embedded", "kafka", "kafka3"],
        typer.Option(help="What to start: one process, or a cluster with one or three Kafka brokers."),
    ] = "embedded"
    shards: Annotated[int | None, typer.Option(min=1, help="Shards of this system. Default: one per node.")] = None
    nodes: Annotated[int | None, typer.Option(min=1, help="Nodes of the cluster it starts.")] = None
    url: Annotated[str | None, typer.Option(help="Measure this server. Default: start one, and stop it again.")] = None
    data: Annotated[Path | None, typer.Option(help="Data folder of the started system (kept).")] = None
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary folder, with the logs.")] = False
    payload_bytes: Annotated[int, typer.Option(min=20, help="Bytes per payload.")] = 256
    by: Annotated[
        Literal["poll", "events", "frames"],
        typer.Option(help="Read by long poll or server-sent events; or send and read by frames."),
    ] = "poll"
    seed: Annotated[int, typer.Option(help="Seed of all random choices.")] = 1
    traced: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Send trace contexts, this share of them sampled. Default: send none."),
    ] = None
    further: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the started system.", metavar="KEY=VALUE")
    ] = None
    runs: Annotated[int, typer.Option(min=1, help="Repeat; report lowest, median and highest.")] = 1
    json: Annotated[Path | None, typer.Option(help="Write all figures to this file.")] = None
    plot: Annotated[Path | None, typer.Option(help="Draw to this file: .png, or .html for a page.")] = None


def command(name: str) -> Callable[[Callable[..., "list[BenchStep]"]], Callable[..., None]]:
    """A sub-command from a function that returns its steps, with the common options added.

    A parameter named like a common option gets that option's value.
    """

    def register(steps_of: Callable[..., "list[BenchStep]"]) -> Callable[..., None]:
        @wraps(steps_of)
        def run(**options: Any) -> None:
            common = Common(**{each.name: options[each.name] for each in fields(Common)})
            _bench(steps_of(**{name: options[name] for name in parameters}), common)

        parameters = inspect.signature(steps_of, eval_str=False).parameters
        common_names = {each.name for each in fields(Common)}
        own = [each for each in parameters.values() if each.name not in common_names]
        shared = [
            inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type)
            for each in fields(Common)
        ]
        run.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in (*own, *shared)}
        del run.__dict__["__wrapped__"]  # else typer would use the signature of the bare function
        app.command(name)(run)
        return run

    return register


def _bench(steps: "list[BenchStep]", common: Common) -> None:
    import signal

    from rich.console import Console

    from duemq.bench.base.workers import WorkerError
    from duemq.bench.harness.harness import Setup
    from duemq.bench.harness.progress_bar import ProgressScreen
    from duemq.bench.plans import bench_steps
    from duemq.bench.report import report
    from duemq.bench.report.plot import write_plot
    from duemq.bench.system.system import SiteError
    from duemq.dev.servers.usage import filesystem

    if common.plot is not None and common.plot.suffix not in (".png", ".html"):
        raise typer.BadParameter("give a file that ends in .png or .html", param_hint="--plot")
    if common.data is not None and common.data.exists() and any(common.data.iterdir()):
        raise typer.BadParameter(f"{common.data} is not empty; a bench starts with nothing", param_hint="--data")
    if common.data is not None and (common.runs > 1 or len(steps) > 1):
        raise typer.BadParameter("one folder serves one run; leave it out for several", param_hint="--data")
    _refuse_what_does_not_go_together(common)
    console = Console()
    setup = Setup(
        common.url,
        common.data,
        common.keep,
        common.payload_bytes,
        common.by,
        common.seed,
        common.on,
        common.shards,
        common.nodes,
        _settings(common.further or []),
        common.traced,
    )
    where = report.machine(setup, filesystem(common.data or Path(_temporary())))
    if common.url is None and where["filesystem"] == "tmpfs":
        console.print("note: the data folder is in memory (tmpfs), where a sync costs nothing", style="yellow")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: the started server must end, too
    results = []
    try:
        for step in steps:
            results.append(bench_steps.run(step, setup, common.runs, ProgressScreen(console)))
            report.show(console, results[-1])
    except (SiteError, WorkerError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    finally:
        if results and common.json is not None:
            report.write_json(common.json, results, where)
        if results and common.plot is not None:
            write_plot(common.plot, results, where)
    if len(results) > 1:
        report.summary(console, results)
    if not all(result.sound for result in results):
        raise typer.Exit(1)


def _refuse_what_does_not_go_together(common: Common) -> None:
    if common.url is not None and (common.on != "embedded" or common.shards is not None or common.further):
        raise typer.BadParameter(
            "they do not apply to a running server: leave out --on, --shards and --set", param_hint="--url"
        )
    if common.on == "embedded" and common.nodes is not None:
        raise typer.BadParameter("the embedded bus has one process; use --on kafka", param_hint="--nodes")
    if common.on != "embedded" and common.by == "events":
        raise typer.BadParameter("a cluster's messages are read from Kafka", param_hint="--by")


def _settings(further: list[str]) -> dict[str, str]:
    settings = {}
    for text in further:
        key, equals, value = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--set")
        settings[key] = value
    return settings


def _temporary() -> str:
    import tempfile

    return tempfile.gettempdir()


@command("steady")
def steady(
    rate: Annotated[int, typer.Option(min=1, help="Messages per second.")] = 5000,
    seconds: Annotated[int, typer.Option(min=1, help="How long to send.")] = 60,
    due_from: Annotated[float, typer.Option(help="Soonest due, seconds ahead.")] = 5.0,
    due_to: Annotated[float, typer.Option(help="Latest due, seconds ahead.")] = 20.0,
    every: Annotated[float, typer.Option(min=0.5, help="Milliseconds between two batches.")] = 20.0,
) -> "list[BenchStep]":
    """A constant stream on a fixed schedule; due times uniform in a range."""
    from duemq.bench.plans.bench_steps import BenchStep

    parameters = {
        "rate": rate, "seconds": seconds, "due_from_s": due_from, "due_to_s": due_to, "every_ms": every
    }  # fmt: skip
    title = f"steady: {rate:,} msg/s for {seconds} s, due {due_from:g} to {due_to:g} s ahead"
    title += "" if every == 20 else f", a batch every {every:g} ms"
    return [BenchStep("steady", title, parameters)]


@command("hot-second")
def hot_second(
    count: Annotated[int, typer.Option(min=1, help="Messages due in the same second.")] = 100_000,
    ahead: Annotated[float | None, typer.Option(help="Seconds until then; default: enough to fill.")] = None,
    kill_at: Annotated[float | None, typer.Option(help="kill -9 once this many percent are read.")] = None,
) -> "list[BenchStep]":
    """Very many messages due at one whole second."""
    from duemq.bench.plans.bench_steps import BenchStep

    title = f"hot second: {count:,} due at once" + (f", kill -9 after {kill_at:g} %" if kill_at is not None else "")
    return [BenchStep("hot-second", title, {"count": count, "ahead_s": ahead, "kill_at": kill_at})]


@command("drain")
def drain(
    count: Annotated[int, typer.Option(min=1, help="Messages overdue at start.")] = 100_000,
    kill: Annotated[bool, typer.Option("--kill", help="kill -9 instead of a clean stop.")] = False,
    away: Annotated[bool, typer.Option("--away", help="In a cluster: stop the nodes before sending.")] = False,
) -> "list[BenchStep]":
    """Messages fall due while the server is down: how soon is the backlog delivered?"""
    from duemq.bench.plans.bench_steps import BenchStep

    title = f"drain: {count:,} overdue at start" + (" after kill -9" if kill else "")
    title += ", sent while the nodes were away" if away else ""
    return [BenchStep("drain", title, {"count": count, "kill": kill, "away": away})]


@command("start")
def start(
    starts: Annotated[int, typer.Option(min=1, help="Starts of each kind of process.")] = 10,
    count: Annotated[int, typer.Option(min=1, help="Messages due at once when it is killed.")] = 100_000,
) -> "list[BenchStep]":
    """Start to ready with an empty folder; then kill -9 to the next message, with very many due."""
    from duemq.bench.plans.bench_steps import hot_step, start_step

    return [start_step(starts, {}), hot_step(count, {}, kill_at=30)]


@command("cancel-race")
def cancel_race(
    count: Annotated[int, typer.Option(min=1, help="Messages, each cancelled once.")] = 5000,
    spread: Annotated[float, typer.Option(help="Cancels are sent within this many ms of due.")] = 200.0,
    over: Annotated[float, typer.Option(help="Due times are spread over this many seconds.")] = 5.0,
    connections: Annotated[int, typer.Option(min=1)] = 64,
) -> "list[BenchStep]":
    """Cancels around the moment of delivery; every answer is checked."""
    from duemq.bench.plans.bench_steps import BenchStep

    parameters = {"count": count, "spread_ms": spread, "over_s": over, "connections": connections}
    return [BenchStep("cancel-race", f"cancel race: {count:,} within ±{spread:g} ms of due", parameters)]


@command("accept")
def accept(
    singles: Annotated[int, typer.Option(min=1, help="Messages sent one by one.")] = 20_000,
    connections: Annotated[int, typer.Option(min=1, help="Connections for those.")] = 32,
    count: Annotated[int, typer.Option(min=1, help="Messages sent in batches.")] = 400_000,
    batch: Annotated[int, typer.Option(min=1, max=10_000)] = 1000,
    batch_connections: Annotated[int, typer.Option(min=1, help="Connections for batches.")] = 4,
) -> "list[BenchStep]":
    """Messages accepted per second: single POSTs, then batches."""
    from duemq.bench.plans.bench_steps import batches_step, singles_step

    return [singles_step(singles, {}, connections), batches_step(count, {}, batch, batch_connections)]


@command("cancel")
def cancel(
    count: Annotated[int, typer.Option(min=10, help="Messages pending.")] = 200_000,
    singles: Annotated[int, typer.Option(min=1, help="Cancelled one after another.")] = 1000,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Ids per bulk request.")] = 1000,
    connections: Annotated[int, typer.Option(min=1, help="Connections for bulk cancels.")] = 4,
) -> "list[BenchStep]":
    """Latency of a single cancel on an idle node, and bulk cancels per second."""
    from duemq.bench.plans.bench_steps import cancel_step

    if singles >= count - 1:
        raise typer.BadParameter("some have to be left for the bulk cancels", param_hint="--singles")
    return [cancel_step(count, {}, singles, batch, connections)]


@command("cancel-callers")
def cancel_callers(
    count: Annotated[int, typer.Option(min=10, help="Messages cancelled for each number of callers.")] = 5_000,
    callers: Annotated[list[int] | None, typer.Option(min=1, help="At a time; may be repeated.")] = None,
    by_name: Annotated[bool, typer.Option("--by-name", help="By the sender's names instead of ids.")] = False,
) -> "list[BenchStep]":
    """Single cancels by 1, 8 and 64 callers, each waiting for its last answer."""
    from duemq.bench.plans.bench_steps import callers_step

    return [callers_step(count, tuple(callers or (1, 8, 64)), by_name, {})]


@command("consume")
def consume(
    count: Annotated[int, typer.Option(min=1_000, help="Messages in the topic.")] = 500_000,
    rounds: Annotated[int, typer.Option(min=1, help="Times that each way takes them all.")] = 5,
) -> "list[BenchStep]":
    """One process that consumes with duemq's consumer, compared with plain aiokafka (with --on kafka)."""
    from duemq.bench.plans.kafka import consume_step

    return [consume_step(count, rounds)]


@command("receive")
def receive(
    count: Annotated[int, typer.Option(min=100, help="Messages in the topic.")] = 100_000,
    workers: Annotated[int, typer.Option(min=1, help="Workers of the group.")] = 8,
    at_a_time: Annotated[
        list[int] | None, typer.Option(min=1, max=1_000, help="Messages of one receive; may be repeated.")
    ] = None,
) -> "list[BenchStep]":
    """Workers of a group that receive and acknowledge over HTTP, 10 and 100 messages at a time."""
    from duemq.bench.plans.bench_steps import receive_step

    return [receive_step(count, workers, tuple(at_a_time or (100, 10)))]


def _brokers(on: str, why: str) -> int:
    """The number of brokers. Raises BadParameter, with `why`, if `on` starts none."""
    from duemq.bench.system.system import LAYOUTS

    if on not in LAYOUTS:
        raise typer.BadParameter(f"{why}: use kafka or kafka3", param_hint="--on")
    return LAYOUTS[on].brokers


@command("bad-topics")
def bad_topics(
    rate: Annotated[int, typer.Option(min=1, help="Messages per second to the good topic.")] = 2_000,
    seconds: Annotated[int, typer.Option(min=1, help="How long, before and beside each bad one.")] = 30,
    on: str = "embedded",
) -> "list[BenchStep]":
    """The lateness of a good topic before and next to each kind of bad topic (with --on kafka or kafka3)."""
    from duemq.bench.plans.kafka import bad_topics_step

    brokers = _brokers(on, "bad topics are Kafka's")
    return [bad_topics_step(rate, seconds, brokers)]


@command("hand-overs")
def hand_overs(
    count: Annotated[
        int, typer.Option(min=1_000, help="Messages cancelled before a take-over, and after it.")
    ] = 500_000,
    times: Annotated[int, typer.Option(min=0, help="Hand-overs among these.")] = 3,
    rate: Annotated[int, typer.Option(min=1, help="Messages per second beside them.")] = 500,
    cancels_per_s: Annotated[int, typer.Option(min=1, help="Cancels per second.")] = 4_000,
    on: str = "embedded",
) -> "list[BenchStep]":
    """The lateness of a stream next to many cancels, before and after shards change hands (with --on kafka)."""
    from duemq.bench.plans.kafka import hand_overs_step

    _brokers(on, "shards change hands in a cluster")
    return [hand_overs_step(count, times, rate, cancels_per_s)]


@command("relay")
def relay(
    to: Annotated[
        Literal["http", "rabbitmq", "nats", "redis", "rocketmq"], typer.Option(help="The other system.")
    ] = "http",
    destination: Annotated[
        str | None, typer.Option(help="Its URL. Default: its usual port here; for http a sink of the bench's own.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Messages due at one second.")] = 30_000,
    rate: Annotated[list[int] | None, typer.Option(min=1, help="Messages per second; may be repeated.")] = None,
    seconds: Annotated[int, typer.Option(min=1, help="How long at each rate.")] = 10,
    endpoints: Annotated[
        int, typer.Option(min=0, help="Number of HTTP destinations, three of them bad: lateness of the others.")
    ] = 0,
    on: str = "embedded",
    url: str | None = None,
) -> "list[BenchStep]":
    """Messages sent to another system: how fast, how late, and the effect of a bad destination on the others."""
    from duemq.bench.plans.bench_steps import beside_bad_step, relay_step

    if on != "embedded" or url is not None:
        raise typer.BadParameter("the bench starts one process with a relay in it", param_hint="--on, --url")
    if endpoints:
        if to != "http" or destination is not None or endpoints < 4:
            raise typer.BadParameter("four or more, with the bench's own HTTP sink", param_hint="--endpoints")
        return [beside_bad_step(endpoints, (rate or [500])[0], seconds)]
    return [relay_step(to, destination, count, tuple(rate or (1_000, 2_000)), seconds)]


@app.command("take-over")
def take_over(
    others: Annotated[int, typer.Option(min=1, help="Foreign partitions on that Kafka.")] = 2_000,
    shards: Annotated[int, typer.Option(min=1, help="Shards that a node takes over at once.")] = 16,
    rounds: Annotated[int, typer.Option(min=1, help="Take-overs of each kind.")] = 100,
) -> None:
    """How long a node takes to become the writer of all shards, alone on a Kafka and next to foreign partitions."""
    from duemq.bench.take_over import take_over as take_overs

    for one in take_overs(others, shards, rounds):
        figures = f"{one.fastest_ms:5.0f} / {one.median_ms:5.0f} / {one.p99_ms:5.0f} / {one.slowest_ms:5.0f} ms"
        typer.echo(f"beside {one.others:6,} partitions of others: {figures} (fastest, median, p99, slowest)")


@app.command("access")
def access(blocks: Annotated[int, typer.Option(min=3, help="Blocks of 2,000 requests each.")] = 30) -> None:
    """The cost of authenticating a request: by a key, a token, a session. Starts no server."""
    from duemq.bench.access import access as costs_of

    for cost in costs_of(blocks):
        fastest, median, slowest = cost.fastest_us, cost.median_us, cost.slowest_us
        typer.echo(f"{cost.name:<24} {fastest:7.2f} / {median:7.2f} / {slowest:7.2f} us")


@command("all")
def everything(
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of the messages: a smoke test, no record.")] = False,
    on: str = "embedded",
) -> "list[BenchStep]":
    """Every figure of docs/explain/benchmarks.md except those of the far future, with a summary against the targets."""
    from duemq.bench.plans import bench_steps, kafka
    from duemq.bench.system.system import LAYOUTS

    return kafka.everything(quick, LAYOUTS[on].brokers) if on in LAYOUTS else bench_steps.everything(quick)
