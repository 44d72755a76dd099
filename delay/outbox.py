"""From due rows to the frames that consumers get.

A delivered frame begins with `duemq-id`, `duemq-due` and `duemq-attempt`, then come the labels (if any) and the
sender's own headers, packed as they came: nothing of the message is taken apart on the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from duemq.bus.base import Partition
from duemq.delay.rules import Due
from duemq.model.ids import IdCodec
from duemq.model.key import due_of, read_key
from duemq.model.message import ENVELOPE, NO_KEY, PLAIN_ROW, ROW, Draft, first_key_of, read_row, shown_due_of
from duemq.model.record import HEAD, HEADER, frame_of, pack_headers

_ENVELOPE_AT = ROW.size
_SIZE_OF_DUE = 13  # decimal digits of an epoch ms between 2001 and 2286


def _named(name: str, value_bytes: int) -> bytes:
    return HEADER.pack(len(name), value_bytes) + name.encode()


# The system headers of a first delivery: fixed layout, so that one format call makes them.
_FIRST = _named("duemq-id", 32) + b"%b" + _named("duemq-due", _SIZE_OF_DUE) + b"%d" + _named("duemq-attempt", 1) + b"1"
_FIRST_BYTES = len(_FIRST % (b"i" * 32, 10**12))


class Outbox:
    """The batches of one cycle, per topic and partition."""

    def __init__(self, ids: IdCodec, shard: int, cycle: int, partitions: Mapping[str, int]) -> None:
        self.batches: dict[Partition, list[bytes]] = {}
        self.dues: dict[str, list[int]] = {}  # per topic, for the lateness of what was sent
        self._ids, self._shard, self._cycle, self._partitions = ids, shard, cycle, partitions
        self._open: dict[bytes, tuple[int, list[bytes], list[int]]] = {}

    def add(self, due: Sequence[Due]) -> None:
        """Append messages in the order given. Every topic must be in `partitions`."""
        issue, shard = self._ids.issue_bytes, self._shard
        unpack = ENVELOPE.unpack_from
        for key, row in due:
            if row[:3] != PLAIN_ROW:
                self._add_other(key, row)
                continue
            due_ms, offset, number = read_key(key)
            fields = unpack(row, _ENVELOPE_AT)
            topic_end = _ENVELOPE_AT + ENVELOPE.size + fields[5]
            if fields[7] or not 10**12 <= due_ms < 10**13:  # labels, or a year with another number of digits
                self._add_other(key, row)
                continue
            system = _FIRST % (issue(shard, due_ms, offset, number), due_ms)
            count, batch, dues = self._target(row[_ENVELOPE_AT + ENVELOPE.size : topic_end])
            dues.append(due_ms)
            payload = row[_ENVELOPE_AT + fields[2] :]
            if fields[6] == NO_KEY:
                headers = row[topic_end : topic_end + fields[10]] if fields[10] else b""
                head = HEAD.pack(-1, fields[9] + 3, _FIRST_BYTES + fields[10])
                batch.append(b"".join((head, system, headers, payload)))
                continue
            key_end = topic_end + fields[6]
            message_key = row[topic_end:key_end]
            if count > 1:
                batch = self._keyed(row[_ENVELOPE_AT + ENVELOPE.size : topic_end], message_key, count)
            headers = row[key_end : key_end + fields[10]]
            head = HEAD.pack(fields[6], fields[9] + 3, _FIRST_BYTES + fields[10])
            batch.append(b"".join((head, message_key, system, headers, payload)))

    def _add_other(self, key: bytes, row: bytes) -> None:
        """The general case: moved or tried before, labelled, or due in a far century."""
        topic, message_key, frame = self._general(key, row, ())
        self.add_frame(topic, message_key, frame)
        self.dues[topic].append(due_of(key))

    def add_dead(self, due: Due, dead_letter_topic: str, reason: str) -> None:
        """A message that ends in the dead letters, with its target and the reason in headers."""
        _, message_key, frame = self._general(*due, (("duemq-reason", reason.encode()),))
        self.add_frame(dead_letter_topic, message_key, frame)

    def add_frame(self, topic: str, message_key: bytes | None, frame: bytes) -> None:
        count, batch, _ = self._target(topic.encode())
        if message_key is not None and count > 1:
            batch = self._keyed(topic.encode(), message_key, count)
        batch.append(frame)

    def _general(self, key: bytes, raw: bytes, more: tuple[tuple[str, bytes], ...]) -> tuple[str, bytes | None, bytes]:
        row = read_row(key, raw)
        id_ = self._ids.issue_bytes(self._shard, *read_key(first_key_of(key, raw)))
        system: list[tuple[str, bytes]] = [
            ("duemq-id", id_),
            ("duemq-due", b"%d" % shown_due_of(key, raw)),
            ("duemq-attempt", b"%d" % (row.attempt + 1)),
        ]
        if more:
            system.append(("duemq-topic", row.topic.encode()))
            system += more
        if row.labels:
            system.append(("duemq-labels", ",".join(row.labels).encode()))
        count, packed = pack_headers(system)
        return row.topic, row.key, frame_of(row.key, count + row.header_count, packed + row.headers, row.payload)

    def _target(self, topic: bytes) -> tuple[int, list[bytes], list[int]]:
        """Partitions of a topic, and the batch its unkeyed messages of this cycle all go to."""
        found = self._open.get(topic)
        if found is None:
            name = topic.decode()
            count = self._partitions[name]
            found = self._open[topic] = (
                count,
                self.batches.setdefault((name, (self._shard + self._cycle) % count), []),
                self.dues.setdefault(name, []),
            )
        return found

    def _keyed(self, topic: bytes, message_key: bytes, count: int) -> list[bytes]:
        return self.batches.setdefault((topic.decode(), partition_of(message_key, count)), [])


def direct_frame(draft: Draft, id_: bytes, at: int) -> bytes:
    """The frame of a message without delay, which goes to its target at once."""
    system: list[tuple[str, bytes]] = [("duemq-id", id_), ("duemq-due", b"%d" % at), ("duemq-attempt", b"1")]
    if draft.labels:
        system.append(("duemq-labels", ",".join(draft.labels).encode()))
    count, packed = pack_headers(system)
    return frame_of(draft.key, count + draft.header_count, packed + draft.headers, draft.payload)


@lru_cache(maxsize=65_536)
def partition_of(key: bytes, partitions: int) -> int:
    """The partition Java's default partitioner chooses for a key: murmur2, made positive, modulo."""
    return (_murmur2(key) & 0x7FFF_FFFF) % partitions


def _murmur2(data: bytes) -> int:
    """MurmurHash2, 32 bits, with Kafka's seed (org.apache.kafka.common.utils.Utils.murmur2)."""
    m, mask = 0x5BD1E995, 0xFFFF_FFFF
    h = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    if rest := data[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15
