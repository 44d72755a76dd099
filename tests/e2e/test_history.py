"""`duemq spark history` on a real Kafka: every delivery and every outcome is in the table once, whatever dies when."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import orjson
import pyarrow.parquet as pq
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.structs import TopicPartition
from pyspark.sql import SparkSession

from duemq.dev.kafka.kafka import KafkaServers
from duemq.model.messages.names import of_client, shard_of_name
from duemq.pipeline.errors import BadInput, JobFailed
from duemq.pipeline.history.stream import HistoryWriter, LogSource, run
from duemq.pipeline.history.table import FORMATS, HistoryTable
from duemq.pipeline.spark.connector import JARS_VARIABLE
from duemq.pipeline.spark.progress import Silent
from tests.e2e.server import DUEMQ, Server, environment, wait_for
from tests.support.examples import example
from tests.support.spark.spark_site import spark_jars, spark_tests

questions = example("history_questions")
pytestmark = [*spark_tests, pytest.mark.slow]

COUNT = 150
NO_NEW_TOPICS = ("--set", "topics.partitions=0", "--set", "delivery.max_attempts=1")
NAME, NOBODY = [name for name in map("n{}".format, range(20)) if shard_of_name(of_client(name), 2) == 0][:2]


@dataclass
class World:
    """A Kafka of its own on which a server has delivered, and what became of its messages."""

    bootstrap: str
    delivered: dict[str, str] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    moved: str = ""

    def make(self, *topics: str) -> None:
        async def make() -> None:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
            await admin.start()
            answer = await admin.create_topics([NewTopic(topic, 2, 1) for topic in topics])
            await admin.close()
            assert not any(error[1] for error in answer.topic_errors)

        asyncio.run(make())

    def append(self, topic: str, count: int) -> None:
        """Records of somebody else, in the first partition."""

        async def send() -> None:
            async with AIOKafkaProducer(bootstrap_servers=self.bootstrap) as producer:
                for _ in range(count):
                    await producer.send_and_wait(topic, b"x", partition=0)

        asyncio.run(send())

    def plain(self, *records: dict[str, str]) -> None:
        """Records of a plain Kafka client for the commands' topic, in the first shard."""

        async def send() -> None:
            async with AIOKafkaProducer(bootstrap_servers=self.bootstrap) as producer:
                for headers in records:
                    packed = [(name, value.encode()) for name, value in headers.items()]
                    await producer.send_and_wait("duemq.buffer", b"x", headers=packed, partition=0)

        asyncio.run(send())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("history")
    with (
        KafkaServers(folder / "kafka") as kafka,
        Server(folder / "data", "--shards", "2", "--kafka", kafka.bootstrap, *NO_NEW_TOPICS) as server,
    ):
        world = World(kafka.bootstrap)
        world.make("orders", "letters")
        fill(world, server.start())
        assert server.stop() == 0, server.log
        yield world


