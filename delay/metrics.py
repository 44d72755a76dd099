"""A node's Prometheus metrics, and the lateness of each topic.

Messages are counted in batches, with numpy. Gauges are computed at each scrape, never incremented.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from duemq.cluster.topics.topic_states import NEEDS_KEY, PASSING, TOO_LARGE, UNKNOWN_TOPIC
from duemq.delay.core.disk_watermarks import Watermark
from duemq.delay.core.outbox import Outbox
from duemq.delay.lateness import Lateness, LatenessFamily
from duemq.model.disk_use import DiskUse
from duemq.model.log.ledger import Answer, Entry
from duemq.storage.shard.records import IMPORTED, REJECTED

_HORIZONS_MS = {"1m": 60_000, "1h": 3_600_000, "1d": 86_400_000, "30d": 30 * 86_400_000}
_TOPICS = 1_000  # the most topics with lateness, 80 KiB each; the least recently used ones are dropped
_FORGOTTEN_MS = 86_400_000  # a topic without deliveries for this long is dropped
_NAME_ANSWERS = frozenset((Answer.ACCEPTED, Answer.DUPLICATE, Answer.CONFLICT))
_FILE_ANSWERS = frozenset((Answer.FILE_PENDING, Answer.FILE_DUPLICATE))

_OF_DESTINATIONS = PASSING | {
    UNKNOWN_TOPIC, TOO_LARGE, NEEDS_KEY, "bad_topic", "not_authorized", "policy", "too_few_brokers", "not_made",
    "failed", "refused",
}  # fmt: skip
DEFERRED_REASONS = _OF_DESTINATIONS | {"clock went back", "expired"}
DEAD_REASONS = (_OF_DESTINATIONS - PASSING) | {"expired", "malformed"}
"""Why messages are dead-lettered. With DEFERRED_REASONS, these are all values of the label `reason`."""


class Observer:
    """Collects the metrics of all shards of a process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.lateness: dict[str, Lateness] = {}
        self._commands = Counter("duemq_commands_total", "Commands applied", registry=registry)
        self._delivered = Counter("duemq_delivered_total", "Messages sent to their topics", registry=registry)
        self._dead = Counter(
            "duemq_dead_letters_total", "Messages that ended in the dead letters", ["reason"], registry=registry
        )
        self._retries = Counter(
            "duemq_deferred_total", "Due messages deferred to a later attempt", ["reason"], registry=registry
        )
        self._changes = Counter(
            "duemq_cancel_answers_total",
            "Answers to cancel, move, deliver-now and redrive",
            ["answer"],
            registry=registry,
        )
        self._names = Counter(
            "duemq_name_answers_total",
            "Answers to schedules with a name or idempotency key",
            ["answer"],
            registry=registry,
        )
        self._imports = Counter(
            "duemq_imports_total", "Imports of files, by state", ["state"],
            registry=registry,
        )  # fmt: skip
        self.direct = Counter("duemq_direct_total", "Messages without delay, sent at once", registry=registry)
        self._losses = Counter(
            "duemq_commands_lost_total",
            "Commands that the log dropped before they were read; it counts offsets, so there may be fewer", ["shard"],
            registry=registry,
        )  # fmt: skip
        self.failures = Counter(
            "duemq_failures_total", "Unforeseen failures that were contained, by where: they are bugs", ["where"],
            registry=registry,
        )  # fmt: skip
        self._messages = Histogram(
            "duemq_cycle_messages", "Messages sent per cycle", buckets=(0, 1, 10, 100, 1000, 5000), registry=registry
        )
        self._time = Histogram(
            "duemq_cycle_seconds", "Time of a cycle, commit included",
            buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1), registry=registry,
        )  # fmt: skip
        self.take_over = Histogram(
            "duemq_take_over_seconds", "Time from being given a shard to its first cycle as master",
            buckets=(0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 15, 60), registry=registry,
        )  # fmt: skip
        for answer in Answer:  # `rate` in Prometheus misses the first count of a series that did not exist before it
            if answer is not Answer.MALFORMED:
                self._counter_of(answer)
        for state in (IMPORTED, REJECTED):
            self._imports.labels(state)
        self.failures.labels("upkeep")
        for reason in DEAD_REASONS:
            self._dead.labels(reason)
        for reason in DEFERRED_REASONS:
            self._retries.labels(reason)

    def _counter_of(self, answer: Answer) -> Counter:
        if answer in _FILE_ANSWERS:
            return self._imports.labels(answer.name.lower())
        return (self._names if answer in _NAME_ANSWERS else self._changes).labels(answer.name.lower())

    def begin(self, shard: int) -> None:
        """Create the counters of a shard at 0, for the same reason as those above."""
        self._losses.labels(shard)
        self.failures.labels(f"shard {shard}")

    def count_loss(self, shard: int, commands: int) -> None:
        """Count commands that the log dropped unread: at most this many."""
        self._losses.labels(shard).inc(commands)

    def cycle(self, shard: int, entry: Entry, outbox: Outbox, *, commands: int, started: int, ended: int) -> None:
        """Record a committed cycle. `started` and `ended` in epoch ms."""
        sent_count = 0
        for topic, keys in outbox.keys.items():
            if keys:
                sent_count += len(keys)
                lateness = self.lateness.pop(topic, None)
                if lateness is None:
                    lateness = Lateness()
                    if len(self.lateness) >= _TOPICS:
                        del self.lateness[next(iter(self.lateness))]
                lateness.observe(keys, ended, outbox.first_rows.get(topic))
                lateness.overdue += outbox.overdue.get(topic, 0)
                self.lateness[topic] = lateness
        self.forget(ended)
        self._messages.observe(sent_count)
        self._time.observe(max(ended - started, 0) / 1000)
        self._commands.inc(commands)
        self._delivered.inc(sent_count)
        for answer, count in Tally(entry.answers.values()).items():
            if answer is Answer.MALFORMED:
                self._dead.labels("malformed").inc(count)
            else:
                self._counter_of(answer).inc(count)
        for decision in entry.imported:
            self._imports.labels(REJECTED if decision.reason else IMPORTED).inc()
        for deferred in entry.deferred:
            (self._dead if deferred.to is None else self._retries).labels(deferred.reason).inc()

    def forget(self, now: int) -> None:
        """Drop the lateness of topics without deliveries for a day. Topics are in the order of their last delivery."""
        while self.lateness:
            topic, oldest = next(iter(self.lateness.items()))
            if now - oldest.at_ms <= _FORGOTTEN_MS:
                break
            del self.lateness[topic]


