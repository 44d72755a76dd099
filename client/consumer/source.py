"""Where messages come from and where offsets are kept: a group of Kafka's, or all partitions and a file."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError, NoOffsetForPartitionError
from aiokafka.errors import OffsetOutOfRangeError as OutOfRange
from aiokafka.structs import TopicPartition

from duemq.bus.kafka.client import mend_timeouts
from duemq.client.consumer.offsets import FileOffsets
from duemq.client.consumer.options import ConsumerOptions
from duemq.client.consumer.positions import metadata_of
from duemq.client.consumer.topics import partitions_of
from duemq.client.instants import to_ms

log = logging.getLogger(__name__)

_LOOK_S = 30.0  # between looks for new partitions of topics that all members have
_STOP_S = 10.0
_ASK_S = 2.0


class Place(NamedTuple):
    """`commit`: the first message that is not done; `pull`: the next to be fetched."""

    commit: int
    pull: int


class Changes(ConsumerRebalanceListener):  # type: ignore[misc]
    """Tells the consumer which partitions it has.

    aiokafka's `assignment()` and `position()` go on giving the old ones until new ones are known, and Kafka takes
    commits for them meanwhile: whoever uses those has to look at `turn` before and after.
    """

    def __init__(
        self,
        gained: Callable[[Collection[TopicPartition]], Awaitable[None]],
        lost: Callable[[Collection[TopicPartition]], Awaitable[None]],
    ) -> None:
        self._gained, self._lost = gained, lost
        self.turn = 0
        """How often partitions came or went."""
        self.moving = False
        """They went, and it is not known yet which will come."""

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self.turn, self.moving = self.turn + 1, True
        await self._lost(revoked)

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self.turn, self.moving = self.turn + 1, False
        await self._gained(assigned)


class Source:
    """One aiokafka consumer. `first`: topics that begin at their first message whatever the options say."""

    def __init__(
        self,
        group: str,
        bootstrap: str,
        options: ConsumerOptions,
        topics: Sequence[str],
        first: Collection[str],
        changes: Changes,
        assignor: type | None = None,
    ) -> None:
        self._bootstrap, self._options, self._topics = bootstrap, options, topics
        self._first, self._changes = first, changes
        session_ms, stop_ms = int(options.session_s * 1000), int(options.stop_s * 1000)
        settings: dict[str, Any] = {
            "session_timeout_ms": session_ms,
            "heartbeat_interval_ms": max(session_ms // 10, 100),
            "rebalance_timeout_ms": session_ms + stop_ms,  # handlers may take their time while partitions move
            **options.kafka,
        }
        if assignor is not None:
            settings["partition_assignment_strategy"] = (assignor,)
        self._kafka = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None if options.broadcasting else group,
            client_id=f"duemq-{options.name}",
            enable_auto_commit=False,
            auto_offset_reset="none",  # anything else would skip messages without a word
            isolation_level="read_committed",
            **settings,
        )
        mend_timeouts(self._kafka._client)
        self._file: FileOffsets | None = None
        self._looking: asyncio.Task[None] | None = None
        self._held: frozenset[TopicPartition] = frozenset()
        if options.broadcasting:
            folder = Path(options.offsets_folder or Path.home() / ".duemq" / "offsets")
            self._file = FileOffsets(folder, group, options.name)

    async def start(self) -> None:
        if self._file is None:
            self._kafka.subscribe(self._topics, listener=self._changes)
            await self._kafka.start()
            return
        await self._kafka.start()
        await self._take_all(await asyncio.to_thread(self._file.load))
        self._looking = asyncio.create_task(self._look(), name="partitions")

    async def pull(self, timeout_ms: int, most: int) -> dict[TopicPartition, list[Any]]:
        """Up to `most` records. Where there is no offset yet, or what it points to is gone, nothing comes this time."""
        try:
            wanted = self._kafka.assignment() - self._held if self._held else ()
            pulled: dict[TopicPartition, list[Any]] = await self._kafka.getmany(
                *wanted, timeout_ms=timeout_ms, max_records=most
            )
        except NoOffsetForPartitionError as error:
            for partition in error.args:
                with suppress(IllegalStateError):  # it went to another member meanwhile
                    await self._begin(partition)
            return {}
        except OutOfRange as error:
            await self._past(error.args[0])
            return {}
        return pulled

    def hold(self, partitions: Collection[TopicPartition]) -> None:
        """Pull nothing of these, and of all others again. What is fetched of them already is kept: aiokafka would throw
        it away if they were paused."""
        self._held = frozenset(partitions)

    async def idle(self) -> None:
        """Say that we are there, without fetching: a member that is silent for minutes is taken out of its group."""
        partitions = self._kafka.assignment() - self._kafka.paused()
        self._kafka.pause(*partitions)
        try:
            await self._kafka.getmany(timeout_ms=0)
        finally:
            self._kafka.resume(*(partitions & self._kafka.assignment()))

    def partitions(self) -> frozenset[TopicPartition]:
        """Those this member has: none while they move."""
        return frozenset() if self._changes.moving else frozenset(self._kafka.assignment())

    async def position(self, partition: TopicPartition) -> int | None:
        """Where the next fetch starts, past markers of transactions; None where that is not known just now, and where
        the partition is not this member's, or went away and came back meanwhile."""
        turn = self._changes.turn
        with suppress(TimeoutError, KafkaError):
            async with asyncio.timeout(_ASK_S):
                position: int = await self._kafka.position(partition)
                return position if turn == self._changes.turn and partition in self.partitions() else None
        return None

    async def save(self, places: Mapping[TopicPartition, Place]) -> bool:
        """Durable when it returns True. False where the partitions are another member's by now, or Kafka is away."""
        if self._file is not None:
            await asyncio.to_thread(self._file.save, {each: place.commit for each, place in places.items()})
            return True
        try:
            await self._kafka.commit({each: (place.commit, metadata_of(place.pull)) for each, place in places.items()})
        except (CommitFailedError, IllegalStateError) as error:
            log.info(
                "consumer does not commit, for its partitions went to others: %s", error, extra={"action": "commit"}
            )
            return False
        except KafkaError as error:
            log.warning("consumer cannot commit, and will again: %r", error, extra={"action": "commit"})
            return False
        return True

    async def let_go(self) -> None:
        """As if all partitions went to other members."""
        await self._changes.on_partitions_revoked(self._kafka.assignment())

    async def stop(self) -> None:
        """Leave the group."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        with suppress(TimeoutError, KafkaError):
            async with asyncio.timeout(_STOP_S):
                await self._kafka.stop()

    # --- where a partition begins ---------------------------------------------------------------------------------

    async def _begin(self, partition: TopicPartition) -> None:
        if self._file is None and await self._kafka.committed(partition) is not None:
            return  # aiokafka may tell what it found before partitions moved
        start = "first" if partition.topic in self._first else self._options.start
        if start == "first":
            await self._kafka.seek_to_beginning(partition)
        elif start == "last":
            await self._kafka.seek_to_end(partition)
        else:
            since = to_ms(start) if isinstance(start, datetime) else int(start)
            found = (await self._kafka.offsets_for_times({partition: since}))[partition]
            if found is None:
                await self._kafka.seek_to_end(partition)
            else:
                self._kafka.seek(partition, found.offset)
        log.info("consumer begins with %s at %s", _named(partition), start, extra={"action": "begin"})

    async def _past(self, lost: Mapping[TopicPartition, int]) -> None:
        """Retention removed what was to come next."""
        firsts = await self._kafka.beginning_offsets(list(lost))
        for partition, offset in lost.items():
            first = firsts[partition]
            log.error(
                "consumer of %s was at offset %d, and the log begins at %d now: what was between is lost",
                _named(partition), offset, first, extra={"action": "out of range"},
            )  # fmt: skip
            self._kafka.seek(partition, first)

    # --- broadcasting ---------------------------------------------------------------------------------------------

    async def _take_all(self, stored: Mapping[TopicPartition, int]) -> None:
        partitions = await partitions_of(self._bootstrap, self._options, self._topics)
        fresh = partitions - self._kafka.assignment()
        if not fresh:
            return
        positions = {each: await self._kafka.position(each) for each in self._kafka.assignment()}
        self._kafka.assign(sorted(partitions))
        for partition in sorted(partitions):
            if (offset := positions.get(partition, stored.get(partition))) is not None:
                self._kafka.seek(partition, offset)
            else:
                await self._begin(partition)
        await self._changes.on_partitions_assigned(fresh)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                await self._take_all({})
            except KafkaError as error:
                log.warning("consumer cannot look for new partitions: %r", error, extra={"action": "partitions"})


def _named(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"
