"""Names of messages and readers. Each name belongs to a name space, and name spaces do not overlap.

The name of a message, as its shard stores it, in at most 255 bytes:

    n: TEXT                          chosen by a caller with all topics, or by a Kafka client in `duemq-name`
    k: caller (32 hex) : TEXT        chosen by a caller limited to some topics
    i: caller and key (16 bytes)     from an Idempotency-Key
    d: place (40 hex)                for a dead letter in a topic, which jobs redrive once
    r: TEXT : content (32 hex)       for a message that a consumer or a relay sends back

The name of a reader's cursor in a topic of the embedded log:

    NAME                             a client that reads over HTTP
    /GROUP                           a destination
    @CALLER                          not a reader: the names that a caller gave to consumers (ADR 76)
    !purges                          not a reader: when a job last purged the topic (ADR 78)

Only this file makes a `Name` or a `CursorName`, except for `read_name` in `model/messages/message.py`, which reads the
names in commands; a test enforces this. A client with write access to the buffer topic can write any name into a
command.
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
"""Marks `duemq-name` as the name of a message that is sent back. To an older server it is a header of the message, and
the name is one that a client chose, in the same shard."""


def of_client(text: str) -> Name:
    return Name(CLIENT + text.encode())


def of_caller(caller: str, text: str) -> Name:
    """The name that a caller limited to some topics chose. `caller`: the id of its key, which stays the same in a
    rotation, or `user:ID`."""
    return Name(b"%b%b:%b" % (_CALLER, fingerprint(caller.encode()).hex().encode(), text.encode()))


def former_of_caller(name: Name) -> Name | None:
    """The name that an older version gave to the same text; None for a name from another space."""
    return Name(CLIENT + name[_CALLER_TEXT:]) if name.startswith(_CALLER) else None


def prefixes_of(caller: str, text: str) -> tuple[bytes, ...]:
    """The prefixes of names that begin with `text`, in the spaces where `caller` looks up names. `caller`: empty for a
    caller with all topics."""
    shared = of_client(text)
    return (of_caller(caller, text), shared) if caller else (shared,)


def text_of(name: bytes, caller: str) -> str:
    """The text by which `caller` looks up a message; empty if the message has no name, or one from another space."""
    start = next((one for one in prefixes_of(caller, "") if name.startswith(one)), None)
    return "" if start is None else name[len(start) :].decode(errors="replace")


def of_idempotency_key(caller: bytes, key: str) -> Name:
    return Name(_IDEMPOTENCY + fingerprint(caller, key.encode()))


def of_redrive(place: str) -> Name:
    """The name of a redriven dead letter. `place`: the letter's place and time; the time is needed because a recreated
    topic uses the same offsets again."""
    return Name(_REDRIVE + sha256(place.encode()).hexdigest()[:40].encode())


def of_return(text: str, topic: bytes, key: bytes | None, value: bytes | None) -> tuple[Name, bytes]:
    """The name of a message that is sent back, and its fingerprint.

    Both depend on topic, key and value, but not on headers, because headers describe the error, which differs each
    time. The name contains the fingerprint, so different content has a different name, and a return never causes a
    conflict.
    """
    content = fingerprint(topic, b"" if key is None else b"k" + key, value or b"")
    return Name(b"%b%b:%b" % (_RETURN, text.encode(), content.hex().encode())), content


def shard_of_name(name: Name, shards: int) -> int:
    """The shard of a name. The name of a return belongs to the shard that its text would have as a client's name,
    because an older server looks for it there."""
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
    """The cursor that stores a caller's list of consumer names. No consumer's name contains `@`."""
    return CursorName(f"@{caller}")


MAX_READERS: Final = 200


def reader_of(cursor: str) -> str:
    """The reader to which a cursor belongs, in words."""
    return f"group {cursor[1:]}" if cursor.startswith("/") else f"consumer {cursor}"


PURGES: Final = CursorName("!purges")
"""A cursor whose value is the start (epoch ms) of the last purge of the topic. No request can use this name."""


def group_cursor(group: str) -> CursorName:
    """The cursor of a group. No consumer's name contains `/` (`CONSUMER` in `model/topics/rules.py`)."""
    return CursorName(f"/{group}")
