"""What was exported from other systems, as bulk schedule reads it: rows of the programs in `examples`, and CSV."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from duemq.pipeline.bulk_schedule.rules import REASON, BulkRules, judged
from duemq.pipeline.columns import OWN, Columns
from duemq.pipeline.logs.tables import read_table
from tests.support.examples import example
from tests.support.spark.spark_site import spark_tests

pytestmark = spark_tests
SAMPLES = Path(__file__).parents[2] / "samples" / "imports"
NOW = 1_795_250_000_000


def messages(table: DataFrame, columns: Columns) -> tuple[list[tuple[object, ...]], list[str]]:
    """What becomes of the rows: due time, topic, payload, key, headers, labels, expiry and name; and why not."""
    rows = judged(table, columns, BulkRules(), NOW).collect()
    found = [
        (
            row[OWN + "due_ms"], row[OWN + "topic"], bytes(row[OWN + "payload"] or b""), row[OWN + "key"],
            {header["name"]: bytes(header["value"]) for header in row[OWN + "headers"] or ()},
            row[OWN + "labels"], row[OWN + "expires_ms"], row.asDict().get(OWN + "name"),
        )
        for row in rows
        if row[OWN + REASON] is None
    ]  # fmt: skip
    return sorted(found, key=str), sorted(row[OWN + REASON] for row in rows if row[OWN + REASON] is not None)


def test_what_waits_in_rabbitmq_becomes_messages(spark: SparkSession, tmp_path: Path) -> None:
    """With the options that the program names in its first lines."""
    rows = example("pending_rows")
    paths = [str(SAMPLES / name) for name in ("rabbitmq_delayed.jsonl", "rabbitmq_get_waiting.json")]
    rows.write_rows(
        lambda: rows.read_documents(paths), example("from_rabbitmq").RabbitMQ().read, tmp_path / "pending.jsonl"
    )
    columns = Columns(
        "due_ms", "payload", topic="topic", key="key", headers="headers", labels="labels", expires="expires_ms",
        name="name", payload_base64=True, header_prefix="header.",
    )  # fmt: skip
    found, reasons = messages(read_table(spark, str(tmp_path / "pending.jsonl"), corrupt=True), columns)
    own = {
        "content-type": b"application/json", "correlation-id": b"c-1", "message-id": b"m-1", "customer": b"17",
        "score": b"1.5", "tries": b"3", "vip": b"true",
    }  # fmt: skip
    assert found == [
        (1795255205000, "waiting", b"\x00\xff", None, {"message-id": b"t-2"}, [], None, "t-2"),
        (1795411029863, "reminders.eu", b'{"order": 17}', None, own, [], None, "m-1"),
        (1795414629920, "reminders", "grüß".encode(), None, {}, [], 1795418229920, None),
        (1795497429898, "reminders.us", b"\x00\x01\xff\x80", None, {}, [], None, None),
        (1795860000000, "waiting", b"by ttl", None, {"a": b"b"}, [], None, None),
    ]
    assert reasons == []


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
    columns = Columns(
        "at", "body", topic="queue", headers="meta", labels="labels", key="order", name="order", expires="until",
        header_prefix="header.", nulls=True,
    )  # fmt: skip
    table = read_table(spark, str(tmp_path / "a.csv"), None, {"sep": ";"}, corrupt=True)
    found, reasons = messages(table, columns)
    assert found == [
        (1830294000001, "orders", b"", None, {}, [], 1830384000000, None),
        (1830297600000, "orders", b"header twice", None, {"a": b"2"}, [], None, None),
        (1830297600000, "orders", b'two "quoted"\nlines; one field', b"o-1", {"a": b"b", "x": b"own"}, ["red", "blue"],
         None, "o-1"),
    ]  # fmt: skip
    no_time = "is neither epoch ms nor a date-time with a zone (RFC 3339)"
    assert [reason.partition(" must be")[0] for reason in reasons] == [
        "due_ms (column at): '2028-07-01 12:00:00' has no time zone, and none is given for such times",
        f"due_ms (column at): 'soon' {no_time}", "due_ms (column at): is null; every message needs one",
        f"expires_ms (column until): 'never' {no_time}", "headers (column meta): '[1]' is no JSON object",
        "the line has too few or too many columns", "topic (column queue):",
    ]  # fmt: skip


def test_csv_of_seconds_and_base64(spark: SparkSession) -> None:
    texts = [("1830297600", "AAH/"), ("1830297600", "?"), ("9" * 18, ""), ("1830297601", ""), ("1830297600", "AAH/\n")]
    rows = spark.createDataFrame(texts, "t string, b string")
    found, reasons = messages(rows, Columns("t", "b", to="orders", unit="s", payload_base64=True))
    assert [row[:3] for row in found] == [
        (1830297600000, "orders", b"\x00\x01\xff"), (1830297601000, "orders", b"")
    ]  # fmt: skip
    assert reasons == [
        "due_ms (column t): '999999999999999999' is neither epoch s nor a date-time with a zone (RFC 3339)",
        "payload (column b): '?' is not base64", "payload (column b): 'AAH/\n' is not base64",
    ]  # fmt: skip
