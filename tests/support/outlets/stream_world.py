"""A relay, its log and a broker that drops repeats, as a game of steps. No sockets. Finds lost and repeated messages.

The code under test is `relay/rabbitmq/stream/producers.py` and its imports. The broker behaves like osiris: for each
producer name it knows the last publishing id, drops messages with an id that is not greater, and confirms them
nevertheless. The broker may read data from a connection long after that connection is lost here.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import cast

from duemq.relay.base import Reply, Result
from duemq.relay.rabbitmq.stream.connection import StreamConnection
from duemq.relay.rabbitmq.stream.producers import Producers

RECORDS = 8
PARTITION = ("orders", 0)
_LOST = Reply(Result.AWAY, "connection lost")


class Socket:
    """A connection: data that was written, and not read by the broker. `Producers` gets it as its connection."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.unread: deque[tuple[int, int, bytes]] = deque()
        self.confirms: deque[tuple[int, int]] = deque()

    def declare(self, publisher: int, name: str, stream: str) -> None:
        assert publisher not in self.names
        self.names[publisher] = name

    def publish(self, publisher: int, publishing_id: int, message: bytes) -> None:
        assert publisher in self.names
        self.unread.append((publisher, publishing_id, message))


class Broker:
    def __init__(self) -> None:
        self.stored: Counter[int] = Counter()  # by offset
        self._last: dict[str, int] = {}

    def read(self, socket: Socket) -> None:
        """Take the next message of a connection."""
        publisher, number, message = socket.unread.popleft()
        if (name := socket.names[publisher]) == "" or number > self._last.get(name, -1):
            self.stored[int(message)] += 1
            if name:
                self._last[name] = number
        socket.confirms.append((publisher, number))


