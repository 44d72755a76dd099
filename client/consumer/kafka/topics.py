"""The topics that a group needs: creates its retry and dead letter topics, requires duemq's buffer topic, and checks
the topics that the group subscribes to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeVar

from aiokafka import errors
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.structs import TopicPartition

from duemq.bus.kafka.aiokafka_internals import client_of
from duemq.bus.kafka.clients import new_admin
from duemq.bus.kafka.requests.config_requests import IncrementalAlterConfigsRequest
from duemq.client.consumer.kafka.positions import topics_in
from duemq.client.consumer.options import ConsumerOptions
from duemq.model.errors import Rejected, Unavailable
from duemq.model.topics.group_topics import dead_letter_topic, retry_topic

log = logging.getLogger(__name__)

_AS_THE_BROKER_LIKES = -1
_LIMIT = "max.message.bytes"
_HEADERS_BYTES = 64 << 10  # a message may grow by this: these topics must accept each message that the buffer accepted
_AGAIN_S = (0.1, 0.3, 1.0, 3.0, 3.0, 3.0, 5.0, 5.0, 5.0, 5.0)  # a new cluster takes a while to start a coordinator
_PASSES = (errors.NotControllerError, errors.RequestTimedOutError)

T = TypeVar("T")


class GroupTopics(NamedTuple):
    """The state of the topics when a member starts. `missing`: topics that do not exist. `known_topics`: topics in
    which the group has an offset, to which it subscribed before, or that are missing. Partitions of these topics that
    have no offset are new."""

    missing: frozenset[str]
    known_topics: frozenset[str]


async def prepare(group: str, bootstrap: str, options: ConsumerOptions, topics: Iterable[str]) -> int:
    """Create missing topics. Returns the number of partitions of duemq's buffer topic. Idempotent. Existing topics stay
    as they are, except for a message size limit below the buffer's.

    Raises Rejected `unknown_topic` if duemq does not run on this Kafka, `not_authorized` if this user may not see a
    topic or may not create a missing one, and `bad_topic`. Raises Unavailable if the topics cannot be created now.
    """
    buffer, retry, dead = options.buffer_topic, retry_topic(group), dead_letter_topic(group)
    async with _admin(bootstrap, options) as admin:
        counts = await _describe(admin, [buffer, *topics, retry, dead], may_be_hidden=(dead,))
        if not counts[buffer]:
            detail = f"there is no topic {buffer} at {bootstrap}: duemq is not running on this Kafka"
            raise Rejected("unknown_topic", detail, "bootstrap")
        limits = await _limits(admin, [buffer, *(topic for topic in (retry, dead) if counts.get(topic))])
        limit = limits[buffer] + _HEADERS_BYTES if buffer in limits else None
        own_topics = {retry: options.retry_partitions, dead: 1}
        await _make(admin, {topic: count for topic, count in own_topics.items() if counts.get(topic) == 0}, limit)
        low = [topic for topic, size in limits.items() if topic != buffer and limit and size < limits[buffer]]
        for topic in low:
            await _raise_limit(admin, topic, limits[topic], limit or 0)
        return counts[buffer]


async def survey(group: str, bootstrap: str, options: ConsumerOptions, topics: Collection[str]) -> GroupTopics:
    """Check topics before the start. Raises KafkaError, and Rejected `not_authorized` or `bad_topic`."""
    async with _admin(bootstrap, options) as admin:
        counts = await _describe(admin, topics)
        missing = frozenset(topic for topic, count in counts.items() if not count)
        if options.broadcasting:
            return GroupTopics(missing, missing)
        offsets = await patiently(lambda: admin.list_consumer_group_offsets(group))
        with_offsets = {partition.topic for partition, place in offsets.items() if place.offset >= 0}
        subscribed = topics_in((place.metadata for place in offsets.values()), topics)
        return GroupTopics(missing, missing.union(with_offsets, subscribed))


async def partitions_of(bootstrap: str, options: ConsumerOptions, topics: Iterable[str]) -> set[TopicPartition]:
    """All partitions of the topics that exist. Raises KafkaError."""
    async with _admin(bootstrap, options) as admin:
        counts = await _describe(admin, topics)
        return {TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)}


@asynccontextmanager
async def _admin(bootstrap: str, options: ConsumerOptions) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = new_admin(bootstrap_servers=bootstrap, **options.kafka_of(AIOKafkaAdminClient))
    try:
        await patiently(admin.start)
        yield admin
    finally:
        await admin.close()


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Retry for half a minute while brokers are unreachable or starting. Raises KafkaError."""
    for pause_s in _AGAIN_S:
        try:
            return await ask()
        except KafkaError as error:
            if not error.retriable:
                raise
            log.warning("consumer cannot start yet, and tries again: %r", error, extra={"action": "start"})
        except AttributeError:  # from aiokafka, if no broker is the controller
            pass
        except TimeoutError as error:  # from aiokafka, if a broker is unreachable: that was a long wait already
            raise errors.RequestTimedOutError("no broker answers") from error
        await asyncio.sleep(pause_s)
    try:
        return await ask()
    except (TimeoutError, AttributeError) as error:
        raise errors.RequestTimedOutError(f"no broker answers: {error!r}") from error


