"""The metrics, and the reasons in their labels, as the pages of docs/ list them, against the code."""

from __future__ import annotations

import ast
import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import prometheus_client.metrics
import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from starlette.requests import Request

import duemq.bus.base
import duemq.bus.kafka.topics.topics
import duemq.cluster.topics.topic_states
from duemq.cli.wiring import parts
from duemq.delay.core.disk_watermarks import Watermark
from duemq.delay.core.outbox import Outbox
from duemq.delay.metrics import (
    DEAD_REASONS,
    DEFERRED_REASONS,
    DiskGauges,
    NodeCollector,
    Observer,
    ShardGauges,
    TieringCounts,
)
from duemq.model.disk_use import DiskUse
from duemq.model.log.ledger import Entry
from duemq.model.messages.key import make_key
from duemq.web.probes import ProbeSource, metrics
from tests.support.docs.metrics_page import metrics as metrics_of_the_code
from tests.support.docs.metrics_page import metrics_page

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/operate/operations.md").read_text()
CONSTANTS = {
    name: value
    for module in (duemq.bus.base, duemq.bus.kafka.topics.topics, duemq.cluster.topics.topic_states)
    for name, value in vars(module).items()
    if name.isupper() and isinstance(value, str)
}
REASON_AT = {"WriteRefused": 1, "DeferredMessage": 3, "_Back": 2, "refuse": 1}  # which argument of a call it is
DAY_MS = 86_400_000
GROUP_METRICS = (  # of `duemq lag`, whose names are put together
    *(f"{what}_{unit}" for what in ("lag", "inflight", "available") for unit in ("messages", "seconds")),
    "lost_messages",
)