@dataclass(slots=True)
class TieringCounts:
    """How many windows of a shard were sealed into delay files, loaded, rewritten and joined since the shard was
    opened. `failures`: how often this work, or an import, failed."""

    sealed: int = 0
    loaded: int = 0
    rewritten: int = 0
    joined: int = 0
    failures: int = 0

    def count_failure(self) -> None:
        self.failures += 1


@dataclass(frozen=True, slots=True)
class ShardGauges:
    """One shard at a scrape. `windows`: pending messages by the start of their 30-minute window (ms); `next_due` in ms,
    or None.

    `leading`: this node is its master; `lag`: for a follower, ledger entries not followed yet. `sealed`: messages
    pending in delay files, `files`: the number of these files. `stopped`: the shard does not run, because its data is
    wrong. `stuck`: see `Liveness`.
    """

    shard: int
    leading: bool
    lag: int
    pending: int
    next_due: int | None
    applied: int
    windows: Mapping[int, int]
    sealed: int
    files: int
    delay_files: TieringCounts
    stopped: bool
    stuck: bool = False


@dataclass(frozen=True, slots=True)
class DiskGauges:
    """`folder_bytes`: the size of the data folder. `use`: the use of the whole disk."""

    folder_bytes: int
    use: DiskUse
    level: Watermark


