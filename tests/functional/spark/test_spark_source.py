"""The data source against a proxy with three shards: what is read, what is written, and what goes wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from duemq.client import Client, Draft, EpochMs, Message
from duemq.model.messages.ids import peek
from duemq.pipeline.columns import Columns
from duemq.pipeline.errors import BadInput, JobFailed
from duemq.pipeline.logs.server import Server
from duemq.pipeline.send import fields_of, shards_at
from duemq.pipeline.spark_source.fields import check
from duemq.pipeline.spark_source.listing import SCHEMA
from duemq.pipeline.spark_source.options import WriteOptions
from duemq.pipeline.spark_source.posting import answered, sum_up, write
from tests.support.http.proxy_site import SHARDS, proxy_site
from tests.support.spark.spark_site import spark_tests

pytestmark = [*spark_tests, pytest.mark.slow]
HOUR_MS, DUE = 3_600_000, 2_000_000_000_000


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """No test here registers the format: Spark finds the module `pyspark_duemq` by itself."""
    with proxy_site(tmp_path_factory.mktemp("source") / "data") as url:
        yield url


def first_due() -> int:
    return int(time.time() * 1000) + HOUR_MS


def read(spark: SparkSession, url: str, **options: Any) -> DataFrame:
    return spark.read.format("duemq").options(url=url, **options).load()


def written(frame: DataFrame, url: str, **options: Any) -> None:
    frame.write.format("duemq").mode("append").options(url=url, **options).save()


def test_pending_ended_and_dead_messages_are_read_by_shard_and_window(spark: SparkSession, url: str) -> None:
    due, count = first_due(), 900
    with Client(url) as client:
        drafts = [
            Draft("read", b"x", key=f"k{n % 3}", headers={"h": str(n)}, labels=["even"] if n % 2 == 0 else None,
                  deliver_at=EpochMs(due + n * 60_000), expires_at=EpochMs(due + 10**9), name=f"read-{n}")
            for n in range(count)
        ]  # fmt: skip
        ids = [one.id for one in client.send_batch(drafts) if isinstance(one, Message)]
        client.cancel_many(ids[:50])
        for id_ in ids[50:53]:
            client.deliver_now(id_)
        while client.get(ids[52]).state.status != "delivered":
            time.sleep(0.02)
    assert shards_at(Server(url)) == SHARDS
    pending = read(spark, url, topic="read", page=100)
    assert pending.schema == SCHEMA
    assert pending.rdd.getNumPartitions() == SHARDS
    found = pending.collect()
    assert {row.id for row in found} == set(ids[53:]) and len(found) == count - 53
    assert all(row.shard == peek(row.id).shard and row.status == "scheduled" for row in found)
    row = next(row for row in found if row.id == ids[60])
    assert (bytes(row.key), row.due_ms, row.labels, row.headers) == (b"k0", due + 60 * 60_000, ["even"], {"h": "60"})
    assert (row.attempt, row.expires_ms, row.delivered_ms, row.reason) == (0, due + 10**9, None, None)
    some = read(spark, url, topic="read", since=due + 100 * 60_000, until=due + 400 * 60_000, window="1h")
    parts = some.rdd.getNumPartitions()
    assert parts in (5 * SHARDS, 6 * SHARDS)
    assert {row.id for row in some.collect()} == set(ids[100:400])
    assert {row.id for row in read(spark, url, topic="read", key="k1", label="even").collect()} == set(ids[58::6])
    ended = {row.id: row for row in read(spark, url, topic="read", what="ended").collect()}
    assert ended.keys() == set(ids[:53])
    assert [ended[id_].status for id_ in ids[49:51]] == ["cancelled", "delivered"]
    assert ended[ids[0]].cancelled_ms and ended[ids[50]].delivered_ms >= due - HOUR_MS
    assert read(spark, url, topic="read", what="cancelled").count() == 50
    assert read(spark, url, topic="read", what="dead").count() == 0
    assert read(spark, url, topic="read").where("labels is not null and due_ms < 0").count() == 0


def test_dead_letters_are_read_with_their_reasons(spark: SparkSession, url: str) -> None:
    with Client(url) as client:
        for _ in range(1_000):  # good for the ms at which it is due alone: dead, unless the server hits it
            at = EpochMs(int(time.time() * 1000) + 500)
            one = client.send("dying", b"x", deliver_at=at, expires_at=at)
            while (status := client.get(one.id).state.status) == "scheduled":
                time.sleep(0.05)
            if status == "dead":
                break
    (row,) = read(spark, url, topic="dying", what="dead").collect()
    assert (row.id, row.status, row.expires_ms, row.delivered_ms) == (one.id, "dead", at, None)
    assert row.reason == "expired" and row.dead_ms >= at
    assert one.id in {row.id for row in read(spark, url, topic="dying", what="ended").collect()}


def test_columns_that_are_not_in_a_schema_are_not_made(spark: SparkSession, url: str) -> None:
    with Client(url) as client:
        ids = {client.send("narrow", b"x", key="k", deliver_after="1h").id for _ in range(3)}
    some = spark.read.schema("key binary, id string").format("duemq").options(url=url, topic="narrow").load()
    assert {(bytes(row.key), row.id) for row in some.collect()} == {(b"k", id_) for id_ in ids}
    for schema in ("id int", "id string, name string"):
        with pytest.raises(AnalysisException, match="a schema has some of these columns"):
            spark.read.schema(schema).format("duemq").options(url=url).load().collect()


def test_an_option_that_is_wrong_is_told_before_anything_is_read(spark: SparkSession, url: str) -> None:
    for options, sentence in (
        ({"what": "all"}, "option what: 'all' is not one of"),
        ({"top": "x"}, "option top: is not"),
    ):
        with pytest.raises(AnalysisException, match=sentence):
            read(spark, url, **options).collect()


def messages(spark: SparkSession, count: int, prefix: str, topic: str = "written") -> DataFrame:
    due = first_due()
    return spark.range(0, count, 1, 3).select(
        F.concat(F.lit(prefix), "id").alias("name"), F.lit(topic).alias("topic"),
        (F.lit(due) + F.col("id")).alias("due_ms"),
        F.concat(F.lit("payload "), "id").alias("payload"), F.concat(F.lit("k"), F.col("id") % 3).alias("key"),
        F.create_map(F.lit("h"), F.col("id").cast("string")).alias("headers"), F.array(F.lit("l")).alias("labels"),
        F.when(F.col("id") % 2 == 0, F.lit(due + 10**9)).alias("expires_ms"),
    )  # fmt: skip


def test_rows_are_written_once_however_often(spark: SparkSession, url: str) -> None:
    frame = messages(spark, 2_500, "w-").cache()
    for batch in (5_000, 700):
        written(frame, url, batch=batch)
    with Client(url) as client:
        assert sum(1 for _ in client.list(topic="written")) == 2_500
        state = client.get("w-77").state
        assert (state.payload, state.key, state.labels, state.headers) == (b"payload 77", "k2", ("l",), {"h": "77"})
        assert state.expires_at_ms is None and client.get("w-78").state.expires_at_ms is not None
        client.cancel("w-77")
        moved = client.reschedule("w-78", deliver_at=EpochMs(first_due() + HOUR_MS))
        assert client.get("w-78").state.deliver_at_ms == moved.state.deliver_at_ms
    frame.unpersist()


def test_a_stream_is_written_once_although_its_batch_is_repeated(spark: SparkSession, url: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    for part in range(3):
        messages(spark, 60, f"s{part}-", "streamed").write.parquet(f"file://{source}/{part}")

    def run(checkpoint: str) -> None:
        stream = spark.readStream.schema(messages(spark, 1, "").schema).option("maxFilesPerTrigger", 4).parquet(
            f"file://{source}/*"
        )  # fmt: skip
        query = (
            stream.writeStream.format("duemq").options(url=url, refused=f"{tmp_path}/refused")
            .option("checkpointLocation", f"file://{tmp_path}/{checkpoint}")
            .trigger(availableNow=True).start()
        )  # fmt: skip
        assert query.awaitTermination(300)

    run("first")
    run("second")  # from the start, as if nothing had been committed
    with Client(url) as client:
        assert sum(1 for _ in client.list(topic="streamed")) == 180
    assert not (tmp_path / "refused").exists()


def test_a_stream_goes_on_past_a_row_that_is_refused(spark: SparkSession, url: str, tmp_path: Path) -> None:
    """The row stands in a table, by its query and batch: two queries do not overwrite each other's."""
    source = tmp_path / "source"
    frame = messages(spark, 20, "bad-", "passed")
    topic = F.when(F.col("name") == "bad-3", "duemq.no").otherwise(F.col("topic"))
    due = F.when(F.col("name") == "bad-4", 978_307_200_000).otherwise(F.col("due_ms"))
    frame.withColumns({"topic": topic, "due_ms": due}).coalesce(1).write.parquet(f"file://{source}/0")

    def run(checkpoint: str) -> None:
        stream = spark.readStream.schema(frame.schema).parquet(f"file://{source}/*")
        query = (
            stream.writeStream.format("duemq").options(url=url, refused=f"{tmp_path}/refused")
            .option("checkpointLocation", f"file://{tmp_path}/{checkpoint}").trigger(availableNow=True).start()
        )  # fmt: skip
        assert query.awaitTermination(300)

    run("first")
    messages(spark, 5, "later-", "passed").write.parquet(f"file://{source}/1")
    run("first")
    with Client(url) as client:
        assert sum(1 for _ in client.list(topic="passed")) == 23
    run("second")
    refused = spark.read.parquet(f"file://{tmp_path}/refused")
    found = {(row.name, row.topic, bytes(row.payload), row.reason[:7]) for row in refused.collect()}
    assert found == {("bad-3", "duemq.no", b"payload 3", "topic '"), ("bad-4", "passed", b"payload 4", "due_ms:")}
    assert refused.count() == 4 and refused.select("query").distinct().count() == 2
    assert {row.batch for row in refused.collect()} == {0}


