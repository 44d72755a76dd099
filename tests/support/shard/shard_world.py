"""A shard under virtual time: several nodes with real stores, one log in memory, and a watching oracle."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import orjson
from prometheus_client import CollectorRegistry

from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.cluster.shards.progress import Progress
from duemq.cluster.topics.internal_topics import BUFFER, INTERNAL, LEDGER, committer_name
from duemq.cluster.topics.topic_states import TopicStates
from duemq.delay.core.limits import CycleLimits
from duemq.delay.imports.file_importer import FileImporter
from duemq.delay.indexing.index_worker import IndexWorker
from duemq.delay.metrics import Observer
from duemq.delay.replica.replica import Replica, Tiers
from duemq.delay.shard.master import Master
from duemq.delay.tiering.tiering import TieringWorker
from duemq.delay.tiering.tiering_policy import TieringPolicy
from duemq.model.log.ledger import Entry, FileDecision
from duemq.model.messages import row_notes
from duemq.model.messages.ended import CANCELLED as ENDED_CANCELLED
from duemq.model.messages.ended import EndedMessage
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.import_command import import_frame
from duemq.model.messages.key import HIGHEST, KEY_BYTES, due_of, offset_of
from duemq.model.messages.message import CANCEL, Change, Draft, change_frame, schedule_frame
from duemq.model.messages.record import Partition, StoredRecord, pack_record, unpack_record
from duemq.model.messages.row import count_topics, expires_of, first_key_of, read_row
from duemq.model.messages.row_notes import MAX_ATTEMPTS, ChangeHistory, PastChange, notes_of
from duemq.storage.imports.import_process import intake
from duemq.storage.imports.policy import ImportPolicy
from duemq.storage.jobs.jobs import ImportJob, TieringJob, encode, import_job, tiering_job
from duemq.storage.keyspace import (
    APPLIED,
    CONTENT,
    CURSOR,
    ENDED,
    ENDED_IN,
    IMPORT,
    LAST_END,
    MOVED,
    NAME,
    NAME_DUE,
    ROW,
    WINDOW,
)
from duemq.storage.rocksdb import Memory
from duemq.storage.shard.records import LocalFile
from duemq.storage.shard.store import ShardStore
from duemq.storage.tiering.tiering_process import perform
from tests.support.shard.shard_oracle import (
    CANCELLED,
    DEAD,
    DELIVERED,
    PURGED,
    Command,
    Handed,
    Message,
    Oracle,
    Plain,
)

START = 1_700_000_000_000
SHARD = 0
KINDS = (ROW, ENDED, ENDED_IN, LAST_END, MOVED, NAME, NAME_DUE, CURSOR, APPLIED, WINDOW, IMPORT, CONTENT)


class NodeBus(MemoryBus):
    """One node's view of the log; it may be behind the ledger's end."""

    ledger_end: int | None = None

    async def read(
        self, topic: str, partition: int, offset: int, max_records: int, max_bytes: int = 8 << 20
    ) -> list[StoredRecord]:
        records = await super().read(topic, partition, offset, max_records, max_bytes)
        if topic == LEDGER and self.ledger_end is not None:
            return [record for record in records if record.offset < self.ledger_end]
        return records


class Taking(FileImporter):
    """Takes files in when they are needed, in this process."""

    def __init__(self, node: SimNode) -> None:
        self._node, world = node, node.world
        policy = ImportPolicy((world.shared,))
        super().__init__(SHARD, node.replica, policy, lambda: world.now, asyncio.Lock(), self._take_in)

    async def _take_in(self, job: ImportJob) -> AsyncGenerator[bytes, None]:
        answers: list[bytes] = []
        said = import_job(orjson.loads(encode(job)))
        intake(said, lambda answer: answers.append(encode(answer)), self._node.import_step)
        for answer in answers:
            yield answer

    async def have(self, decision: FileDecision) -> None:
        while not isinstance(self.outcomes.get(decision.offset), LocalFile):
            self._rechecks = [(0, offset) for offset in self._pending_records()]
            assert await self.step()
        await super().have(decision)


class Killed(BaseException):
    """The node dies here; nothing translates that into a failing disk."""


@dataclass
class NodeContext:
    topic_states: TopicStates
    observer: Observer
    clock: Callable[[], int]
    short: Callable[[], bool] = lambda: False

    def short_of_space(self, shard: int) -> bool:
        return self.short()


class SimNode:
    """A replica of the shard that can be killed, and that can be its master."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.fault: str | None = None  # the step of the next write to the log that fails
        self.import_fault: str | None = None  # the step of taking a file in at which it is killed
        self.tiering_fault: str | int | None = (
            None  # the step of sealing or loading at which the node is killed, or which
        )
        self.master: Master | None = None
        self.following = False
        self.counts_lost = False  # whether messages were to be counted by topic again
        self._lives = count()
        self.path = world.folder / name / str(next(self._lives))
        self.open()

    def open(self) -> None:
        self.bus = NodeBus(self.world.log, failpoint=self._step)
        self.store = ShardStore(self.path, self.world.memory, self.world.ids)
        # Files change at flushes only, so that a copy of the folder is what a killed process would leave.
        self.store.db.set_options({"disable_auto_compactions": "true"})
        self.replica = Replica(SHARD, self.store, self.world.ids)
        self.importer = Taking(self)
        self.delay_files = self.keeper()
        self.store.index.switch(self.world.indexed, self.replica.entry)
        self.indexer = IndexWorker(SHARD, self.replica)

    def keeper(self) -> TieringWorker:
        """Of the world's policy as it is now."""
        world, turn, rest = self.world, asyncio.Lock(), asyncio.Lock()
        return TieringWorker(
            SHARD,
            self.replica,
            rest,
            world.delay_files,
            lambda: world.now,
            turn,
            self._tiering_step,
            self._work,
        )

    async def _load(self) -> None:
        assert await self.delay_files.step()

    async def _work(self, job: TieringJob) -> list[Any]:
        """What `tiering_process.py` does, without the process, and other things going on before and after."""
        if self.world.meanwhile is not None:
            await self.world.meanwhile(self)
        answers = perform(tiering_job(orjson.loads(encode(job))))
        done = [orjson.loads(encode(answer)) for answer in answers]
        if self.world.meanwhile is not None:
            await self.world.meanwhile(self)
        return done

    def _tiering_step(self, name: str) -> None:
        if isinstance(self.tiering_fault, int):
            self.tiering_fault -= 1
        if self.tiering_fault in (name, 0):
            self.tiering_fault = None
            raise Killed(name)

    def import_step(self, name: str) -> None:
        if name == self.import_fault:
            self.import_fault = None
            raise Killed(name)

    def _step(self, name: str) -> None:
        if name == self.fault:
            self.fault = None
            raise OSError(f"injected {name}")

    def kill(self) -> None:
        """Like kill -9 and a restart: unflushed data is lost (close would flush it, so a copy lives on)."""
        self.master, self.fault, self.following = None, None, False
        self.tiering_fault, self.import_fault = None, None
        dead = self.path
        self.path = self.path.parent / str(next(self._lives))
        shutil.copytree(dead, self.path)
        self.store.close()
        shutil.rmtree(dead)
        self.open()

    async def follow(self, ledger_end: int | None = None) -> None:
        self.bus.ledger_end, self.following = ledger_end, True
        await self.replica.follow(self.bus, Tiers(self._load, self.importer))
        self.bus.ledger_end, self.following = None, False

    async def promote(self) -> None:
        committer = await self.bus.committer(committer_name(SHARD))
        await self.follow()
        world = self.world
        self.topic_states = TopicStates(self.bus, 0)
        context = NodeContext(self.topic_states, world.observer, lambda: world.now, lambda: world.short)
        self.master = Master(self.replica, self.bus, committer, context, world.cycle_limits, Progress(), self.importer)

    def contents(self) -> dict[bytes, list[tuple[bytes, Any]]]:
        return {
            kind: [(key, _cancelled(value) if kind == ENDED else value) for key, value in self.store.each(kind)]
            for kind in KINDS
        }


