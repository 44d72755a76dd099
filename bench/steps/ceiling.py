"""Measures the ceiling of plain Kafka clients in the same run as duemq's figures. There are no figures on the embedded
bus."""

from duemq.bench.clients import plain_kafka
from duemq.bench.harness.harness import Harness
from duemq.bench.harness.tally import spread
from duemq.bench.report.figures import Figure
from duemq.dev.servers.usage import cpu_s

_FEWEST, _MAX = 20_000, 200_000
_AT_MOST_S = 10.0


def throughput(harness: Harness, count: int) -> tuple[Figure, ...]:
    """Measure a pass-through of up to 200,000 messages: one process consumes them and produces them to another topic.

    The faster of two runs is reported, because during the first one the broker is still cold.
    """
    bootstrap, setup = harness.site.bootstrap, harness.setup
    if bootstrap is None:
        return ()
    count = min(max(count, _FEWEST), _MAX)
    source, topic_state = (f"{harness.topic}.plain.{name}" for name in ("in", "out"))
    harness.site.create_topic(source)
    harness.site.create_topic(topic_state)
    filling = harness.spawn(plain_kafka.fill_topic, bootstrap, source, count, setup.payload_bytes, setup.seed)
    harness.wait(filling, "ceiling: filling a topic", count)
    runs = []
    for _ in range(2):
        before = harness.site.bill() or ()
        passing = harness.spawn(plain_kafka.pass_through, bootstrap, source, topic_state, count)
        done = harness.wait(passing, "ceiling: plain pass-through", count)
        runs.append((done, cpu_s(harness.site.bill() or (), "broker") - cpu_s(before, "broker")))
    done, broker_s = max(runs, key=lambda run: run[0].rate)
    return (
        Figure("plain_rate", "plain pass-through", done.rate, "msg/s"),
        Figure("plain_cpu_us", "  its CPU per message", done.cpu_s * 1e6 / count, "us"),
        Figure("plain_all_us", "  with the brokers", (done.cpu_s + broker_s) * 1e6 / count, "us"),
    )


def lateness(harness: Harness, rate: float, seconds: float) -> tuple[Figure, ...]:
    """Measure the same stream from a plain producer that sends each message when it is due, with the same consumer."""
    bootstrap, setup = harness.site.bootstrap, harness.setup
    if bootstrap is None:
        return ()
    seconds = min(seconds, _AT_MOST_S)
    topic, count = f"{harness.topic}.plain.timed", int(rate * seconds)
    harness.site.create_topic(topic)
    reader = harness.read(topic)
    sender = harness.spawn(plain_kafka.send_on_time, bootstrap, topic, rate, seconds, setup.payload_bytes, setup.seed)
    harness.watch(reader, "ceiling: plain producer to consumer", count, sender.poll)
    received = harness.finish(reader, sender.result(), 0.0, "ceiling: reading the rest")
    late = spread(received.at - received.due)
    return (
        Figure("plain_p50", "plain producer to consumer p50", late.p50, "ms"),
        Figure("plain_p99", "plain producer to consumer p99", late.p99, "ms"),
    )


def share(figures: tuple[Figure, ...], rate: float) -> tuple[Figure, ...]:
    """A rate (messages/s) as a share of the pass-through's rate, if that was measured."""
    return tuple(
        Figure("plain_share", "  by the plain pass-through's", rate / each.value, "x")
        for each in figures
        if each.key == "plain_rate"
    )