def test_what_the_server_refuses_fails_the_write_after_all_others_are_sent(spark: SparkSession, url: str) -> None:
    topic = F.when(F.col("name") == "r-3", "duemq.no").otherwise(F.col("topic"))
    key = F.when(F.col("name") == "r-4", F.unhex(F.lit("FF"))).otherwise(F.col("key").cast("binary"))
    frame = messages(spark, 20, "r-", "refused").withColumns({"topic": topic, "key": key})
    with pytest.raises(PySparkException, match="2 of 20 rows were refused, the others are scheduled") as failed:
        written(frame, url)
    assert "r-3: " in str(failed.value) and "r-4: key: is not UTF-8" in str(failed.value)
    written(frame, url, refused="skip")
    with Client(url) as client:
        assert sum(1 for _ in client.list(topic="refused")) == 18
    other = messages(spark, 20, "r-", "refused").where("name = 'r-5'").withColumn("payload", F.lit("another"))
    with pytest.raises(PySparkException, match="1 of 1 rows were refused"):
        written(other, url)
    for wrong, sentence in (
        (frame.drop("name"), "column name: is missing"),
        (frame.withColumn("at", F.lit(1)), "column at: is"),
    ):
        with pytest.raises(PySparkException, match=sentence):
            written(wrong, url)
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        frame.write.format("duemq").mode("overwrite").option("url", url).save()