def fill(world: World, server: Server) -> None:
    def send(topic: str, count: int, after: str) -> list[str]:
        messages = [{"topic": topic, "payload": "x", "key": f"k{n}", "deliver_after": after} for n in range(count)]
        answer = server.call("POST", "/v1/messages:batch", {"messages": messages})
        return [one["id"] for one in answer.json()["results"]]

    far = send("orders", 12, "4h")
    for id_ in far[:5]:
        assert server.call("DELETE", f"/v1/messages/{id_}").status_code == 200
    for id_ in far[5:8]:
        assert server.call("PATCH", f"/v1/messages/{id_}", {"deliver_after": "100ms"}).status_code == 200
    assert server.call("POST", f"/v1/messages/{far[8]}:deliver-now").status_code == 200
    orders = send("orders", COUNT, "500ms") + far[5:9]
    direct = server.call("POST", "/v1/messages", {"topic": "letters", "payload": "now", "key": "k"}).json()["id"]
    last = send("letters", 1, "600ms")
    world.delivered |= dict.fromkeys(orders, "orders") | dict.fromkeys([direct, *last], "letters")
    world.moved = far[5]

    def status(id_: str) -> str:
        text: str = server.state(id_)["status"]
        return text

    wait_for(lambda: all(status(id_) == "delivered" for id_ in (*last, *far[5:9], *orders[:COUNT])), "all deliveries")
    world.plain(
        {"duemq-topic": "nowhere", "duemq-deliver-at": "1000000000000"},  # dead: there is no such topic
        {"duemq-delay": "5"},  # malformed: no topic
        {"duemq-topic": "orders", "duemq-delay": "9h", "duemq-name": NAME},
        {"duemq-topic": "orders", "duemq-delay": "9h", "duemq-name": NAME},
        {"duemq-topic": "others", "duemq-delay": "9h", "duemq-name": NAME},
        {"duemq-cancel": NOBODY},
        {"duemq-cancel": NAME},
    )
    wait_for(lambda: server.call("GET", f"/v1/messages/{NAME}").json().get("status") == "cancelled", "the last cancel")
    world.outcomes = Counter(
        cancelled=6, moved=3, sent_now=1, dead=1, malformed=1, duplicate=1, conflict=1, too_late=1
    )  # fmt: skip


every_format = pytest.mark.parametrize("format", list(FORMATS))


def contents(spark: SparkSession, path: Path) -> tuple[dict[str, str], Counter[str]]:
    """Topic by id, and how many of each outcome. Every record of a topic is there once."""
    table = HistoryTable(spark, str(path))
    rows = table.read("deliveries").collect()
    assert len({(row.topic, row.partition, row.offset) for row in rows}) == len(rows)
    assert len({row.id for row in rows}) == len(rows)
    outcomes = table.read("outcomes").collect()
    return {row.id: row.topic for row in rows}, Counter(row.outcome for row in outcomes)


def fill_table(
    spark: SparkSession,
    world: World,
    path: Path,
    most: int = 100_000,
    format: str | None = None,
    topics: str | None = None,
) -> HistoryWriter:
    table = HistoryTable(spark, str(path), format=format)
    return run(spark, table, LogSource(world.bootstrap, topics, most), Silent(), threading.Event(), once=True)


def test_each_delivery_and_each_fate_is_there_once(world: World, spark: SparkSession, tmp_path: Path) -> None:
    done = fill_table(spark, world, tmp_path)
    delivered, outcomes = contents(spark, tmp_path)
    assert delivered == world.delivered and outcomes == world.outcomes
    assert (done.deliveries, done.outcomes) == (len(delivered), outcomes.total())
    assert fill_table(spark, world, tmp_path).deliveries == 0
    assert contents(spark, tmp_path) == (world.delivered, world.outcomes)

    table = HistoryTable(spark, str(tmp_path))
    deliveries, told = table.read("deliveries"), table.read("outcomes")
    hours = questions.lateness_by_hour(deliveries, told).collect()
    assert {row.topic for row in hours} == {"orders", "letters"}
    assert sum(row.messages for row in hours) == len(delivered) - 2  # one had no delay, one was sent now
    assert all(0 == row.early <= row.p50_ms <= row.p99_ms <= row.p999_ms <= row.max_ms for row in hours)
    volume: Counter[str] = Counter()
    for row in questions.volume_by_day(deliveries, told).collect():
        volume[row.outcome] += row.messages
    assert volume == outcomes + Counter(delivered=len(delivered))
    assert [row.outcome for row in questions.outcomes_of(deliveries, told, world.moved).collect()] == [
        "moved",
        "delivered",
    ]
    with pytest.raises(BadInput, match="no id"):
        questions.outcomes_of(deliveries, told, "x")
    (cancel,) = told.where("outcome = 'too_late'").collect()
    assert (cancel.answer, cancel.name) == ("unknown", f"n:{NOBODY}")
    (row,) = told.where("outcome = 'dead'").collect()
    assert row.topic == "nowhere" and row.reason and row.due_ms == 1_000_000_000_000
    (repeat,) = questions.repeated(deliveries.union(deliveries.where(deliveries.id == world.moved))).collect()
    assert repeat.id == world.moved
    assert questions.once(deliveries.union(deliveries)).count() == len(delivered)