class NodeCollector(Collector):
    """Metrics that are computed at each scrape."""

    def __init__(
        self, observer: Observer, shards: Callable[[], Iterable[ShardGauges]], disk: Callable[[], DiskGauges],
        clock: Callable[[], int], refusals: Callable[[], Mapping[str, str]] = dict,
        pending_topics: Callable[[], Mapping[str, int]] = dict,
    ) -> None:  # fmt: skip
        """`refusals`: topics that refuse messages, with the reasons. `pending_topics`: see `PendingTopics`."""
        self._observer, self._shards, self._disk, self._clock = observer, shards, disk, clock
        self._refusals, self._pending_topics = refusals, pending_topics

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        now = self._clock()
        self._observer.forget(now)
        yield LatenessFamily(self._observer.lateness)
        accepted_late = CounterMetricFamily(
            "duemq_accepted_overdue", "Messages that were overdue when they were accepted or moved", labels=["topic"]
        )
        for topic, lateness in self._observer.lateness.items():
            accepted_late.add_metric([topic], lateness.overdue)
        yield accepted_late
        pending = GaugeMetricFamily("duemq_pending_messages", "Messages held for later", labels=["shard"])
        horizon = GaugeMetricFamily(
            "duemq_pending_horizon_messages", "Messages due within, by 30-minute window", labels=["within"]
        )
        overdue = GaugeMetricFamily(
            "duemq_oldest_overdue_seconds", "How late the oldest undelivered message is", labels=["shard"]
        )
        applied = GaugeMetricFamily("duemq_applied_offset", "Commands applied, as an offset", labels=["shard"])
        leading = GaugeMetricFamily("duemq_shard_master", "1 if this node is the shard's master", labels=["shard"])
        lag = GaugeMetricFamily("duemq_ledger_lag_entries", "Entries this replica is behind", labels=["shard"])
        stopped = GaugeMetricFamily(
            "duemq_shard_stopped", "1 if this node's data of the shard is wrong", labels=["shard"]
        )
        stuck = GaugeMetricFamily(
            "duemq_shard_stuck", "1 if a cycle does not end: a restart is needed", labels=["shard"]
        )
        sealed = GaugeMetricFamily("duemq_sealed_messages", "Messages held in delay files", labels=["shard"])
        files = GaugeMetricFamily("duemq_delay_files", "Delay files in use", labels=["shard"])
        windows = CounterMetricFamily(
            "duemq_sealed_windows",
            "Windows sealed into delay files, loaded, rewritten, joined",
            labels=["shard", "how"],
        )
        failures = CounterMetricFamily(
            "duemq_tiering_failures", "Attempts to seal, load, rewrite or take in files that failed", labels=["shard"]
        )
        within = dict.fromkeys(_HORIZONS_MS, 0)
        for shard in self._shards():
            self._observer.begin(shard.shard)
            label = [str(shard.shard)]
            pending.add_metric(label, shard.pending)
            late = 0 if shard.next_due is None else max(0, now - shard.next_due) / 1000
            overdue.add_metric(label, late)
            applied.add_metric(label, shard.applied)
            leading.add_metric(label, shard.leading)
            lag.add_metric(label, shard.lag)
            stopped.add_metric(label, shard.stopped)
            stuck.add_metric(label, shard.stuck)
            sealed.add_metric(label, shard.sealed)
            files.add_metric(label, shard.files)
            for work, count in (
                ("seal", shard.delay_files.sealed),
                ("load", shard.delay_files.loaded),
                ("rewrite", shard.delay_files.rewritten),
                ("join", shard.delay_files.joined),
            ):
                windows.add_metric([*label, work], count)
            failures.add_metric(label, shard.delay_files.failures)
            for start, count in shard.windows.items():
                for name, span in _HORIZONS_MS.items():
                    if start <= now + span:
                        within[name] += count
        for name, count in within.items():
            horizon.add_metric([name], count)
        yield from (pending, horizon, overdue, applied, leading, lag, stopped, stuck, sealed, files, windows, failures)
        by_topic = GaugeMetricFamily(
            "duemq_topic_pending_messages",
            "Messages held for later by topic, of the shards that this node is master of; * has all other topics",
            labels=["topic"],
        )
        for topic, count in self._pending_topics().items():
            by_topic.add_metric([topic], count)
        yield by_topic
        refused = GaugeMetricFamily(
            "duemq_topic_refused", "1 for a topic that refuses messages", labels=["topic", "reason"]
        )
        for topic, reason in self._refusals().items():
            refused.add_metric([topic, reason], 1)
        yield refused
        disk = self._disk()
        for name, text, value in (
            ("duemq_disk_used_bytes", "Size of the data folder", disk.folder_bytes),
            ("duemq_disk_free_bytes", "Free space on the disk of the data folder", disk.use.free),
            ("duemq_disk_used_ratio", "How full the disk of the data folder is, 0 to 1", disk.use.percent / 100),
            ("duemq_disk_watermark", "The mark it has reached: 1 purges, 2 shortens history, 3 refuses", disk.level),
        ):
            yield GaugeMetricFamily(name, text, value=value)
