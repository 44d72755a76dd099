"""The frames that one cycle sends, in batches per topic and partition."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from duemq.bus.partitioner import partition_of
from duemq.delay.core.cycle import Due
from duemq.model.messages.key import make_key
from duemq.model.messages.record import Partition
from duemq.model.messages.row import ROW, TOPIC_BYTES_AT, frame_in, message_key_in

_OVERDUE_MS = 1_000  # tolerance: a message without delay is due some milliseconds before the log appends its command


class Outbox:
    """The batches of one cycle.

    All unkeyed messages of a cycle for one topic go to the same partition, because each partition in a transaction
    costs a broker a marker. `turn` selects the partition and changes with each cycle. `partitions` (topic -> number of
    partitions) must contain every topic. Unkeyed messages and all dead letters avoid partitions that accept nothing
    now (`closed`, by topic).
    """

    def __init__(
        self, turn: int, partitions: Mapping[str, int], closed: Mapping[str, Collection[int]] | None = None
    ) -> None:
        self.batches: dict[Partition, list[bytes]] = {}
        self.keys: dict[str, list[bytes]] = {}  # topic -> keys of its messages, for their lateness
        self.first_rows: dict[str, bytes] = {}  # topic -> row of its first message in the order of delivery
        self.overdue: dict[str, int] = {}  # topic -> messages that were overdue when their commands were accepted
        self._turn, self._partitions, self._closed = turn, partitions, closed or {}
        self._open: dict[bytes, tuple[int, list[bytes], list[bytes]]] = {}

    def add(self, due: Sequence[Due], topics: Collection[bytes]) -> None:
        """Append messages in the given order; `topics` are the topics of these messages."""
        if due and len(topics) == 1:  # a topic that refused all its messages is not in `partitions`
            (topic,) = topics
            partitions, batch, keys = self._topic_state(topic, due[0][1])
            if partitions == 1:
                keys += [key for key, _ in due]
                batch += [frame_in(row) for _, row in due]
                return
        topic_states, start = self._open, ROW.size
        for key, row in due:
            topic = row[start : start + row[TOPIC_BYTES_AT]]
            partitions, batch, keys = topic_states.get(topic) or self._topic_state(topic, row)
            keys.append(key)
            if partitions > 1 and (message_key := message_key_in(row)) is not None:
                batch = self._keyed(topic.decode(), message_key, partitions)
            batch.append(frame_in(row))

    def add_frame(self, topic: str, message_key: bytes | None, frame: bytes) -> None:
        """Append a record that is not a delivery, such as a dead letter.

        If the partition for its key accepts nothing, the record goes to another one: dead letters have no guaranteed
        order.
        """
        partitions, partition = self._partitions[topic], None
        if message_key is not None:
            partition = partition_of(message_key, partitions)
        if partition is None or partition in self._closed.get(topic, ()):
            partition = self._unkeyed(topic, partitions)
        self.batches.setdefault((topic, partition), []).append(frame)

    def count_from_acceptance(self, overdue: Mapping[bytes, tuple[int, int]], now: int) -> None:
        """Measure lateness from acceptance for messages that were due before their commands were accepted.

        `overdue`: see `Cycle.overdue`. `now`: epoch ms; the log's clock may be ahead of it.
        """
        for topic, keys in self.keys.items():
            late = [overdue[key] for key in keys if key in overdue]
            if late:
                self.overdue[topic] = sum(at - due >= _OVERDUE_MS for due, at in late)
                self.keys[topic] = [
                    make_key(min(overdue[key][1], now), 0, 0) if key in overdue else key for key in keys
                ]

    def _topic_state(self, topic: bytes, row: bytes) -> tuple[int, list[bytes], list[bytes]]:
        name = topic.decode()
        partitions = self._partitions[name]
        self.first_rows.setdefault(name, row)
        unkeyed = self.batches.setdefault((name, self._unkeyed(name, partitions)), [])
        topic_state = self._open[topic] = (partitions, unkeyed, self.keys.setdefault(name, []))
        return topic_state

    def _unkeyed(self, topic: str, partitions: int) -> int:
        closed = self._closed.get(topic)
        if not closed:
            return self._turn % partitions
        open_partitions = [number for number in range(partitions) if number not in closed]
        return open_partitions[self._turn % len(open_partitions)]

    def _keyed(self, topic: str, message_key: bytes, partitions: int) -> list[bytes]:
        return self.batches.setdefault((topic, partition_of(message_key, partitions)), [])
