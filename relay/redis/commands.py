"""Maps a message to the words of one Redis command."""

from __future__ import annotations

from base64 import b64encode
from typing import Final

import orjson

from duemq.client.consumer.message import Message
from duemq.model.destinations.redis import NAMES, RedisOptions
from duemq.model.destinations.template import KEY, QUEUE, TOPIC, parse_name
from duemq.relay.base import NotMapped
from duemq.relay.held_task import celery_task, dramatiq_task
from duemq.relay.redis.script import SCRIPT, SHA

Words = tuple[str | bytes | int, ...]
"""The words of a command. The first word, its name, is a str, because the cluster client looks commands up by it."""

HEADER: Final = b"header:"
NULL_HEADER: Final = b"null-header:"
MARKER: Final = b"duemq:"


class Commands:
    """The commands for one destination. `by_key`: whether the name of the stream, list or channel contains the
    message's key."""

    def __init__(self, options: RedisOptions) -> None:
        self._options = options
        parts = parse_name(options.name, NAMES)
        self.by_key = KEY in parts
        self._name = [part.encode() if isinstance(part, str) else part for part in parts]
        self._bounded_list = options.kind == "list" and options.max_length > 0
        self._trim: Words = ()
        if options.kind == "stream" and options.max_length:
            self._trim = (b"MAXLEN", b"~", options.max_length)

    def words(self, message: Message) -> Words:
        """The command that sends a message. Raises NotMapped."""
        options = self._options
        if options.envelope == "celery":
            task = celery_task(message)
            if task.exchange:
                raise NotMapped("exchange", f"Celery's exchange {task.exchange!r}: in Redis there are only queues")
            name = self._name_of(message, task.routing_key + task.list_suffix)
            return self._added(message, name, "LPUSH", task.kombu_json())  # workers pop from the right
        if options.envelope == "dramatiq":
            dramatiq = dramatiq_task(message)
            name = self._name_of(message, dramatiq.queue)
            return self._added(message, name, "RPUSH", *dramatiq.redis_message(), more_keys=(name + b".msgs",))
        name = self._name_of(message)
        if options.kind == "pubsub":
            return "PUBLISH", name, self._value(message)
        if options.kind == "stream":
            return self._added(message, name, "XADD", *self._trim, b"*", *fields(message))
        return self._added(message, name, "RPUSH", self._value(message))

    def _added(
        self, message: Message, name: bytes, command: str, *added: str | bytes | int, more_keys: Words = ()
    ) -> Words:
        options = self._options
        if not options.dedup_window and not self._bounded_list:
            return command, name, *added
        keys: Words = (1, name)
        if options.dedup_window:
            # The braces put the marker into the same cluster slot as the name, which contains no braces.
            keys = (2 + len(more_keys), name, b"%b{%b}:%b" % (MARKER, name, message.identity.encode()), *more_keys)
        limit = options.max_length if self._bounded_list else 0
        return "EVALSHA", SHA, *keys, options.dedup_window, limit, command, *added

    def _name_of(self, message: Message, queue: str = "") -> bytes:
        parts: list[bytes] = []
        for part in self._name:
            if isinstance(part, bytes):
                parts.append(part)
            elif part == TOPIC:
                parts.append(message.topic.encode())
            elif part == QUEUE:
                parts.append(queue.encode())
            elif message.key is None:
                kind = self._options.kind
                raise NotMapped("no_key", f"the {kind} is named after the key, but the message has no key")
            else:
                parts.append(_without_braces(message.key))
        return b"".join(parts)

    def _value(self, message: Message) -> bytes:
        return message.payload if self._options.envelope == "none" else envelope(message)


def name_of(words: Words) -> bytes:
    """The name of the stream, list or channel that a command writes to."""
    name = words[3] if words[0] in ("EVALSHA", "EVAL") else words[1]
    assert isinstance(name, bytes)
    return name


def with_script(words: Words) -> Words:
    """The same command with the script's text, for a server that has not loaded the script."""
    return "EVAL", SCRIPT, *words[2:]


def fields(message: Message) -> list[bytes]:
    """The fields of a stream entry: names and values alternate."""
    entry = [b"id", message.id.encode()]
    if (due_ms := message.origin.due_ms) is not None:
        entry += b"due", b"%d" % due_ms
    if (key := message.key) is not None:
        entry += b"key", key
    if message.value is None:
        entry += b"null", b"true"
    for name, value in message.headers:
        entry += (NULL_HEADER if value is None else HEADER) + name.encode(), value or b""
    entry += b"payload", message.payload
    return entry


def envelope(message: Message) -> bytes:
    """A message as JSON. Bytes are strings; bytes that are not UTF-8 are `{"base64": …}`; null is null."""
    return orjson.dumps({
        "id": message.id,
        "due": message.origin.due_ms,
        "key": _text(message.key),
        "headers": [(name, _text(value)) for name, value in message.headers],
        "payload": _text(message.value),
    })  # fmt: skip


def _text(value: bytes | None) -> str | dict[str, str] | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value or b"").decode()}


def _without_braces(key: bytes) -> bytes:
    """A key with its braces encoded. Braces in a name would determine its cluster slot, and then the marker could not
    always be in the same slot."""
    return key.replace(b"%", b"%25").replace(b"{", b"%7B").replace(b"}", b"%7D")
