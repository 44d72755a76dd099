"""The embedded log's topics and partitions in memory; they are loaded when the log is opened."""

from __future__ import annotations

from dataclasses import dataclass

from rocksdict import Rdict

from duemq.bus.base import TopicInfo
from duemq.bus.embedded import layout
from duemq.bus.embedded.chunk import read_head
from duemq.bus.embedded.layout import PartitionStart
from duemq.bus.embedded.tail import RecentChunks
from duemq.model.errors import CorruptStore


class LogPartition:
    """One partition. Its durable frames have the offsets from `start` to before `end`.

    `cut`: the log has no chunks below this offset (the trimmed part of a chunk lies between `cut` and `start`).
    `assigned`: the next offset to assign; offsets from `end` on are not durable yet. `position`: the total size of all
    durable frames ever appended. `gaps`: ranges of offsets that are never used, as (first offset, end), in order.
    """

    __slots__ = (
        "assigned",
        "cut",
        "end",
        "gaps",
        "gaps_key",
        "name",
        "number",
        "position",
        "prefix",
        "start",
        "start_key",
        "tail",
    )

    def __init__(
        self, topic: str, topic_number: int, number: int, start: PartitionStart, gaps: tuple[tuple[int, int], ...] = ()
    ) -> None:
        self.name = (topic, number)
        self.number = number
        self.prefix = layout.record_prefix(topic_number, number)
        self.start_key, self.gaps_key = layout.start_key(topic_number, number), layout.gaps_key(topic_number, number)
        self.start, self.cut = start, 0
        self.gaps = gaps
        self.position = start.position
        self.end = self.assigned = self.skip(start.offset)
        self.tail = RecentChunks(self.end)

    def key(self, offset: int) -> bytes:
        return self.prefix + offset.to_bytes(8, "big")

    def skip(self, offset: int) -> int:
        """The same offset, or, if it is in a gap, the end of that gap."""
        return next((end for first, end in self.gaps if first <= offset < end), offset) if self.gaps else offset


@dataclass(frozen=True)
class LogTopic:
    name: str
    number: int
    partitions: tuple[LogPartition, ...]

    def info(self) -> TopicInfo:
        return TopicInfo(
            self.name,
            len(self.partitions),
            tuple(partition.start.offset for partition in self.partitions),
            tuple(partition.end for partition in self.partitions),
        )


def new_topic(name: str, number: int, partitions: int) -> LogTopic:
    return LogTopic(name, number, tuple(LogPartition(name, number, at, PartitionStart()) for at in range(partitions)))


def load_topics(db: Rdict) -> tuple[dict[str, LogTopic], int]:
    """All topics, with their ends taken from each partition's last chunk, and the latest timestamp. Raises
    CorruptStore."""
    topics: dict[str, LogTopic] = {}
    latest = 0
    rows = db.iter()
    rows.seek(b"t")
    while rows.valid() and (key := rows.key()).startswith(b"t"):
        name = key[1:].decode()
        number, count, _ = layout.TOPIC.unpack(rows.value())
        partitions = []
        for at in range(count):
            partition, timestamp = _load_partition(db, name, number, at)
            partitions.append(partition)
            latest = max(latest, timestamp)
        topics[name] = LogTopic(name, number, tuple(partitions))
        rows.next()
    rows.status()
    return topics, latest


def _load_partition(db: Rdict, topic: str, topic_number: int, at: int) -> tuple[LogPartition, int]:
    row = db.get(layout.start_key(topic_number, at))
    start = PartitionStart() if row is None else PartitionStart(*layout.START.unpack(row))
    gaps = tuple(layout.GAP.iter_unpack(db.get(layout.gaps_key(topic_number, at)) or b""))
    partition = LogPartition(topic, topic_number, at, start, gaps)
    rows = db.iter()
    rows.seek_for_prev(partition.key(2**64 - 1))
    rows.status()
    if not rows.valid() or not (key := rows.key()).startswith(partition.prefix):
        return partition, start.timestamp
    first, value = int.from_bytes(key[-8:], "big"), rows.value()
    try:
        head = read_head(value)
    except ValueError as error:
        raise CorruptStore(f"topic {topic!r}, partition {at}, offset {first}: {error}") from error
    partition.end = partition.assigned = partition.skip(first + head.frames)
    partition.position = head.position + head.size
    partition.tail = RecentChunks(partition.end)
    return partition, max(start.timestamp, head.timestamp)
