"""The index entries of a message: a term is its message key or one of its labels.

A term is represented by a 64-bit BLAKE2b hash. Collisions do no harm, because a lookup reads the rows that it finds. An
entry consists of this hash and the key of the row (`model/messages/key.py`), 28 bytes in total.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from duemq.model.messages.key import KEY_BYTES
from duemq.model.messages.record import HEAD
from duemq.model.messages.row import ROW, TOPIC_BYTES_AT
from duemq.model.topics.topic_patterns import topic_matcher

HASH_BYTES = 8
ENTRY_BYTES = HASH_BYTES + KEY_BYTES

_ROW_BYTES, _HEAD_BYTES = ROW.size, HEAD.size
_LABELS_AT = TOPIC_BYTES_AT + 1
_NONE = 0xFF  # the first length byte if there is no message key
_MAX_KNOWN = 10_000
_LABEL = b"label\n"  # so that a label hardly ever has the same hash as a message key


def key_hash(message_key: bytes) -> bytes:
    """The hash of a message key."""
    return blake2b(message_key, digest_size=HASH_BYTES).digest()


def label_hash(label: bytes) -> bytes:
    """The hash of a label."""
    return blake2b(_LABEL + label, digest_size=HASH_BYTES).digest()


class IndexedTopics:
    """The topics whose messages are indexed, given by patterns with `*`."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = tuple(patterns)
        self._matches = topic_matcher(self.patterns) if self.patterns else None
        self.known: dict[bytes, bool] = {}

    def __bool__(self) -> bool:
        return bool(self.patterns)

    def has_all(self) -> bool:
        """Whether messages of any topic are indexed."""
        return "*" in self.patterns

    def has(self, topic: str) -> bool:
        return self._matches is not None and self._matches(topic) is not None

    def entries(self, rows: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
        """The entries for those messages, given as keys and rows, whose topics are indexed."""
        entries: list[bytes] = []
        add, known = entries.append, self.known
        for key, row in rows:
            topic_end = _ROW_BYTES + row[TOPIC_BYTES_AT]
            topic = row[_ROW_BYTES:topic_end]
            if (indexed := known.get(topic)) is None:
                if len(known) >= _MAX_KNOWN:
                    known.clear()
                indexed = known[topic] = self.has(topic.decode())
            if not indexed:
                continue
            label_bytes = row[_LABELS_AT] << 8 | row[_LABELS_AT + 1]
            frame_at = int.from_bytes(row[2:6], "big")  # not where the labels end: notes may follow them
            if row[frame_at] != _NONE:
                start = frame_at + _HEAD_BYTES
                size = row[frame_at + 2] << 8 | row[frame_at + 3]  # a message key has less than 64 KiB
                add(blake2b(row[start : start + size], digest_size=HASH_BYTES).digest() + key)
            if label_bytes:
                for label in row[topic_end : topic_end + label_bytes].split(b"\n"):
                    add(label_hash(label) + key)
        return entries
