"""A message that goes back or to the dead letters, whichever log takes it. Pure."""

from __future__ import annotations

import hashlib
from typing import Final, Literal, NamedTuple

from duemq.client.consumer.message import Message
from duemq.client.consumer.retry.headers import Header, Origin, returned, share_group_headers
from duemq.client.consumer.retry.policy import Dead, Wait
from duemq.model.messages.dead_letters import SHARE_GROUP
from duemq.model.topics.group_topics import dead_letter_topic, retry_topic

Pairs = list[Header]

AT_ONCE: Final = Wait("level", 0)


Kind = Literal["retry", "dead"]


class LetterPlace(NamedTuple):
    """Where the record stands that goes back. `topic`: as the consumer calls it."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class Letter(NamedTuple):
    """`name`: the text of the name that makes it once, however often it is sent (`model/messages/names.py`,
    `of_return`). Key and value are the message's."""

    topic: str
    wait: Wait
    name: str
    headers: Pairs


def letter_of(group: str, message: Message, to: Wait | Dead, error: str) -> Letter:
    """What is sent of a message that a group gives back."""
    record = message.record
    kind: Kind
    if isinstance(to, Dead):
        kind, topic, wait, reason, origin = "dead", dead_letter_topic(group), AT_ONCE, to.reason, message.origin
    else:
        kind, topic, wait, reason = "retry", retry_topic(group), to, "failed"
        origin = message.origin.again() if to.counts else message.origin
    headers = returned(record.headers, origin, reason, error, message.value is None)
    if isinstance(to, Dead):
        headers = dead_headers(group, headers, origin, error)
    place = LetterPlace(record.topic, record.partition, record.offset, record.timestamp)
    return Letter(topic, wait, letter_name(kind, group, place), headers)


def letter_name(kind: Kind, group: str, place: LetterPlace) -> str:
    """The name of what a group sends of the record at hand, not of the one that it was first: each time that it comes
    back its name is another one."""
    digest = hashlib.sha256("\0".join(map(str, (kind, group, *place))).encode()).hexdigest()
    return f"{kind}-{digest[:40]}"


def dead_headers(group: str, headers: Pairs, origin: Origin, error: str) -> Pairs:
    """The headers of a dead letter, with those that share groups have instead of any from before."""
    others = [pair for pair in headers if not pair[0].startswith(SHARE_GROUP)]
    return others + share_group_headers(origin, group, error)
