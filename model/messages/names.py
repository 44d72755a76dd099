"""Names that tell a message or a reader from others. Each has a space, and no space reaches into another.

The name of a message in its shard, at most 255 bytes:

    n: TEXT                          a caller for all topics chose it, or a Kafka client in `duemq-name`
    k: caller (32 hex) : TEXT        a caller for some topics chose it
    i: caller and key (16 bytes)     of an Idempotency-Key
    d: place (40 hex)                of a dead letter in a topic, which jobs redrive once
    r: TEXT : content (32 hex)       of a message that a consumer or a relay sends back

The cursor of a reader in a topic of the embedded log:

    NAME                             a client's, over HTTP
    /GROUP                           a destination's
    @CALLER                          of no reader: which names a caller has given consumers (ADR 76)
    !purges                          of no reader: when a job last purged the topic (ADR 78)

Only this file makes a `Name` or a `CursorName` (`read_name` in `model/messages/message.py` reads those of commands); a
test finds any other place. A client with write access to the buffer topic can write any name into a command.
"""

from __future__ import annotations

import zlib
from hashlib import blake2b, sha256
from typing import Final, NewType

Name = NewType("Name", bytes)
CursorName = NewType("CursorName", str)

NO_NAME: Final = Name(b"")
CLIENT: Final = b"n:"
_CALLER, _IDEMPOTENCY, _REDRIVE, _RETURN = b"k:", b"i:", b"d:", b"r:"

FINGERPRINT_BYTES: Final = 16
_DIGITS: Final = 2 * FINGERPRINT_BYTES
_CALLER_TEXT: Final = len(_CALLER) + _DIGITS + 1  # where the text of a caller's name begins

RETURN_HEADER: Final = "x-duemq-return"
"""Beside `duemq-name`, makes it the name of a return. An older server takes it for a header of the message, and the
name for a client's, in the same shard."""


def of_client(text: str) -> Name:
    return Name(CLIENT + text.encode())


def of_caller(caller: str, text: str) -> Name:
    """`caller`: the id of a key, which a rotation keeps, or `user:ID`."""
    return Name(b"%b%b:%b" % (_CALLER, fingerprint(caller.encode()).hex().encode(), text.encode()))


def former_of_caller(name: Name) -> Name | None:
    """The name that an older version gave for the same text; None for a name of another space."""
    return Name(CLIENT + name[_CALLER_TEXT:]) if name.startswith(_CALLER) else None


def prefixes_of(caller: str, text: str) -> tuple[bytes, ...]:
    """What the names that begin with `text` begin with, in the spaces where `caller` looks names up. `caller`: empty
    for one for all topics."""
    shared = of_client(text)
    return (of_caller(caller, text), shared) if caller else (shared,)


def text_of(name: bytes, caller: str) -> str:
    """The text by which `caller` looks a message up; empty if it has no name, or one of another space."""
    start = next((one for one in prefixes_of(caller, "") if name.startswith(one)), None)
    return "" if start is None else name[len(start) :].decode(errors="replace")


def of_idempotency_key(caller: bytes, key: str) -> Name:
    return Name(_IDEMPOTENCY + fingerprint(caller, key.encode()))


def of_redrive(place: str) -> Name:
    """`place`: of the dead letter, with its time: a topic that is made again has the same offsets again."""
    return Name(_REDRIVE + sha256(place.encode()).hexdigest()[:40].encode())


def of_return(text: str, topic: bytes, key: bytes | None, value: bytes | None) -> tuple[Name, bytes]:
    """The name of a message that goes back, and its fingerprint.

    Both follow from topic, key and value, not from headers: these tell of the error, which differs if the message is
    sent again. The name contains the fingerprint, so other content has another name: a return meets no conflict.
    """
    content = fingerprint(topic, b"" if key is None else b"k" + key, value or b"")
    return Name(b"%b%b:%b" % (_RETURN, text.encode(), content.hex().encode())), content


def shard_of_name(name: Name, shards: int) -> int:
    """The shard that decides about a name. A return has that of its text as a client's name, where an older server
    looks for it."""
    if name.startswith(_RETURN):
        return zlib.crc32(CLIENT + name[len(_RETURN) : -_DIGITS - 1]) % shards
    return zlib.crc32(name) % shards


def fingerprint(*parts: bytes) -> bytes:
    """16 bytes of BLAKE2b over the parts and their lengths, so that ("ab", "c") and ("a", "bc") differ."""
    digest = blake2b(digest_size=FINGERPRINT_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


def consumer_cursor(consumer: str) -> CursorName:
    return CursorName(consumer)


def list_cursor(caller: str) -> CursorName:
    """`@` is in no name of a consumer."""
    return CursorName(f"@{caller}")


MAX_READERS: Final = 200


def reader_of(cursor: str) -> str:
    """Whose a cursor is, in words."""
    return f"group {cursor[1:]}" if cursor.startswith("/") else f"consumer {cursor}"


PURGES: Final = CursorName("!purges")
"""Its value in a topic is the start (epoch ms) of the last purge there. No request can use this name."""


def group_cursor(group: str) -> CursorName:
    """`/` is in no name of a consumer (`CONSUMER` in `model/topics/rules.py`)."""
    return CursorName(f"/{group}")
