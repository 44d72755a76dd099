"""Maps a message to RocketMQ: a body, text properties, keys, a tag; see `docs/guides/destinations/rocketmq.md`."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final
from urllib.parse import quote

from duemq.client.consumer.message import Message
from duemq.client.consumer.retry.headers import Headers
from duemq.model.destinations.rocketmq import NAMES, TOPIC_CHARACTERS, RocketMqOptions, legal_tag
from duemq.model.destinations.template import LABEL, fill, parse_name
from duemq.relay.base import NotMapped
from duemq.relay.headers_json import headers_json

EMPTY_BODY: Final = b"\x00"
"""The body for an empty payload: RocketMQ accepts no empty bodies."""
_PLAIN_ID: Final = re.compile(r"[!-~]{1,255}")
_TEXT: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]+")
_KEY: Final = re.compile(r"[^\s\x00-\x1f\x7f-\x9f]{1,255}")
"""A key without spaces: RocketMQ separates keys by spaces."""
_SERVERS_OWN: Final = re.compile(r"[A-Z0-9_]+|_.*", re.DOTALL)
"""Names of properties that RocketMQ refuses or that have a meaning for it. New versions add such names."""
_GROUP_BYTES: Final = 63
_PROPERTIES: Final = 128
_PROPERTY_BYTES: Final = 16_384  # limit for properties, keys and tag together


@dataclass(slots=True)
class Publication:
    """A RocketMQ message. `message_id`: the same each time the message is sent."""

    message_id: str
    topic: str
    body: bytes
    properties: dict[str, str]
    keys: list[str]
    tag: str | None = None
    message_group: str | None = None

    @property
    def size(self) -> int:
        """Approximately how many bytes the message adds to a request."""
        return len(self.body) + sum(map(len, self.properties)) + sum(map(len, self.properties.values()))


class Mapping:
    """Maps messages according to a destination's options."""

    def __init__(self, options: RocketMqOptions) -> None:
        self._topic, self._fifo = parse_name(options.topic, NAMES), options.fifo
        self._by_label = parse_name(options.tag, ("label",)) == (LABEL,)
        self._tag = None if self._by_label else options.tag or None
        self._topics: dict[str, str] = {}

    def publication(self, message: Message) -> Publication:
        """The publication for a message. Raises NotMapped."""
        id_, due_ms, key, body = message.id, message.origin.due_ms, message.key, message.payload
        identity = message.identity
        if not _PLAIN_ID.fullmatch(identity):  # any producer may set the header with the id
            id_, identity = (quote(text, safe=":", errors="replace")[-255:] for text in (id_, identity))
        topic = self._topics.get(message.topic) or self._topic_of(message.topic)
        properties = {"duemq-id": id_}
        made = Publication(identity, topic, body or EMPTY_BODY, properties, [id_])
        if due_ms is not None:
            properties["duemq-due"] = str(due_ms)
        if not body:
            properties["duemq-empty"] = "true"
        if message.value is None:
            properties["duemq-null"] = "true"
        if key:
            self._put_key(made, key)
        if self._fifo:
            made.message_group = _group(key, id_)
        made.tag = self._tag_of(message.labels) if self._by_label else self._tag
        if own := message.headers:
            made.properties = _with_headers(made, own)
        return made

    def _topic_of(self, topic: str) -> str:
        there = fill(self._topic, {"topic": topic.replace(".", "_")})
        if len(there) > TOPIC_CHARACTERS:
            raise NotMapped("bad_topic", f"the topic has {len(there)} characters; RocketMQ holds {TOPIC_CHARACTERS}")
        self._topics[topic] = there  # does not grow beyond the destination's topics
        return there

    def _put_key(self, made: Publication, key: bytes) -> None:
        text = _text(key)
        if text is None:
            made.properties["duemq-key-base64"] = b64encode(key).decode()
        else:
            made.properties["duemq-key"] = text
            if _KEY.fullmatch(text):
                made.keys.append(text)

    def _tag_of(self, labels: Sequence[str]) -> str | None:
        return labels[0] if labels and legal_tag(labels[0]) else None


def _text(value: bytes) -> str | None:
    """The value as text; None if a RocketMQ property cannot contain it."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if _TEXT.fullmatch(text) else None


def _group(key: bytes | None, id_: str) -> str:
    """The message group, within which messages stay in order. Each message without a key has a separate group."""
    if not key:
        return id_ if len(id_) <= _GROUP_BYTES else _digest(id_.encode())
    text = _text(key) if len(key) <= _GROUP_BYTES else None
    return text if text and text.strip() else _digest(key)


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()[:_GROUP_BYTES]


def _with_headers(made: Publication, own: Headers) -> dict[str, str]:
    """The properties, with each header added as a property. If any header would be lost or changed, `duemq-headers`
    contains all of them."""
    properties = dict(made.properties)
    exact = True
    for name, value in own:
        text = None if value is None else _text(value)
        if text is None or name in properties or not _TEXT.fullmatch(name) or not name.strip():
            exact = False
        elif _SERVERS_OWN.fullmatch(name):
            exact = False
        else:
            properties[name] = text
    if exact and len(properties) <= _PROPERTIES:
        return properties
    packed = properties["duemq-headers"] = headers_json(own)
    if len(properties) > _PROPERTIES or _size(made, properties) > _PROPERTY_BYTES:
        return made.properties | {"duemq-headers": packed}
    return properties


def _size(made: Publication, properties: dict[str, str]) -> int:
    texts = (made.tag or "", *made.keys, *properties, *properties.values())
    return sum(len(text.encode(errors="replace")) for text in texts)
