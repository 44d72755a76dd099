"""The steps of `duemq bench all` on Kafka, and their targets. docs/explain/benchmarks.md also shows the ceiling of
plain Kafka clients."""

from duemq.bench.plans.bench_steps import (
    BenchStep,
    batches_step,
    cancel_step,
    drain_step,
    hot_step,
    race_step,
    singles_step,
    start_step,
    steady_step,
)
from duemq.bench.report.figures import Target
from duemq.bench.system.bad_topic import KINDS, OF_THREE


def everything(quick: bool, brokers: int) -> list[BenchStep]:
    """On one broker: all steps. On three brokers: the same steps without targets, and bad topics. In both cases, one
    step has 16 shards.

    `quick`: a tenth of the messages.
    """
    part, seconds = (10, 10) if quick else (1, 60)
    backlog = 500_000 // part
    steps = [
        steady_step(2_000, seconds, {"late_p50": Target(10), "late_p99": Target(35)}),
        steady_step(10_000, seconds, {"late_p99": Target(60), "flow_us": Target(45), "flow_all_us": Target(75)}),
        hot_step(100_000 // part, {"last_s": Target(1.1)}),
        hot_step(500_000 // part, {"last_s": Target(4.5), "rss_peak_mib": Target(400)}),
        hot_step(100_000 // part, {"next_s": Target(1)}, kill_at=30),
        start_step(10, {"node_p50": Target(0.7), "proxy_p50": Target(0.7)}),
        drain_step(backlog, {"plain_share": Target(0.5, at_least=True)}),
        BenchStep(
            "drain",
            f"drain: {backlog:,} overdue, sent while the nodes were away",
            {"count": backlog, "away": True},
        ),
        singles_step(20_000 // part, {}),
        batches_step(400_000 // part, {}),
        race_step(5_000 // part),
        cancel_step(200_000 // part, {"single_p99": Target(60), "bulk_rate": Target(10_000, at_least=True)}),
        consume_step(500_000 // part),
        hand_overs_step(backlog, 3, 500, 4_000),
    ]
    if brokers == 1:
        return [*steps, on_16_shards(steady_step(10_000, seconds, {"flow_us": Target(68), "flow_all_us": Target(113)}))]
    on_16 = on_16_shards(steady_step(2_000, seconds, {}))
    return [*(_as_measured(step) for step in steps), on_16, bad_topics_step(2_000, seconds, brokers)]


def on_16_shards(step: BenchStep) -> BenchStep:
    """The same step with 16 shards, which may cost at most 1.5 times as much as with one shard."""
    return BenchStep(step.name, f"{step.title}, 16 shards", step.parameters, step.targets, shards=16)


def consume_step(count: int, rounds: int = 5) -> BenchStep:
    """One process that consumes, in each way in turn."""
    targets = {"consumer_rate": Target(15_000, at_least=True), "share_getmany": Target(0.6, at_least=True)}
    return BenchStep("consume", f"consume: {count:,} by one process", {"count": count, "rounds": rounds}, targets)


def bad_topics_step(rate: int, seconds: int, brokers: int) -> BenchStep:
    """All kinds of bad topics that this number of brokers allows."""
    kinds = tuple(kind for kind in KINDS if brokers > 1 or kind not in OF_THREE)
    title = f"beside bad topics: {rate:,} msg/s to a good one for {seconds} s"
    return BenchStep("bad-topics", title, {"rate": rate, "seconds": seconds, "kinds": kinds})


def hand_overs_step(count: int, times: int, rate: int, cancels_per_s: int) -> BenchStep:
    """Bulk cancels next to a stream, while shards move from node to node."""
    title = f"hand-overs: {count:,} cancels after a take-over, with {times} hand-overs between"
    parameters = {"count": count, "times": times, "rate": rate, "cancels_per_s": cancels_per_s}
    return BenchStep("hand-overs", title, parameters, nodes=2)


def _as_measured(step: BenchStep) -> BenchStep:
    return BenchStep(step.name, step.title, step.parameters)
