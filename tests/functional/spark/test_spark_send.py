"""Rows as commands: what the server reads in them, what is rejected, and to which shard they go."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from duemq.model.messages import plain
from duemq.model.messages.names import of_client, shard_of_name
from duemq.model.messages.plain import MalformedRecord
from duemq.model.topics.rules import NAME_RULE
from duemq.pipeline.bulk_schedule.rules import REASON, BulkRules, judged, rejected
from duemq.pipeline.columns import OWN, Columns
from duemq.pipeline.columns.instants import LONG_PAST
from duemq.pipeline.errors import BadInput
from duemq.pipeline.logs.kafka import configured
from duemq.pipeline.send import commands_of, rejects_of, send_stream, sendable, shard_of
from duemq.pipeline.send.buffer_topic import sink_options
from duemq.pipeline.send.rules import TIME_HEADERS
from duemq.pipeline.send.twice import look, without_ambiguous
from tests.support.spark.bulk_rows import LIMITS, SCHEMA
from tests.support.spark.send_rows import NOW, meant, rows, wished, written_down
from tests.support.spark.spark_site import spark_tests

pytestmark = spark_tests
ALL = Columns(
    "due", "body", topic="topic", key="key", headers="headers", labels="labels", expires="expires", name="name"
)
NAMED = T.StructType([*SCHEMA.fields, T.StructField("name", T.StringType())])
SHARDS = 7


def test_a_name_s_shard_is_that_of_the_server(spark: SparkSession) -> None:
    draw = random.Random(3)
    letters = "abcXYZ019._:-" * 3 + "éß日本😀\u0000 \n'\"\ud7ff\ufffd"
    names = ["".join(draw.choices(letters, k=draw.randrange(0, 140))) for _ in range(10_000)]
    columns = {f"of_{shards}": shard_of(F.col("name"), shards) for shards in (1, 2, 3, 16, 64, 65_535)}
    frame = spark.createDataFrame([(name,) for name in names], "name string").select("name", *(
        column.alias(alias) for alias, column in columns.items()
    ))  # fmt: skip
    assert {frame.schema[alias].dataType for alias in columns} == {T.IntegerType()}
    found = frame.collect()
    assert len(found) == len(names)
    for row in found:
        for alias in columns:
            assert row[alias] == shard_of_name(of_client(row.name), int(alias[3:])), (row.name, alias)


def test_the_server_reads_what_the_row_says_or_the_row_is_rejected(spark: SparkSession) -> None:
    """Both ways: what is sent is read as it was meant, and what only these rules reject would not have been."""
    given = rows(3_000)
    frame = spark.createDataFrame(given, NAMED).coalesce(1).cache()
    rules = BulkRules(LIMITS)
    by_row = {repr(row): row for row in given}
    sent = 0
    records = commands_of(frame, ALL, SHARDS, rules, NOW, past=True)
    assert records.columns == ["key", "value", "headers", "partition", "topic"]
    told = [row.asDict() for row in sendable(frame, ALL, rules, NOW, past=True).select(OWN + REASON).collect()]
    reasons = [one[OWN + REASON] for one in told]
    good = [row for row, reason in zip(given, reasons, strict=True) if reason is None]
    for row, record in zip(good, records.collect(), strict=True):
        assert record.topic == "duemq.buffer"
        assert meant(record, SHARDS) == wished(row)
        sent += 1
    assert 500 < sent < len(given) and len(by_row) == len(given)
    # The rules of bulk schedule alone, without its lead: what they let pass and these do not.
    others = judged(frame, Columns("due", "body", topic="topic", key="key", headers="headers", labels="labels",
                                   expires="expires"), BulkRules(LIMITS, lead_ms=-NOW), NOW)  # fmt: skip
    others_reasons = [row[0] for row in others.select(OWN + REASON).collect()]
    own = {row: reason for row, reason, other in zip(map(repr, given), reasons, others_reasons, strict=True)
           if reason is not None and other is None}  # fmt: skip
    assert len(own) > 200
    for text, reason in own.items():
        row = by_row[text]
        read = written_down(row)
        assert isinstance(read, MalformedRecord) or read != wished(row) or row[-1] is None, (row, reason)
    for row, reason, other in zip(given, reasons, others_reasons, strict=True):
        assert other is None or reason is not None, row
    kinds = {reason.partition(":")[0] for reason in own.values()}
    assert kinds == {"name", "headers", "labels", "expires_ms (column expires)"}
    frame.unpersist()


def one(spark: SparkSession, **given: Any) -> str | None:
    """Why a row with these is rejected."""
    values = {"due": NOW, "topic": "t", "body": b"x", "key": None, "headers": None, "labels": None, "expires": None,
              "name": "n"} | given  # fmt: skip
    row = sendable(spark.createDataFrame([tuple(values.values())], NAMED), ALL, now=NOW).first()
    assert row is not None
    reason: str | None = row[OWN + REASON]
    return reason


def test_a_reason_names_the_column_and_the_rule(spark: SparkSession) -> None:
    assert one(spark) is None and one(spark, expires=NOW, labels=["a b"]) is None
    for lost in (0, -1):
        assert one(spark, due=lost) == f"due_ms (column due): '{lost}' is before March 1973: a time that got lost"
    seconds = f"due_ms (column due): '{NOW // 1000}' looks like seconds; ms are {NOW}"
    assert one(spark, due=NOW // 1000) == seconds
    assert one(spark, due=NOW - 86_400_000) is None
    assert one(spark, due=NOW - 86_400_001) == f"due_ms (column due): {NOW - 86_400_001} {LONG_PAST}"
    assert one(spark, name=None) == "name: is null; every message needs one"
    assert one(spark, name="a b/é") is None and one(spark, name="a\nb") == f"name: must have {NAME_RULE}, not 'a\nb'"
    assert one(spark, name="é" * 100) is None and (one(spark, name="é" * 101) or "").startswith("name: must have")
    assert one(spark, due=NOW - 9, expires=NOW - 1) == f"expires_ms (column expires): {NOW - 1} has passed"
    assert one(spark, labels=["a", "b\u00a0"]) == "labels: a label must not begin or end with a space"
    said = "headers: x-delay and DELAY say when a record is due: no headers of a message"
    assert one(spark, headers=[("DELAY", b"1")]) == said and one(spark, headers=[("x-delay", b"")]) == said
    assert one(spark, headers=[("X-Delay", b"1")]) is None
    assert (one(spark, headers=[("Duemq-x", b"1")]) or "").startswith("headers: the prefix duemq-")
    assert set(TIME_HEADERS) == {name for name in plain._OURS if not name.startswith(plain.RESERVED)}


def test_what_cannot_be_sent_at_all_is_refused(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1, "x", 1.5)], "due bigint, body string, part double")
    for name, sentence in ((None, "a column of names is missing"), ("part", "must be a string"), ("no", "not there")):
        with pytest.raises(BadInput, match=sentence):
            commands_of(frame, Columns("due", "body", to="t", name=name), 1)
    with pytest.raises(BadInput, match="one shard or more"):
        commands_of(frame, Columns("due", "body", to="t", name="due"), 0)
    with pytest.raises(BadInput, match="is not a stream"):
        send_stream(frame, Columns("due", "body", to="t", name="due"), "nowhere:1", "/c", rejects=None)
    numbers = spark.createDataFrame([(NOW, "x")], "due bigint, body string")
    number = commands_of(numbers, Columns("due", "body", to="t", name="due"), 5).first()
    assert number is not None and number.headers[1] == ("duemq-name", str(NOW).encode()) and number.key is None


def test_columns_that_are_named_so_are_headers_too(spark: SparkSession) -> None:
    made = [(NOW, b"x", "n-1", "crm", None), (NOW, b"x", "n-2", None, "1")]
    frame = spark.createDataFrame(
        made, "due long, body binary, name string, `header.from` string, `header.DELAY` string"
    )
    columns = Columns("due", "body", to="orders", name="name", header_prefix="header.")
    (record,) = commands_of(frame, columns, 1).collect()
    assert record.headers[3:] == [("from", b"crm")]
    (reject,) = rejects_of(frame, columns).collect()
    assert reject.name == "n-2" and "x-delay and DELAY say when a record is due" in reject.reason


def test_rejects_have_their_own_columns_and_a_reason(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [(NOW, "x", "a"), (NOW, "y", None), (None, "z", "b")], "due bigint, b string, n string"
    )
    found = rejects_of(frame, Columns("due", "b", to="t", name="n"), now=NOW)
    assert found.columns == ["due", "b", "n", "reason"]
    assert sorted((row.b, row.reason[:9]) for row in found.collect()) == [("y", "name (col"), ("z", "due_ms (c")]


def ambiguous(frame: DataFrame, **more: Any) -> list[tuple[Any, ...]]:
    columns = Columns("due", "body", to="t", key="key", name="name")
    told = without_ambiguous(sendable(frame, columns, now=NOW), columns, **more)
    counted = (frame.count(), rejected(told).count(), 0, 0)
    assert look(told, NOW - 1, names=False) == look(told, NOW - 1)._replace(repeated=0) == counted
    assert not [name for name in told.columns if name.startswith(OWN) and name[len(OWN) :] in ("of", "rows", "least")]
    return sorted((tuple(row) for row in rejected(told).collect()), key=repr)


def test_rows_of_one_name_that_differ_are_rejected_and_equal_ones_are_not(spark: SparkSession) -> None:
    schema = "due bigint, body string, key string, name string"
    unlike = [(NOW, "x", None, "two"), (NOW, "y", None, "two"), (NOW, "x", "k", "key"), (NOW, "x", None, "key"),
              (NOW + 1, "x", None, "due"), (NOW, "x", None, "due")]  # fmt: skip
    alike = [(NOW, "x", None, "same")] * 3
    bad = [(None, "x", None, "one"), (NOW, "x", None, "one"), (NOW, "x", None, None), (NOW, "y", None, None)]
    frame = spark.createDataFrame([*unlike, *alike, *bad], schema)
    found = ambiguous(frame)
    sentence = "name: 2 rows have it and differ; a name stands for one message"
    assert {row[:-1] for row in found if row[-1] == sentence} == set(unlike)
    assert len(found) == len(unlike) + 3
    strictly = ambiguous(frame, equal=False)
    assert [row[:-1] for row in strictly if row[-1] == "name: 3 rows have it; a name stands for one message"] == alike
    assert len(strictly) == len(unlike) + 3 + 3
    clean = spark.createDataFrame([(NOW, "x", None, f"n{n}") for n in range(5)], schema)
    assert ambiguous(clean) == []
    columns = Columns("due", "body", to="t", name="name")
    repeated = [look(sendable(one, columns, now=NOW), NOW) for one in (frame, clean)]
    assert repeated == [(len(unlike) + 7, 3, len(unlike) + 3, 5), (5, 0, 5, 0)]
    assert look(sendable(clean.limit(0), columns, now=NOW), NOW) == (0, 0, 0, 0)


def test_kafka_is_told_to_wait_for_all_replicas_and_to_log_in(tmp_path: Path) -> None:
    settings = {"protocol": "SASL_PLAINTEXT", "mechanism": "PLAIN", "user": "u", "password": "p"}
    options = sink_options(configured("a:1,b:2", settings, {}))
    assert options["kafka.bootstrap.servers"] == "a:1,b:2" and "PlainLoginModule" in options["kafka.sasl.jaas.config"]
    assert (options["kafka.acks"], options["kafka.enable.idempotence"]) == ("all", "true")
    assert all(name.startswith("kafka.") for name in options) and "kafka.isolation.level" not in options
