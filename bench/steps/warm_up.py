"""Brokers that have run for a while: a fresh JVM compiles for half a minute, on the cores of everybody else."""

from dataclasses import replace

from duemq.bench.clients.load import SendWindow, send_steadily
from duemq.bench.harness.harness import Harness

SECONDS = 20.0
USUAL_RATE = 5_000  # messages/s, where the scenario has no rate of its own
NOTE = f"measured after {SECONDS:.0f} s of a steady stream that are not counted, while the brokers' JVMs compile"
_SOON = SendWindow(100, 2_000)


def warm_up(stage: Harness, rate: float) -> tuple[str, ...]:
    """A steady stream for a while, to a topic of its own; what the report has to say of it. Nothing without brokers."""
    if stage.site.bootstrap is None:
        return ()
    topic, count = f"{stage.topic}.warm", int(rate * SECONDS)
    stage.site.create_topic(topic)
    reader = stage.read(topic)
    sender = stage.spawn(send_steadily, replace(stage.job(count, _SOON), topic=topic), rate)
    stage.watch(reader, "warming up", count, sender.poll)
    sent = sender.result()
    stage.finish(reader, sent.accepted, float(sent.dues.max()), "warming up")
    return (NOTE,)
