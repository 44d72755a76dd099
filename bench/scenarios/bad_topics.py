"""`topics`: the lateness of a good topic before, and beside, each kind of bad one."""

import asyncio
import time
from dataclasses import replace

from duemq.bench.clients.load import SendWindow, send_steadily
from duemq.bench.harness.harness import Harness
from duemq.bench.harness.reconciliation import Tally, spread, tally
from duemq.bench.report.figures import Figure, ScenarioOutcome, Target, vital
from duemq.bench.steps import warm_up
from duemq.bench.system.bad_topic import KINDS, MADE_AGAIN, OF_THREE, make, send_to, topic_of
from duemq.bench.system.system import SiteError, get

MAX_MOVED = 10.0  # percent
_WINDOW = SendWindow(1_000, 5_000)
_SETTLE_S = 20.0  # after a broker died: leaders are elected, and JVMs compile what they did not need before
_BEGUN_S = 5.0  # until the bad topic has refused for the first times


def bad_topics(stage: Harness, *, rate: float, seconds: float, kinds: tuple[str, ...]) -> ScenarioOutcome:
    """`rate` messages/s to a good topic for `seconds`, before and beside each of these kinds of bad topics."""
    bootstrap = stage.site.bootstrap
    if bootstrap is None:
        raise SiteError("bad topics are Kafka's: say --on kafka or --on kafka3")
    notes = warm_up.warm_up(stage, rate)
    figures: list[Figure] = []
    wrong = 0
    # Those that need a dead broker come last: it stays dead.
    for kind in sorted(kinds, key=lambda kind: kind in OF_THREE):
        topic = topic_of(kind, stage.topic)
        asyncio.run(make(bootstrap, kind, topic))
        if kind in OF_THREE:
            _without_the_third(stage)
        before = _good(stage, f"{kind}.before", rate, seconds)
        sender = stage.spawn(send_to, bootstrap, kind, topic, stage.site.shards)
        stage.sleep_until(time.time() * 1000 + _BEGUN_S * 1000, f"beside: {KINDS[kind]}")
        beside = _good(stage, f"{kind}.beside", rate, seconds)
        shown = kind == MADE_AGAIN or topic in get(stage.site.url, "/readyz")[1].decode()
        sender.stop()
        sender.result()
        figures += _compare(kind, before, beside, shown=shown)
        for counts in (before, beside):
            wrong += counts.lost + counts.duplicate + counts.early + counts.wrong_due + counts.unasked
    return ScenarioOutcome((*figures, vital("wrong", "lost, twice, early or never asked for", wrong)), notes)


def _without_the_third(stage: Harness) -> None:
    stage.site.kill_broker(3)
    stage.sleep_until(time.time() * 1000 + _SETTLE_S * 1000, "until the other brokers have taken over")


def _good(stage: Harness, name: str, rate: float, seconds: float) -> Tally:
    topic, count = f"{stage.topic}.{name}", int(rate * seconds)
    stage.site.create_topic(topic)
    reader = stage.read(topic)
    sender = stage.spawn(send_steadily, replace(stage.job(count, _WINDOW), topic=topic), rate)
    stage.watch(reader, name, count, sender.poll)
    sent = sender.result()
    return tally(sent, stage.finish(reader, sent.accepted, float(sent.dues.max()), name))


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
