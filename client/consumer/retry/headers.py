"""Headers of retried messages and dead letters; their names begin with `x-duemq-`.

They contain the first topic, partition, offset and id; the number of retries; the reason for the last return; and when
and why each attempt failed. The user's own headers are kept unchanged. duemq's own headers (`duemq-…`) are dropped:
duemq adds new ones to the record. A record may come from any producer, so the parser is tolerant: U+FFFD replaces
invalid UTF-8, and a header whose value is null is treated as missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import orjson

from duemq.model.messages.dead_letters import SHARE_GROUP
from duemq.model.messages.names import RETURN_HEADER

Header = tuple[str, bytes | None]
Headers = Sequence[Header]

TOPIC: Final = "x-duemq-topic"
PARTITION: Final = "x-duemq-partition"
OFFSET: Final = "x-duemq-offset"
ID: Final = "x-duemq-id"
LABELS: Final = "x-duemq-labels"
RETRIED: Final = "x-duemq-retried"
REASON: Final = "x-duemq-reason"
ERROR: Final = "x-duemq-error"
DUE: Final = "x-duemq-due"
"""When the first delivery was due, epoch ms."""
NULL: Final = "x-duemq-null"
"""Present if the value was null. A node of version 0.1.0 replaces null by an empty value; this header preserves the
fact."""
ATTEMPTS: Final = "x-duemq-attempts"
"""The failed attempts as JSON: the first, and the latest of the others. See `HandlingFailure`."""
SIZE: Final = "x-duemq-size"
"""Size in bytes of a value that was too large for the dead letter."""
INSTANCE: Final = "x-duemq-instance"
"""The instance of the group that sent the message back. See `ConsumerOptions.instance`."""
_OURS = frozenset(
    (TOPIC, PARTITION, OFFSET, ID, LABELS, RETRIED, REASON, ERROR, DUE, NULL, SIZE, ATTEMPTS, INSTANCE, RETURN_HEADER)
)
_RESERVED = "duemq-"
_TIMES = frozenset(("x-delay", "DELAY"))
_EPOCH_MS: Final = re.compile(rb"[0-9]{1,15}")
_ERROR_BYTES, _HEADER_BYTES = 1_000, 32
_MAX_ATTEMPTS, _ATTEMPT_CHARACTERS = 20, 200  # attempts stored per message; characters stored per error
ERRORS: Final = ("text", "class")
"""How much of an error the headers and the log contain: its text, or only its class."""


class HandlingFailure(NamedTuple):
    """A failed attempt. `at`: its time, epoch ms. `error`: the start of the reported error text."""

    at: int
    error: str


@dataclass(frozen=True, slots=True)
class RetryOrigin:
    """A message's first place, its number of retries, its failed attempts, when its first delivery was due (epoch ms;
    None if duemq did not deliver it), and the instance of the group that sent it back."""

    topic: str
    partition: int
    offset: int
    id: str
    retried: int = 0
    attempts: tuple[HandlingFailure, ...] = ()
    due_ms: int | None = None
    instance: str = ""

    def failed(self, at: int, error: str) -> RetryOrigin:
        """The origin after another failed attempt. `at`: the time of the attempt, epoch ms."""
        attempt = HandlingFailure(at, error[:_ATTEMPT_CHARACTERS].encode(errors="replace").decode())
        first, others = self.attempts[:1], self.attempts[1:][2 - _MAX_ATTEMPTS :]
        return replace(self, attempts=(*first, *others, attempt))

    def again(self) -> RetryOrigin:
        """The origin after another retry."""
        return replace(self, retried=self.retried + 1)


def origin_in(headers: Headers) -> RetryOrigin | None:
    """The origin in a retried message's headers; None if no consumer sent the record back."""
    values = {name: value for name, value in headers if name in _OURS and value is not None}
    try:
        origin = RetryOrigin(
            values[TOPIC].decode(), int(values[PARTITION]), int(values[OFFSET]),
            values[ID].decode(errors="replace"), int(values[RETRIED]), _attempts_in(values.get(ATTEMPTS)),
            epoch_ms(values.get(DUE)), values.get(INSTANCE, b"").decode(errors="replace"),
        )  # fmt: skip
    except (KeyError, ValueError):
        return None
    return origin if origin.id and origin.retried >= 0 else None