@dataclass
class World:
    folder: Path
    cycle_limits: CycleLimits
    topics: dict[str, int]  # topics that exist, with their partitions
    now: int = START
    ids: IdCodec = field(default_factory=lambda: IdCodec(b"s" * 32))
    memory: Memory = field(default_factory=lambda: Memory(1 << 20, 4 << 20))
    nodes: list[SimNode] = field(default_factory=list)
    delay_files: TieringPolicy = field(default_factory=TieringPolicy)
    indexed: tuple[str, ...] = ()  # topics whose messages are indexed
    short = False  # whether the disks are short of space
    meanwhile: Callable[[SimNode], Awaitable[None]] | None = None  # what happens while a window is sealed or loaded

    async def start(self, nodes: int) -> None:
        self.log = MemoryLog(lambda: self.now)
        self.observer = Observer(CollectorRegistry())
        self.oracle = Oracle(self.ids, SHARD, self.cycle_limits, self.topics)
        self.producer = MemoryBus(self.log)
        for topic in sorted(INTERNAL):
            await self.producer.create_topic(topic, 1)
        for topic, partitions in self.topics.items():
            await self.producer.create_topic(topic, partitions)
        self._seen: dict[Partition, int] = {}
        self.nodes = [SimNode(self, f"node{number}") for number in range(nodes)]

    @property
    def shared(self) -> Path:
        """Where files to import are."""
        return self.folder / "shared"

    async def add_topic(self, topic: str, partitions: int) -> None:
        await self.producer.create_topic(topic, partitions)
        self.topics[topic] = partitions

    def close(self) -> None:
        for node in self.nodes:
            node.store.close()

    async def produce(self, commands: Sequence[Command]) -> None:
        landed = await self.producer.append({(BUFFER, SHARD): [_frame(command) for command in commands]})
        at = landed[BUFFER, SHARD].timestamp
        assert landed[BUFFER, SHARD].first_offset == len(self.oracle.commands)
        self.oracle.commands += [(command, at) for command in commands]

    async def produce_unseen(self, commands: Sequence[Command]) -> None:
        """For worlds that are not compared with the oracle."""
        await self.producer.append({(BUFFER, SHARD): [_frame(command) for command in commands]})

    def observe(self) -> bool:
        """Show the oracle the commits since the last call; True if there were any."""
        grown: dict[Partition, list[StoredRecord]] = {}
        for topic, partitions in self.log.topics.items():
            for number, partition in enumerate(partitions):
                seen = self._seen.get((topic, number), 0)
                if partition.end > seen and topic != BUFFER:
                    grown[topic, number] = partition.frames[seen - partition.start :]
                    self._seen[topic, number] = partition.end
        entries = [Entry.decode(unpack_record(frame).payload) for _, _, frame in grown.pop((LEDGER, SHARD), [])]
        if not entries:
            assert not grown, "records at the topics without an entry in the ledger"
            return False
        (entry,) = entries
        sent = {where: [unpack_record(frame) for _, _, frame in records] for where, records in grown.items()}
        self.oracle.committed(entry, self.now, sent)
        return True

    async def tick(self, node: SimNode) -> float:
        """One tick of a master that should succeed."""
        assert node.master is not None
        pause = await node.master.tick()
        self.observe()
        oracle = self.oracle
        if pause > 0:
            assert oracle.applied == len(oracle.commands), "the master rests before commands that are not applied"
            waiting = min(map(due_of, oracle.pending), default=None)
            if node.replica.reach(self.now) == self.now:  # or what is due is still in delay files
                assert waiting is None or self.now + pause * 1000 <= waiting, "the master sleeps past a due message"
        return pause

    def check(self, node: SimNode) -> None:
        """A replica at the ledger's end holds what the oracle holds, and its two books agree."""
        oracle, entry = self.oracle, node.replica.entry
        keys, after = [], entry.cursor
        while part := node.store.scan_all(after, HIGHEST, 7, 1 << 20)[0]:
            keys += part
            after = part[-1]
        assert keys == sorted(oracle.pending)
        assert (entry.number, entry.applied, entry.cursor) == (oracle.number, oracle.applied, oracle.cursor)
        assert node.replica.wheel.total == node.replica.recount() == entry.pending == len(keys)
        assert dict(node.replica.wheel.all_totals()) == node.store.windows()
        for name, message in oracle.names.items():
            if oracle.forgotten(message):
                continue
            (holder,) = node.store.names([name])
            assert holder is not None and holder[:KEY_BYTES] == message.first_key
        for message in oracle.messages.values():
            if message.state == DELIVERED and not oracle.forgotten(message):
                assert node.store.delivered_at(message.key, offset_of(message.key)) == message.ended_at
        self._check_cancelled(node)
        self._check_notes(node)
        self._check_topics(node)

    def _check_topics(self, node: SimNode) -> None:
        """Pending messages are counted by topic to the last one, and beside them those whose cancels are unread."""
        counts, delay_files = node.store.topic_counts, node.store.delay_files
        assert not counts.faults
        if not counts.built:
            assert node.counts_lost, "the counts by topic are lost"
            return
        unread = [key for window in delay_files.windows() for key in _rowless_keys(node, window)]
        rows = [*node.store.rows(sorted(self.oracle.pending)), *_rows_in_files(node, unread).values()]
        assert counts.listed() == {topic.decode(): count for topic, count in count_topics(filter(None, rows)).items()}
        for topic in self.topics:
            counted = counts.of(topic)
            assert counted is not None and counted.unread == min(counted.pending, len(unread))

    def _check_notes(self, node: SimNode) -> None:
        """What rows note of jobs, failed attempts and changes."""
        rows = dict(node.store.near_rows(sorted(self.oracle.pending)))
        dead = [message for message in self.oracle.messages.values() if message.state in (DEAD, PURGED)]
        for message, ended in zip(dead, node.store.endings([message.key for message in dead]), strict=True):
            if ended is not None:
                rows[message.key] = ended.row
        by_key = {message.key: message for message in dead} | self.oracle.pending
        for key, row in rows.items():
            message, notes = by_key[key], notes_of(row)
            assert notes.tags == tuple(f"{job}/{step}" for job, step in reversed(message.tags.items()))
            assert expires_of(row) == message.expires
            assert list(notes.attempts) == message.tried[-MAX_ATTEMPTS:]
            check_history(notes.history, message)

    def _check_cancelled(self, node: SimNode) -> None:
        """The kept record of each cancelled message is in the store, or still in a delay file."""
        cancelled = [message for message in self.oracle.messages.values() if message.state == CANCELLED]
        messages = [message for message in cancelled if not self.oracle.forgotten(message)]
        # Who is forgotten is dropped only once its name was read from the file.
        forgotten_keys = {message.key for message in cancelled if self.oracle.forgotten(message)}
        keys = [message.key for message in messages]
        endings = dict(zip(keys, node.store.endings(keys), strict=True))
        rowless = [key for key, ended in endings.items() if ended is not None and not ended.row]
        assert sorted(
            key
            for window in node.store.delay_files.windows()
            for key in _rowless_keys(node, window)
            if key not in forgotten_keys
        ) == sorted(rowless)
        rows = _rows_in_files(node, rowless)
        for message in messages:
            ended = endings[message.key]
            assert ended is not None and (ended.status, ended.at) == (ENDED_CANCELLED, message.ended_at)
            kept = read_row(ended.row or rows[message.key])
            draft = message.draft
            assert (first_key_of(ended.row or rows[message.key]), kept.due) == (message.first_key, message.shown)
            assert (kept.topic, kept.key, kept.labels, kept.expires) == (
                draft.topic,
                draft.key,
                draft.labels,
                message.expires,
            )
            assert kept.name == draft.name
            history = notes_of(ended.row or rows[message.key]).history
            check_history(history.with_change(PastChange(CANCEL, ended.at, by=ended.cancelled_by)), message)