@every_format
def test_a_crash_at_every_step_repeats_and_loses_nothing(
    world: World, spark: SparkSession, tmp_path: Path, format: str
) -> None:
    """The query fails in the middle of a batch, and a new one goes on with the checkpoint."""
    left = [f"{step} {kind}" for kind in ("deliveries", "outcomes") for step in ("written", "committed")] + ["added"]

    def fault(step: str) -> None:
        if left and step == left[0]:
            left.pop(0)
            raise RuntimeError(f"crash: {step}")

    class CrashingWriter(HistoryWriter):
        def add(self, batch: Any, number: int) -> None:
            super().add(batch, number)
            try:
                fault("added")
            except RuntimeError as error:
                self.failed = error
                raise

    while left:
        before = len(left)
        table = HistoryTable(spark, str(tmp_path), fault, format=format)
        with pytest.raises(JobFailed, match="crash"), pytest.MonkeyPatch.context() as patch:
            patch.setattr("duemq.pipeline.history.stream.HistoryWriter", CrashingWriter)
            run(spark, table, LogSource(world.bootstrap, most=None), Silent(), threading.Event(), once=True)
        assert len(left) == before - 1
    assert fill_table(spark, world, tmp_path).deliveries == 0, "the batch is in the table, and was to be run again"
    assert contents(spark, tmp_path) == (world.delivered, world.outcomes)
    assert HistoryTable(spark, str(tmp_path)).format == format and not list((tmp_path / "_staging").glob("*"))


def test_merged_batches_hold_the_same_whatever_dies_meanwhile(
    world: World, spark: SparkSession, tmp_path: Path
) -> None:
    fill_table(spark, world, tmp_path, most=250)

    def fault(step: str) -> None:
        if step == "committed deliveries":
            raise RuntimeError("crash")

    numbers = [int(path.name[6:]) for path in sorted((tmp_path / "deliveries").iterdir())]
    before = len(numbers)
    assert before > 1
    with pytest.raises(RuntimeError, match="crash"):
        HistoryTable(spark, str(tmp_path), fault).compact("deliveries", 1 << 30)
    assert len(list((tmp_path / "deliveries").iterdir())) == before + 1, "merged, and its sources still there"
    assert contents(spark, tmp_path) == (world.delivered, world.outcomes)
    table = HistoryTable(spark, str(tmp_path))
    assert table.compact("deliveries", 1 << 30) == (0, 0)
    table.compact("outcomes", 1 << 30)
    assert [len(list((tmp_path / kind).iterdir())) for kind in ("deliveries", "outcomes")] == [1, 1]
    table.add("deliveries", numbers[0], table.read("deliveries"))  # as if it were run again
    assert len(list((tmp_path / "deliveries").iterdir())) == 1
    assert fill_table(spark, world, tmp_path).batches == 0
    assert contents(spark, tmp_path) == (world.delivered, world.outcomes)


@pytest.mark.parametrize("by", ["retention", "a topic made anew"])
def test_records_that_were_dropped_before_they_were_read_stop_it(
    world: World, spark: SparkSession, tmp_path: Path, by: str
) -> None:
    topic, table = f"dropped-{len(by)}", HistoryTable(spark, str(tmp_path))
    source = LogSource(world.bootstrap, topic)

    async def drop() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=world.bootstrap)
        await admin.start()
        try:
            if by == "retention":
                await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=5)})
            else:
                await admin.delete_topics([topic])
                while topic in await admin.list_topics():  # noqa: ASYNC110  # nobody tells
                    await asyncio.sleep(0.1)
        finally:
            await admin.close()

    world.make(topic)
    world.append(topic, 3)
    run(spark, table, source, Silent(), threading.Event(), once=True)
    world.append(topic, 3)
    asyncio.run(drop())
    if by != "retention":
        world.make(topic)
    with pytest.raises(JobFailed, match="Kafka has dropped unread records"):
        run(spark, table, source, Silent(), threading.Event(), once=True)