def epoch_ms(value: bytes | None) -> int | None:
    """The time in a header; None if it is invalid."""
    return int(value) if value is not None and _EPOCH_MS.fullmatch(value) else None


def _attempts_in(value: bytes | None) -> tuple[HandlingFailure, ...]:
    """The attempts in a header; empty if the header is not in this module's format."""
    try:
        pairs = orjson.loads(value or b"[]")
        return tuple(HandlingFailure(int(at), str(error)[:_ATTEMPT_CHARACTERS]) for at, error in pairs[:_MAX_ATTEMPTS])
    except (ValueError, TypeError):
        return ()


def returned(headers: Headers, origin: RetryOrigin, reason: str, error: str, null: bool = False) -> list[Header]:
    """The headers of a message that is sent back or to the dead letters, without the headers that address the letter
    and set its delay."""
    pairs: list[Header] = [
        (TOPIC, origin.topic.encode()), (PARTITION, b"%d" % origin.partition), (OFFSET, b"%d" % origin.offset),
        (ID, origin.id.encode()), (RETRIED, b"%d" % origin.retried), (REASON, reason.encode(errors="replace")),
        (ERROR, error[:_ERROR_BYTES].encode(errors="replace")[:_ERROR_BYTES]),
    ]  # fmt: skip
    if (labels := labels_in(headers)) is not None:
        pairs.append((LABELS, labels))
    if origin.attempts:
        pairs.append((ATTEMPTS, orjson.dumps([list(attempt) for attempt in origin.attempts])))
    if origin.due_ms is not None:
        pairs.append((DUE, b"%d" % origin.due_ms))
    if origin.instance:
        pairs.append((INSTANCE, origin.instance.encode(errors="replace")))
    if null:
        pairs.append((NULL, b"1"))
    return pairs + list(own(headers))


def share_group_headers(origin: RetryOrigin, group: str, error: str) -> list[Header]:
    """The headers that Kafka's brokers add to a dead letter of a share group (KIP-1191), for tools that use them."""
    return [
        (SHARE_GROUP + "topic", origin.topic.encode()), (SHARE_GROUP + "partition", b"%d" % origin.partition),
        (SHARE_GROUP + "offset", b"%d" % origin.offset), (SHARE_GROUP + "group", group.encode()),
        (SHARE_GROUP + "delivery.count", b"%d" % (origin.retried + 1)),
        (SHARE_GROUP + "message", error[:_ERROR_BYTES].encode(errors="replace")[:_ERROR_BYTES]),
    ]  # fmt: skip


def header_bytes(headers: Headers) -> int:
    """The average size of a header in bytes; a guess if there are no headers."""
    sizes = [len(name) + len(value or b"") for name, value in headers]
    return sum(sizes) // len(sizes) if sizes else _HEADER_BYTES


def error_text(error: BaseException, tell: str) -> str:
    """The reported text of an error. `tell`: one of `ERRORS`. Never raises, even if the error's `__str__` does."""
    name = type(error).__qualname__
    if tell == "class":
        return name
    try:
        return str(error) or repr(error)
    except Exception:  # caused by a bug in the error's class
        return f"{name}, whose text is not readable"


def labels_in(headers: Headers) -> bytes | None:
    """The labels that a message was scheduled with, also after a retry."""
    return next((value for name, value in headers if name in ("duemq-labels", LABELS) and value is not None), None)


def own(headers: Headers) -> Iterable[Header]:
    """The user's headers."""
    return (
        (name, value)
        for name, value in headers
        if name not in _OURS and not name.lower().startswith(_RESERVED) and name not in _TIMES
    )
