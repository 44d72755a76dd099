"""Lateness of topics: quantiles of the latest deliveries, and memory that does not grow with time or topics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from duemq.delay.core.cycle import Cycle
from duemq.delay.core.outbox import Outbox
from duemq.delay.lateness import Lateness, LatenessFamily
from duemq.delay.metrics import Observer
from duemq.model.log.ledger import START, Entry
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.key import make_key
from duemq.model.messages.message import Draft, schedule_frame
from duemq.model.messages.record import StoredRecord
from duemq.model.messages.row import change_row, plain_row


@pytest.mark.parametrize("part", [1, 7, 999, 30_000])
@pytest.mark.heavy
def test_quantiles_are_those_of_the_latest_20_000(part: int) -> None:
    values = np.arange(45_000)
    lateness = Lateness()
    for start in range(0, len(values), part):
        lateness.add(values[start : start + part])
        if start == 0:
            assert lateness.summary()["p50_ms"] == round(float(np.percentile(values[:part][-20_000:], 50)), 1)
    latest = values[-20_000:]
    p50, p99 = np.percentile(latest, (50, 99))
    assert lateness.summary() == {
        "count": 45_000, "p50_ms": round(p50, 1), "p99_ms": round(p99, 1), "max_ms": 44_999,
    }  # fmt: skip
    assert lateness.buckets.sum() == 45_000 and lateness.total_ms == values.sum()
    assert lateness.latest.nbytes == 80_000


@pytest.mark.parametrize("part", [1, 3, 300])
def test_deliveries_are_counted_the_same_whether_one_at_a_time_or_many(part: int) -> None:
    dues = list(range(1_000))
    noted, added = Lateness(), Lateness()
    for start in range(0, len(dues), part):
        some = dues[start : start + part]
        noted.observe([make_key(due, 0, 0) for due in some], 1_000 + start)
        added.add(1_000 + start - np.array(some))
    noted.count()
    assert (noted.buckets == added.buckets).all() and noted.at_ms == 1_000 + start
    assert (noted.total_ms, noted.summary()) == (added.total_ms, added.summary())


def test_of_many_topics_those_that_got_something_last_are_remembered() -> None:
    observer = Observer(CollectorRegistry())

    def deliver(topic: str) -> None:
        outbox = Outbox(0, {topic: 1})
        outbox.keys[topic] = [make_key(1, 1, 0)]
        observer.cycle(0, Entry(0, 0, b"", 0), outbox, commands=0, started=0, ended=5)

    for number in range(1_000):
        deliver(f"t{number}")
    deliver("t0")
    for number in range(1_000, 1_500):
        deliver(f"t{number}")
    assert len(observer.lateness) == 1_000
    assert "t0" in observer.lateness and "t1" not in observer.lateness and "t1499" in observer.lateness
    assert observer.lateness["t0"].summary()["count"] == 2


class _Nothing:
    """A store without messages."""

    def rows(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [None] * len(keys)

    endings: Any = rows
    current_keys = names = rows
    contents: Any = rows


NOTHING = _Nothing()
IDS = IdCodec(b"secret of a test")
FIRST_DUE = 1_795_255_200_000


def row(offset: int, topic: bytes = b"t") -> tuple[str, bytes]:
    id_ = IDS.issue_bytes(0, FIRST_DUE, offset)
    return id_.decode(), plain_row(topic, -1) % (b"", id_, FIRST_DUE, b"payload")


def test_a_bucket_has_the_id_of_a_message_that_it_counts() -> None:
    lateness, now = Lateness(), FIRST_DUE + 60_000
    (first, first_row), (second, second_row), (third, third_row) = map(row, (1, 2, 3))
    moved = change_row(first_row, due=FIRST_DUE + 59_997)
    lateness.observe([make_key(FIRST_DUE + 59_997, 9, 0)], now, moved)
    lateness.observe([make_key(FIRST_DUE + 59_996, 8, 0)], now + 999, second_row)
    late_ms = {example.id: example.late_ms for example in lateness.examples.values()}
    assert late_ms == {first: 3, second: 1003}, "the id stays when a message is moved"
    lateness.observe([make_key(FIRST_DUE + 60_997, 7, 0)], now + 999 + 1, third_row)
    assert {example.id for example in lateness.examples.values()} == {second, third}, "a new one after a second"


def test_exemplars_are_shown_in_openmetrics_alone() -> None:
    class Shown(CollectorRegistry):
        def collect(self) -> Iterator[Metric]:
            yield LatenessFamily({"t": lateness})

    lateness = Lateness()
    id_, its_row = row(1)
    lateness.observe([make_key(FIRST_DUE, 1, 0)], FIRST_DUE + 4, its_row)
    text = generate_openmetrics(Shown()).decode()  # type: ignore[no-untyped-call]
    lines = [line for line in text.splitlines() if "#" in line[1:]]
    assert lines == [
        f'duemq_lateness_seconds_bucket{{le="0.005",topic="t"}} 1.0 # {{message_id="{id_}"}} 0.004 1795255200.004'
    ]
    assert id_.encode() not in generate_latest(Shown())


def test_an_outbox_knows_the_first_row_of_each_topic() -> None:
    due = [(make_key(FIRST_DUE, n, 0), row(n, topic)[1]) for n, topic in enumerate((b"a", b"b", b"a", b"b"))]
    outbox = Outbox(0, {"a": 1, "b": 3})
    outbox.add(due, {b"a", b"b"})
    assert outbox.first_rows == {"a": due[0][1], "b": due[1][1]}
    outbox = Outbox(0, {"a": 1})
    outbox.add(due[:1], {b"a"})
    assert outbox.first_rows == {"a": due[0][1]}


def test_lateness_counts_from_the_acceptance_of_what_was_due_before_it() -> None:
    hour, now = 3_600_000, FIRST_DUE + 1_000_000
    commands = [
        (now - 4, Draft("t", b"an hour ago", expires=0), now - 4 - hour),
        (now - 3, Draft("t", b"without delay"), now - 3 - 20),
        (now - 2, Draft("t", b"in time"), now - 2),
    ]
    stored = [StoredRecord(offset, at, schedule_frame(draft, due)) for offset, (at, draft, due) in enumerate(commands)]
    # The log's clock may be ahead of the shard's.
    stored.append(StoredRecord(3, now + 50, schedule_frame(Draft("t", b"ahead"), now - hour)))
    cycle = Cycle(START, NOTHING, IDS, 0, 1)
    cycle.apply(cycle.read(stored))
    cycle.take(now, [], [], complete=True)
    outbox = Outbox(0, {"t": 1})
    outbox.add(cycle.due, {b"t"})
    outbox.count_from_acceptance(cycle.overdue, now)
    observer = Observer(CollectorRegistry())
    observer.cycle(0, cycle.entry(now), outbox, commands=4, started=now, ended=now)
    lateness = observer.lateness["t"]
    lateness.count()
    assert (lateness.total_ms, lateness.highest_ms, lateness.overdue) == (4 + 3 + 2 + 0, 4, 2)
