"""The rows of the embedded log in RocksDB, one byte of prefix per kind. All numbers in keys are big-endian.

    'r' topic number (u32) partition (u16) first offset (u64) -> chunk, see `bus/embedded/chunk.py`
    's' topic number (u32) partition (u16)                    -> start offset, last timestamp, position (u64 each)
    't' topic name                                            -> topic number (u32), partitions (u16), created ms (u64)
    'e' committer name                                        -> epoch (u64)
    'c' topic name \\0 cursor name (model/messages/names.py)  -> cursor
    'g' topic number (u32) partition (u16)                    -> gaps: first offset, end (u64 each), one after another
    'v'                                                       -> version of this layout (u16)

Version 1 has no gaps, and no separate cursor names for destinations. To change the layout, increase `VERSION` and make
`bus/embedded/rocksdb_log.py` convert older folders.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from duemq.model.messages.names import CursorName

VERSION = 2
FORMER_GROUPS = "destination."  # in layout 1, destinations' cursors had names that clients could use, too
VERSION_KEY = b"v"

TOPIC = Struct(">IHQ")
START = Struct(">QQQ")
NUMBER = Struct(">Q")
GAP = Struct(">QQ")
UNUSED = 1 << 40
"""How many offsets a gap has: more than a log assigns between two restores."""

_PARTITION_KEY = Struct(">cIH")
MAX_PARTITIONS = 0xFFFF


class PartitionStart(NamedTuple):
    """The first offset of a trimmed partition, and the time (epoch ms) and position to continue from if no chunk is
    left."""

    offset: int = 0
    timestamp: int = 0
    position: int = 0


def record_prefix(topic: int, partition: int) -> bytes:
    return _PARTITION_KEY.pack(b"r", topic, partition)


def start_key(topic: int, partition: int) -> bytes:
    return _PARTITION_KEY.pack(b"s", topic, partition)


def gaps_key(topic: int, partition: int) -> bytes:
    return _PARTITION_KEY.pack(b"g", topic, partition)


def topic_key(name: str) -> bytes:
    return b"t" + name.encode()


def epoch_key(committer: str) -> bytes:
    return b"e" + committer.encode()


CURSORS = b"c"


def cursors_of(topic: str) -> bytes:
    """The key prefix of a topic's cursors."""
    return CURSORS + topic.encode() + b"\0"


def cursor_key(topic: str, name: CursorName) -> bytes:
    return cursors_of(topic) + name.encode()


def read_cursor_key(key: bytes) -> tuple[str, str]:
    """The topic and the cursor's name in a key."""
    topic, _, name = key.removeprefix(CURSORS).decode().partition("\0")
    return topic, name
