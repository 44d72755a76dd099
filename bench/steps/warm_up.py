"""Warms up brokers, because a new JVM compiles for half a minute, on cores that all processes share."""

from dataclasses import replace

from duemq.bench.clients.send import SendWindow, send_steadily
from duemq.bench.harness.harness import Harness

SECONDS = 20.0
USUAL_RATE = 5_000  # messages/s, if the scenario has no rate
NOTE = f"measured after {SECONDS:.0f} s of a steady stream that are not counted, while the brokers' JVMs compile"
_SOON = SendWindow(100, 2_000)


def warm_up(harness: Harness, rate: float) -> tuple[str, ...]:
    """Send a steady stream to a separate topic for a while; return a note for the report. Does nothing without
    brokers."""
    if harness.site.bootstrap is None:
        return ()
    topic, count = f"{harness.topic}.warm", int(rate * SECONDS)
    harness.site.create_topic(topic)
    reader = harness.read(topic)
    sender = harness.spawn(send_steadily, replace(harness.job(count, _SOON), topic=topic), rate)
    harness.watch(reader, "warming up", count, sender.poll)
    sent = sender.result()
    harness.finish(reader, sent.accepted, float(sent.dues.max()), "warming up")
    return (NOTE,)