async def _describe(
    admin: AIOKafkaAdminClient, topics: Collection[str] | Iterable[str], may_be_hidden: Collection[str] = ()
) -> dict[str, int]:
    """Number of partitions by topic; 0 if a topic does not exist. Topics in `may_be_hidden` that this user may not see
    are left out."""
    names = sorted(set(topics))
    request = MetadataRequest(names, allow_auto_topic_creation=False)  # a misspelled topic must not be created
    answer = await patiently(lambda: admin._send_request(request))
    counts: dict[str, int] = {}
    for code, topic, _, partitions in answer.topics:
        error = errors.for_code(code)
        if error is errors.TopicAuthorizationFailedError:
            if topic not in may_be_hidden:
                raise Rejected("not_authorized", f"Kafka does not let this user see topic {topic}", "topic")
        elif error is errors.InvalidTopicError:
            raise Rejected("bad_topic", f"Kafka has no topics with the name {topic!r}", "topic")
        else:
            counts[topic] = len(partitions)
    return counts


async def _limits(admin: AIOKafkaAdminClient, topics: Iterable[str]) -> dict[str, int]:
    """The message size limit of each topic, in bytes. Topics whose settings this user may not read are left out."""
    queries = [ConfigResource(ConfigResourceType.TOPIC, topic, {_LIMIT: ""}) for topic in topics]
    answers = await patiently(lambda: admin.describe_configs(queries))
    return {
        resource[3]: int(entry[1])
        for answer in answers
        for resource in answer.resources
        if not resource[0]
        for entry in resource[4]
        if entry[0] == _LIMIT
    }


async def _make(admin: AIOKafkaAdminClient, topics: Mapping[str, int], limit: int | None) -> None:
    """Create topics. `topics`: the number of partitions for each. `limit`: the message size limit in bytes; None = the
    broker's default."""
    if not topics:
        return
    settings = {} if limit is None else {_LIMIT: str(limit)}
    new = [
        NewTopic(topic, count, _AS_THE_BROKER_LIKES, replica_assignments={}, topic_configs=settings)
        for topic, count in topics.items()
    ]

    async def make() -> None:
        for topic, code, message in (await admin.create_topics(new)).topic_errors:
            error = errors.for_code(code)
            if error in _PASSES:
                await client_of(admin).force_metadata_update()
                raise error(f"topic {topic}: {message}")
            if error is errors.TopicAuthorizationFailedError:
                raise Rejected("not_authorized", f"topic {topic} is missing, and this user may not create it", "group")
            if code and error is not errors.TopicAlreadyExistsError:  # another member has just created it
                raise Unavailable(f"topic {topic} cannot be created: {message or error.__name__}")

    try:
        await patiently(make)
    except KafkaError as error:
        raise Unavailable(f"topics {', '.join(topics)} cannot be created: {error!r}") from error
    if limit is None:
        log.warning(
            "consumer may not read the message size limit of duemq's buffer: %s get the brokers' default",
            ", ".join(topics), extra={"action": "make topics"},
        )  # fmt: skip


async def _raise_limit(admin: AIOKafkaAdminClient, topic: str, current_limit: int, limit: int) -> None:
    """Raise a topic's message size limit: otherwise larger messages could neither be retried nor become dead letters of
    the group."""
    why: object
    try:
        answer = await admin._send_request(IncrementalAlterConfigsRequest({topic: {_LIMIT: str(limit)}}))
        code, message = answer.responses[0][:2]
        why = message or errors.for_code(code).__name__ if code else None
    except (KafkaError, NotImplementedError, TimeoutError) as error:
        why = error
    if why is None:
        log.info("topic %s now accepts messages of %d bytes", topic, limit, extra={"action": "make topics"})
    else:
        log.warning(
            "topic %s accepts messages of %d bytes, so larger ones cannot be retried: set its %s to %d (%s)",
            topic, current_limit, _LIMIT, limit, why, extra={"action": "make topics"},
        )  # fmt: skip