def values(node: ast.expr) -> Iterator[str]:
    """The texts an expression can have, as far as they stand there."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Name) and node.id in CONSTANTS:
        yield CONSTANTS[node.id]
    elif isinstance(node, ast.IfExp):
        yield from values(node.body)
        yield from values(node.orelse)


def reasons_in(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = str(getattr(node.func, "attr", None) or getattr(node.func, "id", ""))
            at = 0 if name == "Rejected" and path.name == "topics.py" else REASON_AT.get(name)
            if at is not None and len(node.args) > at:
                yield from values(node.args[at])
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            if ast.unparse(node.targets[0]) == "(reason, detail)":
                yield from values(node.value.elts[0])
        elif isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "_REFUSALS":
            assert isinstance(node.value, ast.Dict)
            for refusal in node.value.values:
                assert isinstance(refusal, ast.Tuple)
                yield from values(refusal.elts[0])


def test_the_code_knows_no_other_reasons_than_those_it_lists() -> None:
    files = [
        *ROOT.glob("bus/**/*.py"),
        *(ROOT / name for name in ("cluster/topics/topic_states.py", "delay/shard/dispatch.py", "delay/core/cycle.py")),
    ]
    found = {reason for path in files for reason in reasons_in(path)} | duemq.cluster.topics.topic_states.PASSING
    assert found == (DEFERRED_REASONS | DEAD_REASONS) - {"malformed"}


def test_the_page_lists_all_reasons() -> None:
    rows = re.findall(r"^\| (`.*`) \| (yes|no) \| (yes|no) \|", PAGE.partition("### Reasons")[2], re.MULTILINE)
    listed = [(name, deferred, dead) for names, deferred, dead in rows for name in re.findall(r"`([^`]+)`", names)]
    assert len(listed) == len(DEFERRED_REASONS | DEAD_REASONS)
    assert {name for name, deferred, _ in listed if deferred == "yes"} == DEFERRED_REASONS
    assert {name for name, _, dead in listed if dead == "yes"} == DEAD_REASONS


def node_metrics(now: int = 0) -> tuple[CollectorRegistry, Observer, list[int]]:
    """What a node with one shard shows; its clock is the first of the list."""
    registry, clock = CollectorRegistry(), [now]
    observer = Observer(registry)
    shard = ShardGauges(0, True, 0, 0, None, 0, {}, 0, 0, TieringCounts(), False)
    disk = DiskGauges(1, DiskUse(30, 10), Watermark(0))
    registry.register(NodeCollector(observer, lambda: [shard], lambda: disk, lambda: clock[0]))
    return registry, observer, clock


def test_the_page_lists_each_metric() -> None:
    registry, *_ = node_metrics()
    exposed = set(re.findall(r"^# TYPE (duemq_\w+)", generate_latest(registry).decode(), re.MULTILINE))
    listed = set(re.findall(r"^\| `(duemq_\w+)` \|.*\| .+ \|$", metrics_page(), re.MULTILINE))
    assert {name for name in exposed if not name.endswith("_created")} <= listed
    assert listed == {one.name for one in metrics_of_the_code()}


def test_metrics_that_the_pages_name_are_there() -> None:
    there = {one.name for one in metrics_of_the_code()} | {f"duemq_group_{name}" for name in GROUP_METRICS}
    named = {
        (page.name, name)
        for page in (ROOT / "docs").rglob("*.md")
        if page.parent.name not in ("adr", "pipeline")
        for name in re.findall(r"`(duemq_[a-z_]+)\b[`{ ]", page.read_text())
    }
    assert len(named) > 20
    assert {(page, name) for page, name in named if name not in there} == set()


def test_counters_begin_at_zero_so_that_an_alert_sees_the_first_count() -> None:
    registry, *_ = node_metrics()
    generate_latest(registry)
    value = registry.get_sample_value
    assert {value("duemq_dead_letters_total", {"reason": reason}) for reason in DEAD_REASONS} == {0}
    assert {value("duemq_deferred_total", {"reason": reason}) for reason in DEFERRED_REASONS} == {0}
    assert value("duemq_commands_lost_total", {"shard": "0"}) == 0
    assert {value("duemq_failures_total", {"where": where}) for where in ("shard 0", "upkeep")} == {0}


def test_the_disk_is_told_as_a_ratio() -> None:
    registry, *_ = node_metrics()
    assert registry.get_sample_value("duemq_disk_used_ratio") == 0.75


def test_a_topic_that_got_nothing_for_a_day_has_no_series() -> None:
    registry, observer, clock = node_metrics()

    def deliver(topic: str, at: int) -> None:
        outbox = Outbox(0, {topic: 1})
        outbox.keys[topic] = [make_key(at, 1, 0)]
        observer.cycle(0, Entry(0, 0, b"", 0), outbox, commands=0, started=at, ended=at)

    def shown(topic: str) -> bool:
        return registry.get_sample_value("duemq_lateness_seconds_count", {"topic": topic}) is not None

    deliver("old", 1_000)
    deliver("busy", 1_000)
    deliver("busy", 5_000)
    value = registry.get_sample_value
    assert value("duemq_lateness_seconds_bucket", {"topic": "busy", "le": "0.001"}) == 2
    assert value("duemq_lateness_seconds_bucket", {"topic": "busy", "le": "+Inf"}) == 2
    assert value("duemq_lateness_seconds_sum", {"topic": "busy"}) == 0
    clock[0] = 1_000 + DAY_MS
    assert shown("old") and shown("busy")
    clock[0] += 1
    assert not shown("old") and shown("busy")
    deliver("new", 5_000 + DAY_MS + 1)
    assert list(observer.lateness) == ["new"], "forgotten without a scrape, too"


def test_a_scrape_leaves_the_loop_to_deliveries() -> None:
    """A thousand topics take 100 ms and more to encode."""
    encoded_in: list[int] = []

    class Slow(Metric):
        @property
        def samples(self) -> list[Sample]:
            encoded_in.append(threading.get_ident())
            return []

        @samples.setter
        def samples(self, _: list[Sample]) -> None: ...

    class Shown(Collector):
        def collect(self) -> Iterator[Metric]:
            assert threading.current_thread() is threading.main_thread(), "what it shows belongs to the loop"
            yield Slow("duemq_slow", "Slow", "gauge")

    registry = CollectorRegistry()
    registry.register(Shown())
    encoded_in.clear()
    request = Request({"type": "http", "method": "GET", "path": "/metrics", "headers": []})
    told = cast(ProbeSource, SimpleNamespace(registry=registry))
    assert b"duemq_slow" in bytes(asyncio.run(metrics(told, request)).body)
    assert encoded_in and threading.get_ident() not in encoded_in


def test_no_series_says_when_a_counter_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus_client.metrics, "_use_created", True)
    registry = parts.registry()
    Counter("duemq_some", "Some", registry=registry).inc()
    assert b"duemq_some_total 1" in generate_latest(registry)
    assert b"_created" not in generate_latest(registry)


def test_names_are_in_base_units_and_labels_are_bounded() -> None:
    registry, *_ = node_metrics()
    families = list(registry.collect())
    wrong = re.compile(r"(_ms|_millis\w*|_micros\w*|_minutes|_hours|_percent|_[kmg]i?b|_kilo\w*)(_|$)")
    assert not [family.name for family in families if wrong.search(family.name)]
    labels = {label for family in families for sample in family.samples for label in sample.labels}
    assert labels <= {"shard", "topic", "le", "reason", "answer", "state", "where", "within", "how", "trigger"}
