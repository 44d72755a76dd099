"""Imports as DataFrames: real samples of RabbitMQ and RocketMQ, CSV of several makes, and a Redis."""

from __future__ import annotations

from pathlib import Path
from secrets import token_hex
from typing import Any

import orjson
import pytest
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from duemq.pipeline.columns import Columns
from duemq.pipeline.errors import BadInput, JobFailed
from duemq.pipeline.migrate import RabbitOptions, RocketOptions, divided, from_csv, from_documents, reject_repeats
from duemq.pipeline.migrate.files import read_csv, read_documents
from duemq.pipeline.migrate.redis import read_redis
from tests.support.spark.spark_site import spark_tests

pytestmark = spark_tests
SAMPLES = Path(__file__).parents[2] / "samples" / "imports"


def test_rabbitmqs_dumps_become_rows_and_rejects(spark: SparkSession) -> None:
    files = [str(SAMPLES / f"rabbitmq_get_{queue}.json") for queue in ("reminders", "waiting")]
    held = read_documents(spark, [str(SAMPLES / "rabbitmq_delayed.jsonl")])
    found = divided(from_documents(held.unionByName(read_documents(spark, files)), RabbitOptions().read))
    schema = (
        "due_ms bigint, topic string, payload binary, key binary, headers map<string,binary>, labels array<string>, "
        "expires_ms bigint, name string"
    )
    empty: Any = {"key": None, "headers": {}, "labels": [], "expires_ms": None, "name": None}
    named = {"content-type": b"application/json", "correlation-id": b"c-1", "message-id": b"m-1", "customer": b"17"}
    own = {"score": b"1.5", "tries": b"3", "vip": b"true"}
    expected = [
        {"due_ms": 1795411029863, "topic": "reminders.eu", "payload": b'{"order": 17}', **empty, "name": "m-1",
         "headers": named | own},
        {"due_ms": 1795497429898, "topic": "reminders.us", "payload": b"\x00\x01\xff\x80", **empty},
        {"due_ms": 1795414629920, "topic": "reminders", "payload": "grüß".encode(), **empty,
         "expires_ms": 1795418229920},
        {"due_ms": 1795860000000, "topic": "waiting", "payload": b"by ttl", **empty, "headers": {"a": b"b"}},
        {"due_ms": 1795255205000, "topic": "waiting", "payload": b"\x00\xff", **empty, "name": "t-2",
         "headers": {"message-id": b"t-2"}},
    ]  # fmt: skip
    rows = [{name: row.get(name) for name in ("due_ms", "topic", "payload", *empty)} for row in expected]
    assertDataFrameEqual(found.messages, spark.createDataFrame([tuple(row.values()) for row in rows], schema))
    rejects = {row.source: row.reason for row in found.rejects.collect()}
    assert rejects.keys() == {f"{files[0]}[0]", f"{files[1]}[2]"}


def test_rocketmqs_log_is_settled(spark: SparkSession, tmp_path: Path) -> None:
    log = (SAMPLES / "rocketmq_timer.jsonl").read_text()
    rolled = log.splitlines()[0].replace('"queueOffset":0', '"queueOffset":9')
    (tmp_path / "0").write_text(f"{log}{rolled}\n")
    found = from_documents(read_documents(spark, [str(tmp_path)], by_line=True), RocketOptions(1_795_326_200_000).read)
    messages, rejects = divided(reject_repeats(found))
    assert sorted(bytes(row.payload) for row in messages.collect()) == [b"\x00\xff\x80", b'{"order": 17}']
    assert sorted(row.reason for row in rejects.collect()) == [
        "it was due before the export was made: RocketMQ has delivered it", "it was taken back",
        "no message: it takes back another one", "the same message stands there again",
    ]  # fmt: skip


def test_rocketmqs_messages_without_a_unique_key_are_each_imported(spark: SparkSession, tmp_path: Path) -> None:
    """Such a message is like no other; what is rejected of them is told apart by its line."""
    properties = {"REAL_TOPIC": "orders", "TIMER_OUT_MS": "1900000000000"}
    lines = [orjson.dumps({"properties": properties, "body": "AAAA"}).decode() for _ in range(5)]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, "{}"]))
    (tmp_path / "b.jsonl").write_text("\n\nnot JSON\n" + lines[0])
    paths = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    found = from_documents(read_documents(spark, paths), RocketOptions(1_800_000_000_000).read)
    messages, rejects = divided(reject_repeats(found))
    assert messages.count() == 6
    assert sorted(row.source for row in rejects.collect()) == [f"{paths[0]}:6", f"{paths[1]}:3"]


def test_a_line_has_its_number_although_its_file_is_read_by_several_tasks(spark: SparkSession, tmp_path: Path) -> None:
    (folder := tmp_path / "a + b%20").mkdir()
    numbers = {name: range(1, count) for name, count in (("long.jsonl", 3_000), ("short.jsonl", 40), ("one.jsonl", 2))}
    for name, lines in numbers.items():
        (folder / name).write_text("\n".join("" if n % 7 == 0 else f"{name} {n}" for n in lines))
    before = spark.conf.get("spark.sql.files.maxPartitionBytes")
    spark.conf.set("spark.sql.files.maxPartitionBytes", "2000")
    try:
        rows = read_documents(spark, [str(folder)], by_line=True)
        found = rows.unionByName(rows).distinct().collect()
        assert rows.rdd.getNumPartitions() > 10
    finally:
        spark.conf.set("spark.sql.files.maxPartitionBytes", str(before))
    assert sorted((row.source, row.value) for row in found) == sorted(
        (f"{folder}/{name}:{n}", f"{name} {n}") for name, lines in numbers.items() for n in lines if n % 7
    )