class World:
    """`position`, `elsewhere`: the durable state; records in `elsewhere` are retries or dead letters."""

    def __init__(self, make: Callable[[], Producers]) -> None:
        self._make = make
        self.broker = Broker()
        self.position, self.elsewhere = 0, set[int]()
        self.unnumbered = set[int]()  # ever written without a publishing id
        self._former: list[Socket] = []  # lost here, and not by the broker
        self._begin()

    @property
    def unconfirmed_bytes(self) -> int:
        return self._producers.unconfirmed_bytes

    def _begin(self) -> None:
        """A relay starts."""
        self._producers = self._make()
        self._socket: Socket | None = None
        self._next = self.position
        self._in_hand: dict[int, asyncio.Future[Reply] | None] = {}  # pulled and not done
        self._failing: set[int] = set()  # to be written as retries or dead letters

    # --- steps --------------------------------------------------------------------------------------------------------

    def pull(self, count: int) -> None:
        offsets = list(range(self._next, min(self._next + count % 4 + 1, RECORDS)))
        start = min(self._in_hand, default=self._next)
        if offsets:
            self._producers.pulled(PARTITION, "log", offsets, start)
            self._in_hand |= dict.fromkeys(offsets)
            self._next = offsets[-1] + 1

    def send(self, which: int) -> None:
        """The handler of any record in hand begins: a key, a pause or a throttle may have held up the others."""
        resting = [offset for offset, answer in self._in_hand.items() if answer is None and offset not in self._failing]
        if not resting or self._socket is None:
            return
        offset = resting[which % len(resting)]
        if self._producers.stored_late(str(offset)):
            self._done(offset)
            return
        answer = self._producers.under_way(str(offset))
        if answer is None:
            answer = self._producers.write(PARTITION, offset, str(offset), b"%d" % offset)
            if answer is not None and not self._socket.names[self._socket.unread[-1][0]]:
                self.unnumbered.add(offset)
        self._in_hand[offset] = answer

    def stop_waiting(self, _: int) -> None:
        """The time for which records wait for the first one has passed."""
        for producer in self._producers.by_partition.values():
            producer.numbering.stop_waiting()

    def give_up(self, which: int) -> None:
        """A time-out, or a record that is rejected before it is written: its end is not durable yet."""
        able = [offset for offset in self._in_hand if offset not in self._failing]
        if able:
            offset = able[which % len(able)]
            if (answer := self._in_hand[offset]) is not None:
                answer.cancel()
            self._failing.add(offset)

    def send_back(self, which: int) -> None:
        """A message that is being sent back becomes durable."""
        if self._failing:
            offset = sorted(self._failing)[which % len(self._failing)]
            self._failing.discard(offset)
            self.elsewhere.add(offset)
            self._done(offset)

    def save(self, _: int) -> None:
        self.position = min(self._in_hand, default=self._next)

    def read(self, count: int) -> None:
        for _ in range(count + 1):
            if self._socket is not None and self._socket.unread:
                self.broker.read(self._socket)

    def read_former(self, which: int) -> None:
        """The broker reads a message more from a connection that is lost here."""
        unread = [socket for socket in self._former if socket.unread]
        if unread:
            self.broker.read(unread[which % len(unread)])

    def drop_former(self, which: int) -> None:
        """The broker notices the end of such a connection."""
        if self._former:
            self._former.pop(which % len(self._former))

    def confirm(self, count: int) -> None:
        for _ in range(count + 1):
            if self._socket is not None and self._socket.confirms:
                publisher, number = self._socket.confirms.popleft()
                self._producers.confirmed(publisher, [number])
        self._settle()

    def lose(self, _: int) -> None:
        if self._socket is not None:
            self._former.append(self._socket)
            self._socket = None
            self._producers.lost(_LOST)
            self._settle()

    def connect(self, _: int) -> None:
        if self._socket is None:
            self._socket = Socket()
            self._producers.connected(cast(StreamConnection, self._socket))

    def crash(self, _: int) -> None:
        """The relay dies, and starts."""
        if self._socket is not None:
            self._former.append(self._socket)
        self._begin()

    def move_away(self, _: int) -> None:
        """The partition moves to another relay and back: its messages in hand come again."""
        for answer in self._in_hand.values():
            if answer is not None:
                answer.cancel()
        self._in_hand.clear()
        self._failing.clear()
        self._next = self.position

    def finish(self) -> None:
        """All goes well from here."""
        self.lose(0)
        for socket in self._former:
            while socket.unread:
                self.broker.read(socket)
        for _ in range(4 * RECORDS):  # some wait for others
            self.connect(0)
            self.pull(3)
            for each in range(RECORDS):
                self.send_back(each)
            for _ in range(RECORDS):
                self.send(0)
            self.stop_waiting(0)
            self.read(RECORDS)
            self.confirm(RECORDS)
        self.save(0)

    def _settle(self) -> None:
        for offset, answer in list(self._in_hand.items()):
            if answer is not None and answer.done():
                self._in_hand[offset] = None
                if not answer.cancelled() and answer.result().result is Result.ACCEPTED:
                    self._done(offset)

    def _done(self, offset: int) -> None:
        self._failing.discard(offset)
        del self._in_hand[offset]
        self._producers.ended(PARTITION, offset)


_STEPS = (
    "pull", "send", "stop_waiting", "give_up", "send_back", "save", "read", "read_former", "drop_former", "confirm",
    "lose", "connect", "crash", "move_away", "pull", "send", "send", "send", "read", "confirm", "connect", "connect",
)  # fmt: skip
_LENGTH = 80


def steps_of(seed: int) -> list[tuple[str, int]]:
    """A game: steps, each with a number that chooses."""
    chance = random.Random(seed)
    return [(chance.choice(_STEPS), chance.randrange(RECORDS)) for _ in range(_LENGTH)]


def play(steps: Sequence[tuple[str, int]], make: Callable[[], Producers]) -> None:
    """Raises AssertionError if a record is lost, or stored twice without need."""
    asyncio.run(_play(steps, make))


async def _play(steps: Sequence[tuple[str, int]], make: Callable[[], Producers]) -> None:
    world = World(make)
    for name, number in steps:
        getattr(world, name)(number)
    world.finish()
    assert world.position == RECORDS, "all are done"
    assert world.unconfirmed_bytes == 0, "all are confirmed"
    for offset in range(RECORDS):
        assert world.broker.stored[offset] or offset in world.elsewhere, f"{offset} is lost"
        assert world.broker.stored[offset] <= 1 or offset in world.unnumbered, f"{offset} is stored twice"
