"""Measures how long an audit takes: fills the topics of an empty Kafka with a history, and audits it.

    python -m duemq.bench.spark audit --kafka HOST:PORT --messages 2000000

The history is written by duemq's own code, so it is like a real history: commands, ledger entries, and deliveries with
one transaction per cycle. 1 % of the messages are cancelled, 1 % moved, 0.1 % dead-lettered, 2 % pending, and 5 % have
names. Only the times are invented. `--entries` adds empty cycles, so that the ledger is as long as that of a shard that
has run for days.

    python -m duemq.bench.spark gone --files 400

This measures how long it takes to count the messages in missing imported files.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from duemq.bus.kafka.record_batches import batches_of
from duemq.bus.partitioner import partition_of
from duemq.model.log.ledger import Answer, DeferredMessage, Entry, OutcomeCounts
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.key import KEY, checksum
from duemq.model.messages.message import CANCEL, MOVE, Draft, change_frame, schedule_frame
from duemq.model.messages.names import NO_NAME, fingerprint, of_client
from duemq.model.messages.record import pack_record
from duemq.model.messages.row import change_row, dead_frame, expires_of, frame_in, message_key_in, row_of
from duemq.pipeline.cli.command import echo_json, report_errors
from duemq.pipeline.errors import BadInput, JobFailed
from duemq.pipeline.logs.logs import BUFFER, DEAD_LETTERS, LEDGER
from duemq.pipeline.logs.ranges import Logs
from duemq.pipeline.spark.progress import Silent

TOPICS: Final = ("bench-orders", "bench-mails", "bench-bills")
SHARDS, PARTITIONS = 4, 2
_CYCLE = 4_000
_TICK_MS = 5_000  # between the due times of consecutive cycles' messages
_BATCH_BYTES = 900_000
_SECRET = bytes(range(32))
_MASK: Final = 2**64 - 1


def fill(bootstrap: str, messages: int, seed: int = 1, entries: int = 0) -> None:
    """Fill an empty Kafka. `entries`: the number of additional empty cycles. Raises BadInput if topics with these names
    exist."""
    there = set(Logs(bootstrap).topics())
    partition_counts = {BUFFER: SHARDS, LEDGER: SHARDS, DEAD_LETTERS: 1, **dict.fromkeys(TOPICS, PARTITIONS)}
    if existing_topics := sorted(there & partition_counts.keys()):
        raise BadInput(f"topic {existing_topics[0]} exists already: this fills only an empty Kafka")
    asyncio.run(_make(bootstrap, partition_counts))
    start = time.time_ns() // 1_000_000 - 3_600_000 - messages // SHARDS // _CYCLE * _TICK_MS
    with ProcessPoolExecutor(min(os.cpu_count() or 1, SHARDS)) as processes:
        work = [
            processes.submit(_shard, bootstrap, shard, messages // SHARDS, start, seed, entries // SHARDS)
            for shard in range(SHARDS)
        ]
        for one in work:
            one.result()


async def _make(bootstrap: str, topics: dict[str, int]) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, partitions, 1) for name, partitions in topics.items()])
    finally:
        await admin.close()


def _shard(bootstrap: str, shard: int, count: int, start: int, seed: int, idle: int) -> None:
    asyncio.run(_History(shard, count, start, random.Random(seed * 1_000 + shard)).write(bootstrap, idle))


class _History:
    """The history of one shard: all commands first, then the resulting deliveries."""

    def __init__(self, shard: int, count: int, start: int, chosen: random.Random) -> None:
        self._shard, self._count, self._start, self._chosen = shard, count, start, chosen
        self._ids = IdCodec(_SECRET)
        self._number, self._applied, self._cursor = -1, 0, KEY.pack(0, 0, 0)
        self._outcomes, self._pending, self._checksum = [0, 0, 0, 0], 0, 0
        self._at = start
        self._producer: Any = None

    async def write(self, bootstrap: str, idle: int = 0) -> None:
        self._producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=f"bench-{self._shard}", max_batch_size=1 << 20,
            max_request_size=8 << 20,
        )  # fmt: skip
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, max_request_size=8 << 20) as appender:
            await self._producer.start()
            try:
                due = await self._commands(appender)
                await self._deliver(due)
                await self._idle(appender, idle)
            finally:
                await self._producer.stop()

    async def _idle(self, appender: Any, cycles: int) -> None:
        """Write entries of empty cycles, as fast as possible."""
        for first in range(0, cycles, _CYCLE):
            frames = []
            for _ in range(first, min(first + _CYCLE, cycles)):
                self._at += 1  # only 1 ms, so that all times are in the past: brokers refuse records an hour ahead
                self._cursor = KEY.pack(self._at - 1, 0, 0)
                frames.append(pack_record(None, (), self._entry(self._at, {}).encode()))
            await _append(appender, LEDGER, self._shard, frames, self._at + 1)

    async def _commands(self, appender: Any) -> list[tuple[bytes, bytes, str]]:
        """Write all commands; return the key, row and topic of each message that is pending after them."""
        chosen, n = self._chosen, self._count
        first = self._start + n // _CYCLE * 2 + 10_000
        waiting: dict[int, tuple[bytes, bytes, str]] = {}
        frames: list[bytes] = []
        answers: dict[int, Answer] = {}
        about_to_change = chosen.sample(range(n), n // 50)
        placed: list[bytes] = []
        removed: list[bytes] = []
        for offset in range(n + len(about_to_change)):
            if offset < n:
                tick = chosen.randrange(n // _CYCLE + 1) if chosen.random() > 0.02 else 10**6
                due = first + tick * _TICK_MS + chosen.randrange(20)
                topic = TOPICS[offset % len(TOPICS)]
                payload = b'{"order": %d, "text": "%s"}' % (offset, b"x" * 80)
                name = of_client(f"order-{self._shard}-{offset}") if offset % 20 == 0 else NO_NAME
                draft = Draft(
                    topic, payload, due, b"%d" % (offset % 999), expires=due if chosen.random() < 0.001 else 0,
                    name=name, fingerprint=fingerprint(payload) if name else b"",
                )  # fmt: skip
                frame = schedule_frame(draft, due)
                id_ = self._ids.issue_bytes(self._shard, due, offset)
                waiting[offset] = KEY.pack(due, offset, 0), row_of(frame, id_), topic
                placed.append(waiting[offset][0])
                self._outcomes[0] += 1
                if name:
                    answers[offset] = Answer.ACCEPTED
            else:
                about = about_to_change[offset - n]
                key, row, topic = waiting.pop(about)
                removed.append(key)
                if about % 2:
                    frame = change_frame(CANCEL, key)
                    self._outcomes[2] += 1
                else:
                    later = int.from_bytes(key[:8], "big") + _TICK_MS
                    frame = change_frame(MOVE, key, later)
                    waiting[offset] = KEY.pack(later, offset, 0), change_row(row, due=later), topic
                    placed.append(waiting[offset][0])
                answers[offset] = Answer.OK
            frames.append(frame)
            if len(frames) == _CYCLE or offset == n + len(about_to_change) - 1:
                stamp = self._start + offset // _CYCLE * 2
                await _append(appender, BUFFER, self._shard, frames, stamp)
                self._applied, self._pending = offset + 1, len(waiting)
                self._checksum = (self._checksum + checksum(placed) - checksum(removed)) & _MASK
                await self._commit(stamp + 1, {}, answers)
                frames, answers, placed, removed = [], {}, [], []
        return sorted(waiting.values())

    async def _deliver(self, due: list[tuple[bytes, bytes, str]]) -> None:
        """Deliver the messages cycle by cycle, except those that are due in the far future."""
        chosen, end = self._chosen, self._start + 10**9
        at = 0
        while at < len(due) and int.from_bytes(due[at][0][:8], "big") < end:
            cycle = due[at : at + _CYCLE]
            while int.from_bytes(cycle[-1][0][:8], "big") - int.from_bytes(cycle[0][0][:8], "big") > _TICK_MS // 2:
                cycle.pop()
            at += len(cycle)
            last = int.from_bytes(cycle[-1][0][:8], "big")
            stamp = last + 1 + chosen.randrange(30)
            batches: dict[tuple[str, int], list[bytes]] = {}
            deferred = []
            for key, row, topic in cycle:
                if 0 < expires_of(row) < stamp:
                    deferred.append(DeferredMessage(key, None, 0, "expired"))
                    batches.setdefault((DEAD_LETTERS, 0), []).append(dead_frame(row, "expired", 0))
                else:
                    batches.setdefault((topic, _partition(row)), []).append(frame_in(row))
            self._pending -= len(cycle)
            self._outcomes[1] += len(cycle) - len(deferred)
            self._outcomes[3] += len(deferred)
            self._cursor = cycle[-1][0]
            self._checksum = (self._checksum - checksum([key for key, _, _ in cycle])) & _MASK
            await self._commit(stamp, batches, {}, deferred)

    async def _commit(
        self,
        at: int,
        batches: dict[tuple[str, int], list[bytes]],
        answers: dict[int, Answer],
        deferred: Sequence[DeferredMessage] = (),
    ) -> None:
        entry = self._entry(at, answers, deferred)
        async with self._producer.transaction():
            for (topic, partition), frames in batches.items():
                await _append(self._producer, topic, partition, frames, at + 1, transactional=True)
            ledger = [pack_record(None, (), entry.encode())]
            await _append(self._producer, LEDGER, self._shard, ledger, at + 1, transactional=True)

    def _entry(self, at: int, answers: dict[int, Answer], deferred: Sequence[DeferredMessage] = ()) -> Entry:
        self._number, self._at = self._number + 1, at
        return Entry(
            self._number, self._applied, self._cursor, at, answers, tuple(deferred), self._pending, self._checksum,
            OutcomeCounts(*self._outcomes),
        )  # fmt: skip


def _partition(row: bytes) -> int:
    """The partition for a record, chosen by its key as in Kafka's own clients."""
    key = message_key_in(row)
    return 0 if key is None else partition_of(key, PARTITIONS)