def test_csv_columns_are_mapped_and_bad_lines_are_rejected_with_the_reason(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "at;queue;body;meta;header.x;labels;order;until\n"
        '1830297600000;orders;"two ""quoted""\nlines; one field";{"a": "b", "x": "json"};own;red, blue;o-1;\n'
        "2028-01-01T00:00:00.0005+01:00;orders;;;;;;2028-01-02T00:00:00Z\n"
        "2028-07-01 12:00:00;orders;naive;;;;;\n"
        "soon;orders;no time;;;;;\n"
        ";orders;empty;;;;;\n"
        "1830297600000;or ders;bad topic;;;;;\n"
        "1830297600000;orders;bad headers;[1];;;;\n"
        '1830297600000;orders;header twice;{"a": "1", "a": "2"};;;;\n'
        "1830297600000;orders;bad end;;;;;never\n"
        "1830297600000;orders\n"
    )
    columns = Columns(
        "at", "body", topic="queue", headers="meta", labels="labels", key="order", name="order", expires="until",
        header_prefix="header.",
    )  # fmt: skip
    rows = read_csv(spark, [str(tmp_path / "a.csv")], separator=";")
    messages, rejects = divided(from_csv(rows, columns))
    first, second = sorted(messages.collect(), key=lambda row: -len(row.payload))
    assert (first.due_ms, first.topic, bytes(first.key), first.name) == (1830297600000, "orders", b"o-1", "o-1")
    assert bytes(first.payload) == b'two "quoted"\nlines; one field' and first.labels == ["red", "blue"]
    assert {name: bytes(value) for name, value in first.headers.items()} == {"a": b"b", "x": b"own"}
    assert (second.due_ms, second.expires_ms, bytes(second.payload)) == (1830294000001, 1830384000000, b"")
    assert (second.key, second.headers, second.labels, second.name) == (None, {}, [], None)
    no_time = "is neither epoch ms nor a date-time with a zone (RFC 3339)"
    assert sorted(row.reason for row in rejects.collect()) == [
        "due_ms (column at): '2028-07-01 12:00:00' has no time zone, and none is given for such times",
        f"due_ms (column at): 'soon' {no_time}", "due_ms (column at): is null; every message needs one",
        f"expires_ms (column until): 'never' {no_time}", "headers (column meta): '[1]' is no JSON object",
        "headers (column meta): a name is there twice", "the line has too few or too many columns",
        "topic (column queue): 'or ders' is not the name of a topic",
    ]  # fmt: skip
    short = rejects.where("reason LIKE 'the line%'").collect()[0]
    assert (short.source, short.raw) == (str(tmp_path / "a.csv"), "1830297600000;orders")


def test_csv_of_seconds_and_base64(spark: SparkSession) -> None:
    texts = [("1830297600", "AAH/"), ("1830297600", "?"), ("9" * 18, ""), ("1830297601", ""), ("1830297600", "AAH/\n")]
    rows = spark.createDataFrame(texts, "t string, b string")
    found = divided(from_csv(rows, Columns("t", "b", to="orders", unit="s", payload_base64=True)))
    good = {row.due_ms: bytes(row.payload) for row in found.messages.collect()}
    assert good == {1830297600000: b"\x00\x01\xff", 1830297601000: b""}
    assert sorted(row.reason for row in found.rejects.collect()) == [
        "due_ms (column t): '999999999999999999' is neither epoch s nor a date-time with a zone (RFC 3339)",
        "payload (column b): '?' is not base64", "payload (column b): 'AAH/\n' is not base64",
    ]  # fmt: skip


def test_csv_columns_that_are_missing_are_named(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("due,source\n1830297600000,crm\n")
    rows = read_csv(spark, [str(tmp_path / "a.csv")])
    with pytest.raises(BadInput, match=r"column topic \(topic\) is not there; there are due, source$"):
        from_csv(rows, Columns("due", "source", topic="topic"))
    (message,) = divided(from_csv(rows, Columns("due", "source", to="t"))).messages.collect()
    assert bytes(message.payload) == b"crm"
    with pytest.raises(BadInput, match="cannot be read"):
        read_csv(spark, ["no-such-file.csv"])
    with pytest.raises(BadInput, match="cannot be read"):
        read_documents(spark, ["no-such-file.json"])


def test_a_redis_is_read_whole(spark: SparkSession, redis_url: str) -> None:
    import redis

    prefix = f"{token_hex(4)}:"
    with redis.Redis.from_url(redis_url) as connection:
        connection.hset(f"{prefix}unacked", mapping={f"tag{at}": orjson.dumps(["m", "", at]) for at in range(1500)})
        connection.rpush(f"{prefix}mail", *(f"m{at}" for at in range(1100)))
        connection.rpush(f"{prefix}mail\x06\x163", "urgent")
        connection.rpush(f"{prefix}celery", "other")
        found = {row.source: row.value for row in read_redis(spark, redis_url, ["mail"], prefix).collect()}
        assert len(found) == 1500 + 1101
        assert found[f"{prefix}unacked/tag7"] == '["m","",7]' and found[f"{prefix}mail[1099]"] == "m1099"
        assert found[f"{prefix}mail (priority 3)[0]"] == "urgent"
        assert read_redis(spark, redis_url, ["none"], "none:").count() == 0
    with pytest.raises(BadInput, match="not the URL of a Redis"):
        read_redis(spark, "nonsense")
    with pytest.raises(JobFailed, match="does not answer"):
        read_redis(spark, "redis://127.0.0.1:9/0")
