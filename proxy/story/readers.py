"""Finds the readers of a topic that duemq knows: destinations, and groups of duemq's consumers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from duemq.cluster.shards.shard_reader import MessageState
from duemq.model.callers.access import Grant
from duemq.model.destinations.destination import Destination
from duemq.model.topics.group_topics import DEAD, RETRY, dead_letter_topic, retry_topic

MAX_READERS: Final = 50


class Reader(NamedTuple):
    """`destination`: None for a group of consumers. `is_declared`: the destination's declaration lists the topic. Any
    other reader is known only if it has a position in the topic or has sent messages back."""

    group: str
    destination: Destination | None
    is_declared: bool


def readers_of(topic: str, destinations: Iterable[Destination], topics: Iterable[str]) -> list[Reader]:
    """The possible readers of a topic, declared ones first. `topics`: all topics that exist."""
    by_group = {one.group: one for one in destinations}
    groups = sorted(by_group.keys() | _groups_in(topics))
    readers = [Reader(group, one := by_group.get(group), one is not None and _reads(one, topic)) for group in groups]
    return sorted(readers, key=lambda reader: not reader.is_declared)


def is_told(grant: Grant, reader: Reader) -> bool:
    """Whether a caller may read all sources of a reader's story."""
    topics = {retry_topic(reader.group), dead_letter_topic(reader.group)}
    if reader.destination is not None:
        topics |= {reader.destination.own_topic, *reader.destination.topics}
    return all(map(grant.covers, topics))


def is_return(state: MessageState) -> bool:
    """Whether a reader sent this message back, so that it belongs to another message's story."""
    return state.topic.startswith((RETRY, DEAD)) and any(name == "x-duemq-id" for name, _ in state.headers)


def _reads(destination: Destination, topic: str) -> bool:
    return topic in (destination.own_topic, destination.retry_topic, *destination.topics)


def _groups_in(topics: Iterable[str]) -> set[str]:
    return {topic.removeprefix(lead) for topic in topics for lead in (RETRY, DEAD) if topic.startswith(lead)}