def test_a_table_of_one_s_own_columns_is_written(spark: SparkSession, url: str) -> None:
    frame = spark.createDataFrame(
        [(1, first_due(), "eur"), (2, first_due(), "usd"), (3, None, "gbp")], "number int, at bigint, currency string"
    )
    columns = Columns("at", ("number", "currency"), to="own", name="number", labels=("currency",))
    written(fields_of(frame, columns), url)
    with Client(url) as client:
        assert client.get("1").state.payload == b'{"number":1,"currency":"eur"}'
        assert sorted(one.state.labels for one in client.list(topic="own")) == [("eur",), ("usd",)]


class Refuses:
    """A server that answers nothing right, as `send_batch` does."""

    def __init__(self) -> None:
        self.sent: list[Draft] = []

    def __call__(self, drafts: Any) -> Any:
        from duemq.client.http.values import MessageState

        self.sent += drafts
        return [Message(None, MessageState("i", "scheduled", "t", 1)) for _ in drafts]  # type: ignore[arg-type]


def test_rows_that_json_cannot_say_are_refused_one_by_one() -> None:
    rows = {
        "name": ["a", None, "c", "d", "e", "f"], "topic": ["t"] * 6, "due_ms": [DUE, DUE, None, DUE, DUE, DUE],
        "payload": [b"\xff", b"", b"", b"", b"", None],
        "headers": [[("h", b"v"), ("g", b"")], [], None, [("h", b"1"), ("h", b"\xff")], None, None],
        "labels": [["l"], None, None, None, [None], None],
    }  # fmt: skip
    schema = pa.schema([
        ("name", pa.string()), ("topic", pa.string()), ("due_ms", pa.int64()), ("payload", pa.binary()),
        ("headers", pa.map_(pa.string(), pa.binary())), ("labels", pa.list_(pa.string())),
    ])  # fmt: skip
    batch, server = pa.RecordBatch.from_pydict(rows, schema), Refuses()
    told = list(answered([batch], server, WriteOptions(Server("http://nowhere"), batch=2)))
    assert [(name, answer.status) for name, answer in told] == [
        ("a", "accepted"), (None, "refused"), ("c", "refused"), ("d", "accepted"), ("e", "refused"), ("f", "refused")
    ]  # fmt: skip
    details = [answer.detail for _, answer in told]
    assert details[1:3] == ["name: is null; every message needs one", "due_ms: is null; every message needs one"]
    assert details[4] == "labels: a label is null"
    assert [draft.payload for draft in server.sent] == [b"\xff", b""]
    assert [draft.headers for draft in server.sent] == [[("h", b"v"), ("g", b"")], [("h", b"1"), ("h", b"\xff")]]


def test_what_the_driver_says_of_refusals() -> None:
    writing = WriteOptions(Server("http://127.0.0.1:9"), patience_s=0)
    batch = pa.RecordBatch.from_pydict({"name": [None], "topic": ["t"], "due_ms": [1], "payload": [b""]})
    one = write([batch], writing)
    assert (one.accepted, one.repeated, one.refused) == (0, 0, 1)
    with pytest.raises(JobFailed, match=r"2 of 2 rows were refused, the others are scheduled \(None: name: is null"):
        sum_up([one, None, one], writing)
    sum_up([one], WriteOptions(Server("http://x"), skip=True))
    sum_up([None], writing)


def test_types_of_columns_are_checked() -> None:
    kinds = {"name": T.StringType(), "topic": T.StringType(), "due_ms": T.TimestampType(), "payload": T.BinaryType()}
    with pytest.raises(BadInput, match="column due_ms: must be epoch ms"):
        check(T.StructType([T.StructField(name, kind) for name, kind in kinds.items()]))
