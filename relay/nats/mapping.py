"""Maps a message to NATS: a subject, and headers, which must be text; see `docs/guides/destinations.md`."""

from __future__ import annotations

import re
from base64 import b64encode
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote, quote_from_bytes

from duemq.client.consumer.message import Message
from duemq.model.destinations.nats import NAMES, NatsOptions
from duemq.model.destinations.template import KEY, TOPIC, fill, parse_name
from duemq.relay.base import NotMapped

BASE64_PREFIX: Final = "duemq-base64-"
"""Prefix for the name of a header that NATS cannot represent unchanged. Producers have no headers with this prefix."""
SUBJECT_BYTES: Final = 2_000
"""Limit for a subject. Servers close the connection if a protocol line exceeds 4,096 bytes, and the line also contains
the inbox and two sizes."""
NULL_PREFIX: Final = "duemq-null-"
"""Prefix for the name of a header whose value is null. Producers have no headers with this prefix."""
_NO_TOKEN: Final = "_"
_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_RESERVED: Final = re.compile(r"nats-.*|status", re.IGNORECASE)
"""Headers that have a meaning for servers (`Nats-Rollup` deletes messages) or client libraries (`Status`)."""
_FRAME_BYTES: Final = len("NATS/1.0\r\n\r\n")
_LINE_BYTES: Final = len(": \r\n")


class Publication(NamedTuple):
    """The subject and headers for a message. `header_bytes`: the headers' size, which counts towards the server's
    `max_payload`."""

    subject: str
    headers: dict[str, str]
    header_bytes: int


class Mapping:
    """Maps messages according to the options of the destination `name`. `by_key`: whether the subject contains the
    message's key."""

    def __init__(self, name: str, options: NatsOptions) -> None:
        self._name, self._parts = name, parse_name(options.subject, NAMES)
        self._by_topic, self.by_key = self._parts == (TOPIC,), KEY in self._parts
        self._jetstream, self._stream = options.jetstream, options.stream

    def publication(self, message: Message) -> Publication:
        """The subject and headers for a message. Raises NotMapped."""
        id_, due_ms, key = message.id, message.origin.due_ms, message.key
        headers: dict[str, str] = {}
        if self._jetstream:
            # The id contains the destination's name, because a stream drops repeats of an id even on other subjects:
            # otherwise, if two destinations publish to the same stream, the second copy of a message would be dropped.
            identity = message.identity
            headers["Nats-Msg-Id"] = f"{self._name}:{identity if _is_plain(identity) else quote(identity, safe=':')}"
            if self._stream:
                headers["Nats-Expected-Stream"] = self._stream
        _put(headers, "duemq-id", id_.encode())
        if due_ms is not None:
            headers["duemq-due"] = str(due_ms)
        if key is not None:
            _put(headers, "duemq-key", key)
        if message.value is None:
            headers["duemq-null"] = "true"
        for name, value in message.headers:
            if value is None:
                _append(headers, NULL_PREFIX + quote(name, safe="", errors="replace"), "")
            elif _RESERVED.fullmatch(name):
                _put_encoded(headers, name, value)
            else:
                _put(headers, name, value)
        size = _FRAME_BYTES
        for name, text in headers.items():
            size += len(name.rstrip()) + _LINE_BYTES + (len(text) if text.isascii() else len(text.encode()))
        return Publication(self._subject(message), headers, size)

    def _subject(self, message: Message) -> str:
        subject = _topic_tokens(message.topic)
        if not self._by_topic:
            key = key_token(message.key) if self.by_key else ""
            subject = fill(self._parts, {"topic": subject, "key": key})
        if len(subject) > SUBJECT_BYTES:
            raise NotMapped("bad_subject", f"the subject has {len(subject):,} bytes, more than {SUBJECT_BYTES:,}")
        return subject


@lru_cache(1_000)
def _topic_tokens(topic: str) -> str:
    """A topic as part of a subject. Dots in the topic separate tokens, and no token may be empty."""
    return ".".join(token or _NO_TOKEN for token in quote(topic, safe="").split("."))


def key_token(key: bytes | None) -> str:
    """A key as one token, encoded as in a URL, including its dots; `_` for an empty or missing key."""
    return quote_from_bytes(key, safe="").replace(".", "%2E") if key else _NO_TOKEN


def _put(headers: dict[str, str], name: str, value: bytes) -> None:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        _put_encoded(headers, name, value)
        return
    if _is_plain(text) and _NAME.fullmatch(name):
        _append(headers, name, text)
    else:
        _put_encoded(headers, name, value)


def _put_encoded(headers: dict[str, str], name: str, value: bytes) -> None:
    _append(headers, BASE64_PREFIX + quote(name, safe="", errors="replace"), b64encode(value).decode())


def _append(headers: dict[str, str], name: str, text: str) -> None:
    while name in headers:
        name += " "  # repeats a name in the dictionary: nats-py strips the spaces, so NATS gets the same name
    headers[name] = text


def _is_plain(text: str) -> bool:
    """Whether a text arrives unchanged: it has one line, and no surrounding spaces, which clients would strip."""
    return text.isprintable() and text[:1] != " " and text[-1:] != " "