def test_spark_reads_no_topic_of_duemqs_own_but_ledger_and_dead_letters(
    world: World, spark: SparkSession, tmp_path: Path
) -> None:
    world.make("reorders-eu", "orders.retry", "dlq.billing")
    for topics, of_others in (("orders", set[str]()), (None, {"letters", "reorders-eu", "orders.retry"})):
        table = HistoryTable(spark, str(tmp_path / str(topics)))
        run(spark, table, LogSource(world.bootstrap, topics), Silent(), threading.Event(), once=True)
        read = {topic for topic in table.offsets() if not topic.startswith(("dropped-", "late-", "waits-"))}
        assert read == {"duemq.ledger", "duemq.dlq", "orders"} | of_others
    with pytest.raises(BadInput, match=r"'\(' is no regular expression of Java: Unclosed group"):
        run(spark, table, LogSource(world.bootstrap, "("), Silent(), threading.Event(), once=True)


def test_a_table_keeps_the_options_that_decide_its_rows(world: World, spark: SparkSession, tmp_path: Path) -> None:
    """With another pattern Spark would stop for ever: its checkpoint knows other topics."""
    table = HistoryTable(spark, str(tmp_path))
    run(spark, table, LogSource(world.bootstrap), Silent(), threading.Event(), once=True)
    for source in (LogSource(world.bootstrap, "orders"), LogSource(world.bootstrap, "orders", dead_letters="orders")):
        with pytest.raises(BadInput, match="topics: default, now orders"):
            run(spark, HistoryTable(spark, str(tmp_path)), source, Silent(), threading.Event(), once=True)
    fewer = LogSource(world.bootstrap, most=10)  # how it is read may change
    assert run(spark, table, fewer, Silent(), threading.Event(), once=True).deliveries == 0


def test_a_table_of_the_last_release_goes_on_without_duemqs_own_topics(
    world: World, spark: SparkSession, tmp_path: Path
) -> None:
    """That subscribed to a pattern without anchors, and stopped for ever once duemq had trimmed a topic of its own."""

    class LastTable(HistoryTable):
        def begin(self, options: object = None) -> None:
            super().begin()

        def leave(self, topics: object) -> None: ...

    unanchored = r"(?:duemq\.ledger|duemq\.dlq)|(?!duemq\.|__)(?:.*)"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("duemq.pipeline.history.stream.pattern", lambda source: unanchored)
        table = LastTable(spark, str(tmp_path))
        done = run(spark, table, LogSource(world.bootstrap, most=250), Silent(), threading.Event(), once=True)
    assert done.batches > 1 and "duemq.buffer" in table.offsets()
    last = max((tmp_path / "_checkpoint" / "commits").iterdir(), key=lambda file: file.name)
    for file in (last, last.with_name(f".{last.name}.crc")):  # as if it had been killed in the last batch
        file.unlink()

    later = fill_table(spark, world, tmp_path)
    assert later.deliveries == 0, "the batch is there, and run again"
    assert not {"duemq.buffer", "duemq.clock"} & HistoryTable(spark, str(tmp_path)).offsets().keys()
    assert contents(spark, tmp_path) == (world.delivered, world.outcomes)
    assert fill_table(spark, world, tmp_path).batches == 0


