"""Checks the brokers, duemq's own topics on them, and the offset between their clocks and this machine's clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from duemq.cli.doctor.finding import Finding, error, ok, warning
from duemq.cli.settings.settings import Settings
from duemq.cluster.topics.internal_topics import ADMIN, BUFFER, LEDGER
from duemq.model.errors import DuemqError
from duemq.model.topics.topic_names import TopicNames

_FAR_SHARE = 0.5  # share of the bound above which a clock's offset is reported as a warning

_LONGEST_TRANSACTION_MS = 60_000  # the default timeout of Java's clients, which a lower limit would refuse


class TopicFacts(Protocol):
    """`trouble`: partitions that cannot be written to, with the reasons."""

    @property
    def partitions(self) -> int: ...
    @property
    def copies(self) -> int: ...
    @property
    def trouble(self) -> Mapping[int, str]: ...


class KafkaInspection(Protocol):
    """See `Inspection`."""

    def brokers(self) -> int: ...
    async def has_transactions_v2(self) -> bool: ...
    async def max_transaction_ms(self) -> int | None: ...
    async def topic(self, name: str) -> TopicFacts | None: ...
    async def misfit(self, name: str, *, expires: bool) -> str | None: ...
    async def clock_offset_ms(self) -> float | None: ...


async def check_brokers(
    brokers: KafkaInspection,
    settings: Settings,
    shards: int | None,
    names: TopicNames = TopicNames(),  # noqa: B008  # a value
) -> AsyncIterator[Finding]:
    """Check the brokers. `shards`: the cluster's number of shards, None if unknown here. `names`: the names of the
    cluster's topics on the brokers."""
    count, copies = brokers.brokers(), settings.kafka.replication_factor
    if count < copies:
        yield error(
            "brokers", f"{count} brokers are known, and kafka.replication_factor = {copies} needs {copies}",
            "start the other brokers, or lower kafka.replication_factor before the first start",
        )  # fmt: skip
    else:
        yield ok("brokers", f"{count} brokers answer")
    if settings.kafka.transactions == "auto" and not await brokers.has_transactions_v2():
        yield warning(
            "brokers", "they have no transactions of version 2 (KIP-890): a late request may join a newer transaction",
            "use Kafka 4, or raise the feature transaction.version to 2 (kafka-features.sh)",
        )  # fmt: skip
    yield await _longest_transaction(brokers)
    for name, partitions in ((BUFFER, shards), (LEDGER, shards), (ADMIN, 1)):
        yield await _own_topic(brokers, names.on_brokers(name), partitions, expires=name == BUFFER)
    dead = names.on_brokers(settings.topics.dead_letter)
    if (about := await brokers.topic(dead)) is not None:
        yield _trouble(dead, about) or ok("topics", f"{dead}: {about.partitions} partitions")
    elif settings.topics.partitions == 0:
        yield error(
            "topics", f"the dead-letter topic {dead} is missing, and topics.partitions = 0: messages that cannot be "
            "delivered are retried forever",
            f"create {dead}, or set topics.partitions = 1",
        )  # fmt: skip
    yield await _clock(brokers, settings.node.max_clock_offset_ms)


async def _longest_transaction(brokers: KafkaInspection) -> Finding:
    longest = await brokers.max_transaction_ms()
    if longest is None:
        return ok("brokers", "their limit for open transactions is unknown: duemq's user may not describe them")
    detail = f"a transaction may be open for up to {longest / 1000:,.0f} s (transaction.max.timeout.ms)"
    if longest <= _LONGEST_TRANSACTION_MS:
        return ok("brokers", detail)
    return warning(
        "brokers", f"{detail}: a client that hangs within one on {BUFFER} delays all messages of that shard",
        f"set transaction.max.timeout.ms to {_LONGEST_TRANSACTION_MS} on the brokers, or let only duemq write there",
    )  # fmt: skip


async def _own_topic(brokers: KafkaInspection, name: str, partitions: int | None, *, expires: bool) -> Finding:
    about = await brokers.topic(name)
    if about is None:
        return warning(
            "topics", f"{name} does not exist, or duemq's user may not describe it",
            "nothing before the first start; after it: grant the rights that docs/operate/cluster.md lists",
        )  # fmt: skip
    if partitions is not None and about.partitions != partitions:
        return error(
            "topics", f"{name} has {about.partitions} partitions, and the cluster {partitions} shards",
            "name the right brokers in kafka.bootstrap; if the topic was altered, that cannot be undone: restore it",
        )  # fmt: skip
    if (misfit := await brokers.misfit(name, expires=expires)) is not None:
        return error("topics", f"{name}: {misfit}", "alter the topic (kafka-configs.sh), or duemq's settings")
    return _trouble(name, about) or ok("topics", f"{name}: {about.partitions} partitions, {about.copies} replicas")


def _trouble(name: str, about: TopicFacts) -> Finding | None:
    if not about.trouble:
        return None
    partition, reason = min(about.trouble.items())
    return error("topics", f"{name}: partition {partition}: {reason}", "start the brokers that hold its replicas")


async def _clock(brokers: KafkaInspection, bound_ms: int) -> Finding:
    try:
        offset = await brokers.clock_offset_ms()
    except DuemqError as failed:
        return warning("clocks", f"not compared with the brokers': {failed}", "check the topic duemq.clock")
    if offset is None:
        return ok("clocks", "not compared with the brokers' before the first start")
    detail = f"this clock is {-offset:+.0f} ms from the brokers', and may be {bound_ms} (node.max_clock_offset_ms)"
    if abs(offset) > bound_ms:
        return error("clocks", detail, "set this machine's clock and the brokers' by NTP: a server delivers nothing")
    if abs(offset) > bound_ms * _FAR_SHARE:
        return warning("clocks", detail, "check NTP here and on the brokers")
    return ok("clocks", detail)
