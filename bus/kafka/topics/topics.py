"""Creates topics, and checks the settings of duemq's own."""

from __future__ import annotations

from typing import Any

from aiokafka import errors
from aiokafka.protocol.admin import CreateTopicsRequest

from duemq.bus.base import WriteRefused
from duemq.bus.kafka.options import KafkaOptions
from duemq.bus.kafka.requests.wire import Wire
from duemq.bus.kafka.topics.catalog import Catalog
from duemq.model.errors import Rejected

TOO_FEW_BROKERS = "too_few_brokers"
# A brief outage of brokers and a cluster with too few brokers have the same error code: only the error's message
# distinguishes them.
_FENCED = "currently fenced"

_CHECKED_SETTINGS = [
    "message.timestamp.type", "cleanup.policy", "retention.ms", "retention.bytes", "min.insync.replicas",
    "max.message.bytes", "unclean.leader.election.enable",
]  # fmt: skip


NEVER = -1
"""The retention setting of a topic whose records brokers never delete."""


def settings_of_own(options: KafkaOptions, retention_ms: int | None = None) -> dict[str, str]:
    """The settings of duemq's own topics.

    They use LogAppendTime, because a relative delay starts when a broker appends the message, so that one clock applies
    to all messages.
    """
    return {
        "message.timestamp.type": "LogAppendTime",
        "cleanup.policy": "delete",
        "retention.ms": str(retention_ms or options.retention_ms),
        "retention.bytes": "-1",
        "min.insync.replicas": str(options.min_insync_replicas),
        "max.message.bytes": str(options.max_message_bytes),
        "compression.type": "producer",
    }


def settings_of_topic(options: KafkaOptions) -> dict[str, str]:
    """The settings of other topics that duemq creates. Such a topic must accept every message that duemq has
    accepted."""
    return {
        "min.insync.replicas": str(options.min_insync_replicas),
        "max.message.bytes": str(options.max_message_bytes),
    }


class TopicMaker:
    def __init__(self, wire: Wire, catalog: Catalog, options: KafkaOptions) -> None:
        self._wire, self._catalog, self._options = wire, catalog, options

    async def ensure(self, topic: str, partitions: int, settings: dict[str, str]) -> None:
        """Create a topic if it is missing. Raises Rejected for an impossible name, WriteRefused if the brokers do not
        create it."""
        if topic not in await self._catalog.refresh([topic]):
            await self._make(topic, partitions, settings)

    async def _make(self, topic: str, partitions: int, settings: dict[str, str]) -> None:
        requests: list[Any] = [(topic, partitions, self._options.replication_factor, [], list(settings.items()))]
        timeout_ms = self._options.request_timeout_ms // 2
        request = CreateTopicsRequest(create_topic_requests=requests, timeout=timeout_ms, validate_only=False)
        response = await self._wire.ask_controller(request)
        for _, code, message in response.topic_errors:
            error = errors.for_code(code)
            if code and error is not errors.TopicAlreadyExistsError:  # otherwise another process has created it
                raise _refusal(topic, error, message)
        await self._wait_for(topic)

    async def _wait_for(self, topic: str) -> None:
        """Wait until every broker can describe a new topic."""

        async def check() -> None:
            if topic not in await self._catalog.refresh([topic]):
                raise errors.LeaderNotAvailableError(topic)
            metadata = self._catalog.last(topic)
            for partition in range(metadata.partitions if metadata else 0):
                if self._wire.leader(topic, partition) is None:
                    raise errors.LeaderNotAvailableError(topic)

        await self._wire.retry(check)

    async def misfit(self, topic: str, want: dict[str, str]) -> str | None:
        """The wrong settings of one of duemq's own topics, in a sentence; None if there are none."""
        have = (await self._catalog.settings([topic], _CHECKED_SETTINGS)).get(topic)
        if have is None:
            return None  # duemq's user may not describe it, so accept it as it is
        misfits = [
            f"{name} is {have[name]} and must be {want[name]}"
            for name in ("message.timestamp.type", "cleanup.policy")
            if have[name] != want[name]
        ]
        misfits += [
            f"{name} is {have[name]} and must be {want[name]} or more"
            for name in ("min.insync.replicas", "max.message.bytes")
            if int(have[name]) < int(want[name])
        ]
        misfits += [
            f"{name} is {have[name]} and must be {_at_least(want[name])}"
            for name in ("retention.ms", "retention.bytes")
            if _unlimited(have[name]) < _unlimited(want[name])
        ]
        if have["unclean.leader.election.enable"] != "false":
            misfits.append("unclean.leader.election.enable is true and must be false: a broker that is behind may lead")
        metadata, copies = self._catalog.last(topic), self._options.replication_factor
        if metadata is not None and metadata.copies < copies:
            misfits.append(
                f"it has {metadata.copies} replicas and must have {copies} or more (kafka.replication_factor)"
            )
        return "; ".join(misfits) or None


def _at_least(value: str) -> str:
    return "-1 (no limit)" if int(value) < 0 else f"{value} or more, or -1 for no limit"


def _unlimited(value: str) -> float:
    return float("inf") if int(value) < 0 else int(value)


def _refusal(topic: str, error: type[errors.KafkaError], message: str | None) -> Rejected | WriteRefused:
    why = f"the brokers do not make topic {topic!r}: {message or error.__name__}"
    if error is errors.InvalidTopicError:
        return Rejected("bad_topic", why, "topic")
    if error in (errors.TopicAuthorizationFailedError, errors.ClusterAuthorizationFailedError):
        detail = f"{why}. Make it by hand, or allow duemq's user to create topics."
        return WriteRefused(topic, "not_authorized", detail)
    if error is errors.InvalidReplicationFactorError and _FENCED not in (message or ""):
        detail = f"{why}. Set kafka.replication_factor to at most the number of brokers."
        return WriteRefused(topic, TOO_FEW_BROKERS, detail)
    if error is errors.PolicyViolationError:
        return WriteRefused(topic, "policy", why)
    passes = error.retriable or error is errors.InvalidReplicationFactorError
    return WriteRefused(topic, "no_answer" if passes else "not_made", why)