async def _append(
    producer: Any, topic: str, partition: int, frames: list[bytes], stamp: int, *, transactional: bool = False
) -> None:
    parts = batches_of(frames, _BATCH_BYTES, stamp, transactional=transactional)
    for part in parts:
        await (await producer.send_batch(part.builder, topic, partition=partition))


class _Steps(Silent):
    """Records when each step began."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, float]] = []

    def step(self, what: str) -> None:
        self.begun.append((what, time.perf_counter()))

    def seconds(self) -> dict[str, float]:
        ends = [at for _, at in self.begun[1:]] + [time.perf_counter()]
        return {what: round(end - at, 1) for (what, at), end in zip(self.begun, ends, strict=True)}


def _cpu(spark: Any) -> tuple[float, float]:
    """CPU seconds of Spark's Java process, and of its Python workers that are still running. On a machine that also
    does other work, CPU seconds are more meaningful than elapsed time."""
    java = spark.sparkContext._jvm.java.lang.ProcessHandle.current()
    workers = java.descendants().toArray()
    return round(_cpu_seconds(java), 1), round(sum(_cpu_seconds(one) for one in workers), 1)


def _cpu_seconds(process: Any) -> float:
    spent = process.info().totalCpuDuration()
    return float(spent.get().toMillis()) / 1000 if spent.isPresent() else 0.0


def measure(bootstrap: str, memory: str, out: Path, outcomes: bool = False) -> dict[str, Any]:
    """Run one audit in a separate session. Raises JobFailed if violations are found."""
    from duemq.pipeline.audit.job import audit as run
    from duemq.pipeline.spark.session import running

    began = time.perf_counter()
    with running("duemq bench audit", kafka=True, settings={"spark.driver.memory": memory}) as spark:
        started, steps = time.perf_counter(), _Steps()
        result = run(spark, bootstrap, out, teller=steps, outcomes_table=outcomes)
        ended = time.perf_counter()
        seconds = steps.seconds()
        java, python = _cpu(spark)
    if not result.clean:
        raise JobFailed(f"a clean history was found violated: {dict(result.violation_counts)}, {result.shown[:3]}")
    return {
        "messages": result.accepted, "outcomes": dict(result.account), "driver_memory": memory,
        "spark_starts_s": round(started - began, 1), "audit_s": round(ended - started, 1), "steps_s": seconds,
        "ledger_entries": sum(one.last_n - one.base_n for one in result.shards),
        "messages_per_s": round(result.accepted / (ended - started)), "java_cpu_s": java, "python_cpu_s": python,
    }  # fmt: skip


def audit(
    kafka: Annotated[str, typer.Option(metavar="HOST:PORT", help="An empty Kafka.")],
    messages: Annotated[int, typer.Option(help="How many.")] = 2_000_000,
    memory: Annotated[str, typer.Option(help="Memory of Spark's driver.")] = "2g",
    filled: Annotated[bool, typer.Option("--filled", help="The topics were filled before: only measure.")] = False,
    entries: Annotated[int, typer.Option(help="Additional empty ledger entries.")] = 0,
    outcomes: Annotated[bool, typer.Option("--outcomes", help="With the table outcomes.")] = False,
) -> None:
    """Fill the topics of an empty Kafka with a history, and audit it."""
    began = time.perf_counter()
    with report_errors(True):
        if not filled:
            fill(kafka, messages, entries=entries)
        fill_s = round(time.perf_counter() - began, 1)
        with tempfile.TemporaryDirectory() as folder:
            echo_json({"fill_s": fill_s} | measure(kafka, memory, Path(folder), outcomes))


def missing_files(
    files: Annotated[int, typer.Option(help="How many.")] = 400,
    rows: Annotated[int, typer.Option(help="Messages per file.")] = 10,
    memory: Annotated[str, typer.Option(help="Memory of Spark's driver.")] = "2g",
) -> None:
    """Read imported files that are missing, and count their messages by number."""
    from duemq.pipeline.audit.imported import AuditedFile, looked_at, rows_of
    from duemq.pipeline.spark.session import running

    every = [AuditedFile(0, n, rows, 0, f"/nowhere/{n}.parquet", n * 1_800_000, 1, "0" * 64) for n in range(files)]
    with report_errors(True), running("duemq bench gone", settings={"spark.driver.memory": memory}) as spark:
        spark.range(10).mapInArrow(lambda batches: batches, "id bigint").collect()  # starts the Python workers
        began = time.perf_counter()
        counted = rows_of(spark, looked_at(spark, every)).where("counted").count()
        took = time.perf_counter() - began
    echo_json({"files": files, "messages": counted, "took_s": round(took, 2)})
