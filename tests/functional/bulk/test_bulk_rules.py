"""Which rows can be scheduled: what columns may be, each rule with its sentence, and agreement with the server."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from duemq.model.errors import BadDelayFile
from duemq.pipeline.bulk_change.job import TARGET, Targets
from duemq.pipeline.bulk_schedule.files import messages
from duemq.pipeline.bulk_schedule.rules import REASON, BulkRules, judged, reasons, rejected
from duemq.pipeline.columns import OWN, Columns
from duemq.pipeline.errors import BadInput
from duemq.storage.delay_files.columns import SCHEMA as FORM
from duemq.storage.imports.import_file import inspect
from duemq.storage.limits import ImportLimits
from tests.support.spark.bulk_rows import LIMITS, SCHEMA, rows
from tests.support.spark.spark_site import spark_tests

pytestmark = spark_tests
NOW = 1_830_297_600_000  # a full half hour
WINDOW = NOW + 1_800_000
ALL = Columns("due", "body", topic="topic", key="key", headers="headers", labels="labels", expires="expires")


def fields(frame: DataFrame, columns: Columns, **rules: Any) -> dict[str, Any]:
    """What is made of the first row, by field."""
    row = judged(frame, columns, BulkRules(**rules), NOW).first()
    assert row is not None
    found = row.asDict(recursive=True)
    return {name.removeprefix(OWN): value for name, value in found.items() if name.startswith(OWN)}


@pytest.mark.usefixtures("session_zone")
def test_a_due_time_is_a_timestamp_a_text_with_a_zone_or_a_number(spark: SparkSession) -> None:
    at = datetime.fromtimestamp(WINDOW / 1000, UTC)
    frame = spark.createDataFrame(
        [(at, WINDOW, "2028-01-01T00:30:00Z", "2028-01-01 01:30:00.000+01:00", str(WINDOW))],
        "a timestamp, b bigint, c string, d string, e string",
    ).withColumn("body", F.lit("x"))
    for name in "abcde":
        found = fields(frame, Columns(name, "body", to="orders"))
        assert (found["due_ms"], found["reason"]) == (WINDOW, None), name


@pytest.mark.usefixtures("session_zone")
def test_a_time_between_two_milliseconds_is_the_later_one(spark: SparkSession) -> None:
    texts = ["2028-01-01T00:30:00.000001Z", "2028-01-01T00:30:00.000000001Z", "9998-01-01T00:30:00.000001Z"]
    frame = spark.createDataFrame([tuple(texts)], "a string, b string, c string").withColumn("body", F.lit("x"))
    frame = frame.withColumns({name + "t": F.to_timestamp(name) for name in "ac"})
    for name in ("a", "at", "b"):
        assert fields(frame, Columns(name, "body", to="orders"))["due_ms"] == WINDOW + 1, name
    late = int(datetime(9998, 1, 1, 0, 30, tzinfo=UTC).timestamp()) * 1000 + 1
    for name in ("c", "ct"):
        assert fields(frame, Columns(name, "body", to="orders"))["due_ms"] == late, name


@pytest.mark.usefixtures("session_zone")
@pytest.mark.parametrize("text", ["tomorrow", "", "1e12", "2028-13-01T00:30:00Z", f"{WINDOW}\n"])
def test_a_text_that_is_no_time_is_rejected(spark: SparkSession, text: str) -> None:
    frame = spark.createDataFrame([(text, "x")], "at string, body string")
    reason = fields(frame, Columns("at", "body", to="orders"))["reason"]
    assert reason == f"due_ms (column at): '{text}' is neither epoch ms nor a date-time with a zone (RFC 3339)"


def test_what_a_payload_a_key_headers_and_labels_are_made_of(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [(WINDOW, 7, "A", None, {"h": "v"}, ["l", "m"])],
        "due bigint, number bigint, text string, nothing string, pairs map<string,string>, marks array<string>",
    )

    def of(**given: Any) -> dict[str, Any]:
        return fields(frame, Columns("due", **({"payload": "text", "to": "orders"} | given)))

    assert bytes(of()["payload"]) == b"A"
    assert bytes(of(payload=("number", "text", "nothing"))["payload"]) == b'{"number":7,"text":"A","nothing":null}'
    assert bytes(of(payload="pairs")["payload"]) == b'{"h":"v"}'
    assert bytes(of(key="number")["key"]) == b"7" and of()["key"] is None
    assert of(headers="pairs")["headers"] == [{"name": "h", "value": bytearray(b"v")}]
    several = {"x": "text", "y": "nothing", "z": "number"}
    assert of(headers=several)["headers"] == [
        {"name": "x", "value": bytearray(b"A")}, {"name": "z", "value": bytearray(b"7")}
    ]  # fmt: skip
    assert of(labels="marks")["labels"] == ["l", "m"] and of(labels=("text", "nothing"))["labels"] == ["A"]
    assert of(topic="text", to=None)["topic"] == "A" and of()["topic"] == "orders"
    assert of(name="number")["name"] == "7"


def test_headers_of_json_and_of_columns_that_are_named_so(spark: SparkSession) -> None:
    made = [
        (WINDOW, "x", '{"a": "1", "b": {"c": 2}, "d": null}', None, {"a": b"map"}),
        (WINDOW, "x", " ", "own", None),
        (WINDOW, "x", "{broken", None, None),
        (WINDOW, "x", None, None, None),
    ]
    frame = spark.createDataFrame(
        made, "due long, body string, json string, `header.a` string, pairs map<string,binary>"
    ).coalesce(1)

    def of(**given: Any) -> list[Any]:
        found = judged(frame, Columns("due", "body", to="orders", **given), BulkRules(), NOW)
        return [
            row[1] or [(one["name"], one["value"] and bytes(one["value"])) for one in row[0] or ()]
            for row in found.select(OWN + "headers", OWN + REASON).collect()
        ]

    null, bad = "headers (column json): the value of a header is null", "headers (column json): '{broken' is no JSON "
    assert of(headers="json") == [null, [], bad + "object", []]
    own = of(headers="json", header_prefix="header.")
    assert own == [null, [("a", b"own")], bad + "object", []]
    assert of(header_prefix="header.") == [[], [("a", b"own")], [], []]
    assert of(headers="pairs", header_prefix="header.") == [[("a", b"map")], [("a", b"own")], [], []]
    assert of(headers={"b": "body"}, header_prefix="header.")[1] == [("b", b"x"), ("a", b"own")]
    with pytest.raises(BadInput, match=r"header a is given twice: by column body and by header\.a"):
        of(headers={"a": "body"}, header_prefix="header.")


def test_labels_of_text_are_divided_at_commas(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(WINDOW, "x", "red, blue,,", None, "green")], "due long, body string, a string, "
                                  "b string, c string")  # fmt: skip
    given: dict[str, Any] = {"to": "orders"}
    assert fields(frame, Columns("due", "body", **given, labels="a"))["labels"] == ["red", "blue"]
    assert fields(frame, Columns("due", "body", **given, labels=("a", "b", "c")))["labels"] == ["red", "blue", "green"]
    assert fields(frame, Columns("due", "body", **given, labels="b"))["labels"] in (None, [])
    bad = frame.withColumn("a", F.expr("cast(X'61ff2c62' as string)"))
    assert fields(bad, Columns("due", "body", **given, labels="a"))["reason"] == (
        "labels (column a): a label is not UTF-8"
    )


def test_a_payload_may_be_base64(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(WINDOW, "AAH/"), (WINDOW, "?"), (WINDOW, None)], "due long, body string")
    columns = Columns("due", "body", to="orders", payload_base64=True)
    found = judged(frame.coalesce(1), columns, BulkRules(), NOW).select(OWN + "payload", OWN + REASON).collect()
    assert [(row[0] and bytes(row[0]), row[1]) for row in found] == [
        (b"\x00\x01\xff", None), (None, "payload (column body): '?' is not base64"),
        (None, "payload (column body): is null; every message needs one"),
    ]  # fmt: skip
    with pytest.raises(BadInput, match="base64 must be one column"):
        Columns("due", ("a", "b"), to="orders", payload_base64=True)


def test_the_name_of_a_column_may_be_any(spark: SparkSession, tmp_path: Path) -> None:
    """Backticks and dots in it are nothing but letters."""
    name = "`a.b` `"
    quoted = "`" + name.replace("`", "``") + "`"
    frame = spark.createDataFrame([("x",)], f"{quoted} string").withColumn("due", F.lit(WINDOW))
    columns = Columns("due", name, topic=name, key=name, headers={"h": name}, labels=name, name=name, order=(name,))
    told = judged(frame, columns, BulkRules(), NOW)
    (row,) = told.collect()
    assert bytes(row[OWN + "payload"]) == b"x"
    assert [row.topic for row in messages(told, columns, "j").collect()] == ["x"]
    due = frame.select(F.col("due").alias(name))
    assert fields(due, Columns(name, name, to="t", expires=name))["expires_ms"] == WINDOW
    assert [tuple(row) for row in Targets(name).of(frame).select(TARGET).collect()] == [("x",)]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"due": "nothing"}, "column nothing (due) is not there; there are due, body, at"),
        ({"due": "at"}, "column at (due) must be a timestamp, a date-time with a zone"),
        ({"payload": "at"}, "column at (payload) must be a string, binary or a whole number, not timestamp_ntz"),
        ({"key": "at"}, "column at (key) must be"),
        ({"topic": "due"}, "column due (topic) must be a string, not bigint"),
        ({"headers": "due"}, "column due (headers) must be a map of strings"),
        ({"payload": "due", "payload_base64": True}, "column due (payload) must be a string, not bigint"),
        ({"labels": "due"}, "column due (labels) must be a string"),
        ({"expires": "at"}, "column at (expires) must be"),
        ({"order": ("x",)}, "column x (order) is not there"),
    ],
)
def test_a_column_that_cannot_be_used_is_named(spark: SparkSession, given: dict[str, Any], says: str) -> None:
    frame = spark.sql("select 1L as due, 'x' as body, timestamp_ntz'2028-01-01' as at")
    with pytest.raises(BadInput) as wrong:
        judged(frame, Columns(**({"due": "due", "payload": "body", "topic": "body"} | given)), BulkRules(), NOW)
    assert str(wrong.value).startswith(says)
    with pytest.raises(BadInput, match="either a column for the topic"):
        Columns("due", "body")
    with pytest.raises(BadInput, match="column reason"):
        judged(frame.withColumn("reason", F.lit(1)), ALL, BulkRules(), NOW)
    with pytest.raises(BadInput, match="two columns of one name"):
        judged(frame.select("*", "body"), ALL, BulkRules(), NOW)


GOOD = (WINDOW, "orders", b"x", "k", [("h", b"v")], ["l"], None)
UNREAD = [
    (0, None, "due_ms (column due): is null; every message needs one"),
    (0, WINDOW - 1, f"due_ms (column due): {WINDOW - 1} is in a window that begins sooner than 600000 ms after {NOW}"),
    (0, NOW + 315_360_000_001, "due_ms (column due): 2145657600001 is more than 315360000000 ms after"),
    (1, None, "topic: is null"),
    (
        1,
        "or ders",
        "topic: must be 1 to 249 characters of A-Z a-z 0-9 . _ -, neither . nor .., and not begin with duemq.",
    ),
    (1, "buses", "topic: buses is not among the topics the server delivers to"),
    (2, None, "payload (column body): is null"),
    (2, b"x" * 41, "payload (column body): has 41 bytes, the limit is 40"),
    (3, "k" * 10, "key: has 10 bytes, the limit is 9"),
    (4, [("h", b"v")] * 4, "headers: 4 headers are given, the limit is 3"),
    (4, [None], "headers: a header is null"),
    (4, [(None, b"v")], "headers: the name of a header is null"),
    (4, [("h", None)], "headers: the value of a header is null"),
    (4, [("", b"v")], "headers: header names have 1 to 256 characters"),
    (4, [("DUEMQ-id", b"v")], "headers: the prefix duemq- of header names is duemq's own"),
    (4, [("h", b"v" * 60)], "headers: have 67 bytes, the limit is 60"),
    (5, ["l"] * 17, "labels: 17 labels are given, the limit is 16"),
    (5, [None], "labels: a label is null"),
    (5, ["a,b"], "labels: a label has 1 to 128 characters"),
    (6, WINDOW - 1, f"expires_ms (column expires): {WINDOW - 1} is before the message is due, {WINDOW}"),
    (6, 253_402_300_800_000, "expires_ms (column expires): 253402300800000 is after the year 9999"),
]


def test_null_is_sent_where_that_is_asked_for(spark: SparkSession) -> None:
    pairs = [("h", None), ("e", b"")]
    frame = spark.createDataFrame([(*GOOD[:2], None, *GOOD[3:4], pairs, *GOOD[5:])], SCHEMA).coalesce(1)
    told = judged(frame, replace(ALL, nulls=True), BulkRules(LIMITS), NOW)
    (row,) = told.select(OWN + REASON, OWN + "payload", OWN + "headers").collect()
    assert row[:2] == (None, None) and [tuple(one) for one in row[2]] == pairs
    assert "nulls" not in ALL.as_dict() and replace(ALL, nulls=True).as_dict()["nulls"]


def test_each_wrong_row_is_rejected_with_its_column_and_limit(spark: SparkSession) -> None:
    wrong = [(*GOOD[:at], value, *GOOD[at + 1 :]) for at, value, _ in UNREAD]
    frame = spark.createDataFrame([GOOD, *wrong], SCHEMA).coalesce(1)
    told = judged(frame, ALL, BulkRules(LIMITS), NOW)
    found = [row[0] for row in told.select(OWN + REASON).collect()]
    assert found[0] is None
    for reason, (_, _, sentence) in zip(found[1:], UNREAD, strict=True):
        assert (reason or "").startswith(sentence), (reason, sentence)
    apart = rejected(told)
    assert apart.columns == [*frame.columns, "reason"]
    assertDataFrameEqual(apart.drop("reason"), spark.createDataFrame(wrong, SCHEMA))
    assert {row.field: row.rows for row in reasons(told.where(F.col(OWN + REASON).isNotNull())).collect()} == {
        "due_ms": 3, "topic": 3, "payload": 2, "key": 1, "headers": 7, "labels": 3, "expires_ms": 2
    }  # fmt: skip


def test_rows_whose_name_is_not_theirs_alone_are_rejected(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a",), ("b",), ("b",), ("c",), (None,), (None,)], "n string")
    frame = frame.withColumns({"due": F.lit(WINDOW), "body": F.lit("x")})
    told = judged(frame, Columns("due", "body", to="orders", name="n"), BulkRules(), NOW)
    found = [(row.n, row[OWN + REASON]) for row in told.collect()]
    twice = "name (column n): 2 rows have it; names must be unique in a job"
    assert sorted(found, key=str) == sorted(
        [("a", None), ("b", twice), ("b", twice), ("c", None), (None, None), (None, None)], key=str
    )


def test_rows_that_are_not_utf8_are_rejected(spark: SparkSession) -> None:
    bad = F.expr("cast(X'61ff' as string)")
    frame = spark.range(1).select(
        F.lit(WINDOW).alias("due"), F.lit("orders").alias("topic"), F.lit("x").alias("body"), bad.alias("bad"),
        F.array(bad).alias("labels"), F.array(F.struct(bad.alias("name"), F.lit("v").alias("value"))).alias("headers"),
    )  # fmt: skip
    assert "must be 1 to 249" in fields(frame, Columns("due", "body", topic="bad"))["reason"]
    for field in ("labels", "headers"):
        given: dict[str, Any] = {field: field}
        reason = fields(frame, Columns("due", "body", topic="topic", **given))["reason"]
        assert reason.startswith(field) and reason.endswith("is not UTF-8")
    assert fields(frame, Columns("due", "body", to="o", name="bad"))["reason"] == "name (column bad): is not UTF-8"
    assert bytes(fields(frame, Columns("due", "bad", to="o"))["payload"]) == b"a\xff"


def test_a_row_is_accepted_by_spark_if_and_only_if_the_server_takes_it(spark: SparkSession, tmp_path: Path) -> None:
    made = rows(WINDOW, 1_500)
    frame = spark.createDataFrame(made, SCHEMA).coalesce(1)
    told = judged(frame, replace(ALL, nulls=True), BulkRules(LIMITS), NOW).select(OWN + REASON).collect()
    path, limits = (
        tmp_path / "one.parquet",
        ImportLimits(**{n: getattr(LIMITS, n) for n in LIMITS.__dataclass_fields__}),
    )
    nullable = pa.schema([field.with_nullable(True) for field in FORM])
    counts = [0, 0]
    for (due, topic, body, key, headers, labels, expires), (reason,) in zip(made, told, strict=True):
        pairs = None if headers is None else [one and {"name": one[0], "value": one[1]} for one in headers]
        message = {
            "due_ms": due, "topic": topic, "payload": body, "key": key and key.encode(), "headers": pairs,
            "labels": labels, "expires_ms": expires,
        }  # fmt: skip
        pq.write_table(pa.Table.from_pylist([message], nullable), path)
        try:
            inspect(path, limits)
            taken = True
        except BadDelayFile as error:
            taken, why = False, str(error)
        assert taken == (reason is None), (message, reason, None if taken else why)
        counts[taken] += 1
    assert min(counts) > 300, "the rows of this test are too much alike"


def test_numbers_that_json_does_not_have_are_rejected(spark: SparkSession) -> None:
    frame = spark.sql(
        "SELECT id, float('NaN') AS a, array(named_struct('x', 1.5D)) AS b, map('k', 1.0D) AS m FROM range(1) "
        "UNION ALL "
        "SELECT 1, 1.0F, array(named_struct('x', double('-Infinity'))), NULL UNION ALL "
        "SELECT 2, 1.0F, NULL, map('k', double('NaN'), 'l', 2.0D) UNION ALL SELECT 3, 1.0F, array(NULL), map('k', NULL)"
    ).withColumn("due", F.lit(NOW + 86_400_000))
    rows = judged(frame, Columns("due", ("a", "b", "m"), to="t"), BulkRules(), NOW).orderBy("id").collect()
    said = "payload (column a, b, m): NaN and Infinity are no numbers in JSON"
    assert [row[OWN + REASON] for row in rows] == [said, said, said, None]


def test_whole_numbers_of_other_databases(spark: SparkSession) -> None:
    frame = spark.sql(f"SELECT CAST({NOW + 86_400_000} AS DECIMAL(38, 0)) AS due, CAST(12 AS DECIMAL(38, 0)) AS id "
                      "UNION ALL SELECT CAST(1e37 AS DECIMAL(38, 0)), 13")  # fmt: skip
    rows = judged(frame, Columns("due", "id", to="t", key="id", name="id"), BulkRules(), NOW).orderBy("id").collect()
    good, bad = ({name: row[OWN + name] for name in ("due_ms", "key", "name", REASON)} for row in rows)
    assert good == {"due_ms": NOW + 86_400_000, "key": b"12", "name": "12", REASON: None}
    assert "is out of range" in str(bad[REASON])


def test_a_column_that_the_rejects_need_is_refused_however_it_is_spelt(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a", 1, "r")], "id string, due bigint, Reason string")
    with pytest.raises(BadInput, match=r"column Reason: .*rename yours"):
        judged(frame, Columns("due", "id", to="t"), BulkRules(), 0)
