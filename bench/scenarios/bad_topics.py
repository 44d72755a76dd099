"""`bad-topics`: measures the lateness of a good topic before, and next to, each kind of bad topic."""

import asyncio
import time
from dataclasses import replace

from duemq.bench.clients.send import SendWindow, send_steadily
from duemq.bench.harness.harness import Harness
from duemq.bench.harness.tally import Tally, spread, tally
from duemq.bench.report.figures import Figure, ScenarioOutcome, Target, vital
from duemq.bench.steps import warm_up
from duemq.bench.system.bad_topic import KINDS, MADE_AGAIN, OF_THREE, make, send_to, topic_of
from duemq.bench.system.system import SiteError, get

MAX_MOVED = 10.0  # percent
_WINDOW = SendWindow(1_000, 5_000)
_SETTLE_S = 20.0  # after a broker has died: until leaders are elected, and JVMs have compiled newly needed code
_BEGUN_S = 5.0  # until the bad topic has refused several times


def bad_topics(harness: Harness, *, rate: float, seconds: float, kinds: tuple[str, ...]) -> ScenarioOutcome:
    """Send `rate` messages/s to a good topic for `seconds`, first alone, then next to each of these kinds of bad
    topics."""
    bootstrap = harness.site.bootstrap
    if bootstrap is None:
        raise SiteError("bad topics are Kafka's: use --on kafka or --on kafka3")
    notes = warm_up.warm_up(harness, rate)
    figures: list[Figure] = []
    wrong = 0
    # Kinds that need a dead broker come last, because the broker stays dead.
    for kind in sorted(kinds, key=lambda kind: kind in OF_THREE):
        topic = topic_of(kind, harness.topic)
        asyncio.run(make(bootstrap, kind, topic))
        if kind in OF_THREE:
            _without_the_third(harness)
        before = _good(harness, f"{kind}.before", rate, seconds)
        sender = harness.spawn(send_to, bootstrap, kind, topic, harness.site.shards)
        harness.sleep_until(time.time() * 1000 + _BEGUN_S * 1000, f"beside: {KINDS[kind]}")
        beside = _good(harness, f"{kind}.beside", rate, seconds)
        shown = kind == MADE_AGAIN or topic in get(harness.site.url, "/readyz")[1].decode()
        sender.stop()
        sender.result()
        figures += _compare(kind, before, beside, shown=shown)
        for counts in (before, beside):
            wrong += counts.lost + counts.duplicate + counts.early + counts.wrong_due + counts.unasked
    return ScenarioOutcome((*figures, vital("wrong", "lost, twice, early or never asked for", wrong)), notes)


def _without_the_third(harness: Harness) -> None:
    harness.site.kill_broker(3)
    harness.sleep_until(time.time() * 1000 + _SETTLE_S * 1000, "until the other brokers have taken over")


def _good(harness: Harness, name: str, rate: float, seconds: float) -> Tally:
    topic, count = f"{harness.topic}.{name}", int(rate * seconds)
    harness.site.create_topic(topic)
    reader = harness.read(topic)
    sender = harness.spawn(send_steadily, replace(harness.job(count, _WINDOW), topic=topic), rate)
    harness.watch(reader, name, count, sender.poll)
    sent = sender.result()
    return tally(sent, harness.finish(reader, sent.accepted, float(sent.dues.max()), name))


def _compare(kind: str, before: Tally, beside: Tally, *, shown: bool) -> tuple[Figure, ...]:
    then, now = spread(before.lateness_ms), spread(beside.lateness_ms)
    moved = (now.p99 / then.p99 - 1) * 100
    text = KINDS[kind]
    return (
        Figure(f"{kind}_before_p99", f"{text}: lateness p99 of the good topic before", then.p99, "ms"),
        Figure(f"{kind}_beside_p99", "  beside it", now.p99, "ms"),
        Figure(f"{kind}_moved", "  moved by", moved, "%", Target(MAX_MOVED)),
        Figure(f"{kind}_beside_max", "  highest beside it", now.max, "ms"),
        vital(f"{kind}_hidden", "  not shown in /readyz", int(not shown)),
    )