def _cancelled(raw: bytes) -> Any:
    """The ending of a message. Of a cancelled one, which has no payload, a row from an imported file does not say
    whether that was null, and a row of RocksDB does: this is left out."""
    ended = EndedMessage.decode(raw)
    if ended.status != ENDED_CANCELLED or not ended.row:
        return raw
    return ended._replace(row=b""), read_row(ended.row)._replace(payload=None), notes_of(ended.row)


def _rowless_keys(node: SimNode, window: int) -> list[bytes]:
    keys, _ = node.store.rowless_keys(window, b"", 1 << 20)
    return keys


def _rows_in_files(node: SimNode, keys: list[bytes]) -> dict[bytes, bytes]:
    """The rows of messages that were cancelled in delay files, up to the payload."""
    delay_files = node.store.delay_files
    return delay_files.reader.rows(delay_files.by_file(keys), payload=False)


def check_history(history: ChangeHistory, message: Message) -> None:
    """It is the first and the last of a message's changes."""
    changed, most = message.changed, row_notes.MAX_CHANGES
    expected = changed if len(changed) <= most else changed[:1] + changed[1 - most :]
    assert (list(history.changes), history.left_out) == (expected, len(changed) - len(expected))


def _frame(command: Command) -> bytes:
    if isinstance(command, Plain):
        return pack_record(*command.record)
    if isinstance(command, Handed):
        return import_frame(command.import_command)
    if isinstance(command, Change):
        return change_frame(*command)
    assert isinstance(command, Draft) and command.due is not None
    return schedule_frame(command, command.due)
