"""What one cycle sends: frames, in batches per topic and partition."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from duemq.bus.partitioner import partition_of
from duemq.delay.core.cycle import Due
from duemq.model.messages.key import make_key
from duemq.model.messages.record import Partition
from duemq.model.messages.row import ROW, TOPIC_BYTES_AT, frame_in, message_key_in

_OVERDUE_MS = 1_000  # a message without delay is due some milliseconds before its log takes it


class Outbox:
    """The batches of one cycle.

    The unkeyed messages of a cycle all go to one partition per topic, which rotates with `turn`, because each partition
    in a transaction costs a broker a marker. Every topic must be in `partitions` (topic -> how many it has). Unkeyed
    messages avoid partitions that take nothing just now (`closed`, by topic), and dead letters do, whatever their key.
    """

    def __init__(
        self, turn: int, partitions: Mapping[str, int], closed: Mapping[str, Collection[int]] | None = None
    ) -> None:
        self.batches: dict[Partition, list[bytes]] = {}
        self.keys: dict[str, list[bytes]] = {}  # per topic, for the lateness of what was sent
        self.first_rows: dict[str, bytes] = {}  # per topic, of the message that was due first
        self.overdue: dict[str, int] = {}  # per topic, messages that were overdue when their commands were accepted
        self._turn, self._partitions, self._closed = turn, partitions, closed or {}
        self._open: dict[bytes, tuple[int, list[bytes], list[bytes]]] = {}

    def add(self, due: Sequence[Due], topics: Collection[bytes]) -> None:
        """Append messages in the order given; `topics` are the topics they have."""
        if due and len(topics) == 1:  # a topic that refused all of its messages has no place in `partitions`
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
        """Append a record that is no delivery, such as a dead letter.

        If the partition of its key takes nothing, it goes to another one: no order is promised among dead letters.
        """
        partitions, partition = self._partitions[topic], None
        if message_key is not None:
            partition = partition_of(message_key, partitions)
        if partition is None or partition in self._closed.get(topic, ()):
            partition = self._unkeyed(topic, partitions)
        self.batches.setdefault((topic, partition), []).append(frame)

    def count_from_acceptance(self, overdue: Mapping[bytes, tuple[int, int]], now: int) -> None:
        """Have the lateness of messages that were due before their commands were accepted count from then on.

        `overdue`: see `Cycle.overdue`. `now`: epoch ms; the clock of the log may be ahead of it.
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
