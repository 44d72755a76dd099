"""A message that is sent back or to the dead letters, for any kind of log. Pure."""

from __future__ import annotations

import hashlib
from typing import Final, Literal, NamedTuple

from duemq.client.consumer.message import Message
from duemq.client.consumer.retry.headers import Header, RetryOrigin, returned, share_group_headers
from duemq.client.consumer.retry.policy import DeadLetter, Wait
from duemq.model.messages.dead_letters import SHARE_GROUP
from duemq.model.topics.group_topics import dead_letter_topic, retry_topic

Pairs = list[Header]

AT_ONCE: Final = Wait("level", 0)


Kind = Literal["retry", "dead"]


class LetterPlace(NamedTuple):
    """The place of the record that is sent back. `topic`: its name as the consumer sees it."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class Letter(NamedTuple):
    """The content of a letter, except its key and value, which are the message's own. `name`: makes duemq accept the
    letter only once, however often it is sent (`model/messages/names.py`, `of_return`)."""

    topic: str
    wait: Wait
    name: str
    headers: Pairs


def letter_of(group: str, message: Message, to: Wait | DeadLetter, error: str) -> Letter:
    """The letter for a message that a group sends back."""
    record = message.record
    kind: Kind
    if isinstance(to, DeadLetter):
        kind, topic, wait, reason, origin = "dead", dead_letter_topic(group), AT_ONCE, to.reason, message.origin
    else:
        kind, topic, wait, reason = "retry", retry_topic(group), to, "failed"
        origin = message.origin.again() if to.counts else message.origin
    headers = returned(record.headers, origin, reason, error, message.value is None)
    if isinstance(to, DeadLetter):
        headers = dead_headers(group, headers, origin, error)
    place = LetterPlace(record.topic, record.partition, record.offset, record.timestamp)
    return Letter(topic, wait, letter_name(kind, group, place), headers)


def letter_name(kind: Kind, group: str, place: LetterPlace) -> str:
    """The name of a letter. It is made from the place of the current record, not from the message's first place, so
    that each return of a message has another name."""
    digest = hashlib.sha256("\0".join(map(str, (kind, group, *place))).encode()).hexdigest()
    return f"{kind}-{digest[:40]}"


def dead_headers(group: str, headers: Pairs, origin: RetryOrigin, error: str) -> Pairs:
    """The headers of a dead letter. Earlier share group headers are replaced."""
    others = [pair for pair in headers if not pair[0].startswith(SHARE_GROUP)]
    return others + share_group_headers(origin, group, error)