def test_a_batch_waits_for_the_records_that_it_may_have(
    world: World, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duemq.pipeline.history.stream._TRIGGER_S", 0.05)
    topic, stop = f"waits-{time.time_ns()}", threading.Event()
    writers: list[HistoryWriter] = []
    world.make(topic)
    fill_table(spark, world, tmp_path, topics=topic)
    table, source = HistoryTable(spark, str(tmp_path)), LogSource(world.bootstrap, topic, most=6)

    def follow() -> None:
        writers.append(run(spark, table, source, Silent(), stop, once=False, every_s=3_600))

    def read() -> int:
        return sum(table.offsets().get(topic, {}).values())

    world.append(topic, 1)
    thread = threading.Thread(target=follow)
    thread.start()
    try:
        wait_for(lambda: read() == 1, "the first batch, which waits for nothing", PATIENCE_S)
        for count in (2, 2, 2):
            world.append(topic, count)
        wait_for(lambda: read() == 7, "six records", PATIENCE_S)
    finally:
        stop.set()
        thread.join()
    assert [writer.batches for writer in writers] == [2]


class Job:
    """`duemq spark history` as a process; killed at the end of the block if it still runs."""

    def __init__(self, world: World, path: Path, *options: str) -> None:
        self.log = path.with_name(f"{path.name}.log")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [DUEMQ, "spark", "history", "--kafka", world.bootstrap, "--into", path, "--conf",
                 "spark.driver.memory=512m", "--conf", "spark.sql.shuffle.partitions=2", "--every", "0.1", *options],
                stdout=subprocess.PIPE, stderr=log, env=environment() | {JARS_VARIABLE: str(spark_jars())},
                start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def end(self, number: int) -> tuple[int, str]:
        self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out.decode()

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        def met() -> object:
            assert self.process.poll() is None, self.log.read_text()
            return condition()

        wait_for(met, what, PATIENCE_S)


PATIENCE_S = 900.0  # two Sparks on a busy machine


def test_a_process_killed_in_the_middle_of_a_batch_and_one_that_is_stopped(
    world: World, spark: SparkSession, tmp_path: Path
) -> None:
    table = tmp_path / "table"

    def rows(kind: str) -> int:
        """As any tool would count them: no batch is there in part."""
        return sum(pq.read_metadata(file).num_rows for file in table.glob(f"{kind}/batch=*/*/*.parquet"))

    with Job(world, table, "--most", "150") as first:
        first.wait_for(lambda: rows("deliveries"), "a batch")
        first.wait_for(lambda: list(table.glob("_staging/*/*")), "another one that is being written")
        first.process.kill()
    assert rows("deliveries") + rows("outcomes") < len(world.delivered) + world.outcomes.total(), (
        "it was not at its end"
    )

    with Job(world, table, "--json") as second:
        second.wait_for(lambda: rows("deliveries") >= len(world.delivered), "all deliveries")
        late = f"late-{time.time_ns()}"  # a topic that appears while the job runs

        async def deliver() -> None:
            async with AIOKafkaProducer(bootstrap_servers=world.bootstrap) as producer:
                headers = [("duemq-id", b"A" * 32), ("duemq-due", b"1000"), ("duemq-attempt", b"2")]
                await producer.send_and_wait(late, b"x", key=b"k", headers=headers)
                await producer.send_and_wait(late, b"not duemq's")

        world.make(late)
        asyncio.run(deliver())
        second.wait_for(lambda: rows("deliveries") > len(world.delivered), "the new topic")
        code, out = second.end(signal.SIGTERM)
        assert code == 0, second.log.read_text()
    assert orjson.loads(out)["deliveries"] > 0
    delivered, outcomes = contents(spark, table)
    assert delivered == world.delivered | {"A" * 32: late} and outcomes == world.outcomes
    (row,) = HistoryTable(spark, str(table)).read("deliveries").where(f"topic = '{late}'").collect()
    assert (row.attempt, row.due_ms, bytes(row.key)) == (2, 1_000, b"k")
    assert row.lateness_ms == row.delivered_ms - 1_000
