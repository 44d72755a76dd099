"""Imported files as the audit reads them: from any path, of any types that duemq takes, and where they are gone."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from duemq.model.messages.message import Draft, schedule_frame
from duemq.model.messages.record import pack_headers
from duemq.model.timing import WINDOW_MS
from duemq.pipeline.audit.imported import AuditedFile, looked_at, rows_of
from duemq.pipeline.logs.logs import commands
from tests.support.spark.java import query_of
from tests.support.spark.log_frames import kafka_frame, record
from tests.support.spark.spark_site import spark_tests

pytestmark = spark_tests

WINDOW = 1_800_000_000_000


def imported(path: Path, offset: int = 7, rows: int = 3) -> AuditedFile:
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return AuditedFile(2, offset, rows, WINDOW - 9, str(path), WINDOW, len(content), digest)


def write(path: Path, **columns: Any) -> Path:
    plain = {"due_ms": [WINDOW, WINDOW + 1, WINDOW + 2], "topic": ["a", "b", "a"], "payload": [b"1", b"", b"3"]}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(plain | columns), path)
    return path


@pytest.mark.parametrize("folder", ["plain", "a stage", "gr[1]", "50%25", "a+b", "{x,y}", "*", "ümläut", "q?#"])
def test_paths_of_all_kinds(spark: SparkSession, tmp_path: Path, folder: str) -> None:
    file = imported(write(tmp_path / folder / "x.parquet"))
    assert looked_at(spark, [file]) == [file]
    rows = sorted(tuple(row) for row in rows_of(spark, [file]).drop("content", "metadata").collect())
    assert rows == [(2, 7, n, WINDOW + n, WINDOW - 9, topic, False) for n, topic in enumerate(("a", "b", "a"))]


def test_files_that_are_not_what_was_imported(spark: SparkSession, tmp_path: Path) -> None:
    files = [imported(write(tmp_path / f"{n}.parquet"), n) for n in range(4)]
    Path(files[1].path).unlink()
    Path(files[2].path).write_bytes(b"short")
    raw = bytearray(Path(files[3].path).read_bytes())
    raw[20] ^= 1
    Path(files[3].path).write_bytes(raw)
    told = looked_at(spark, files)
    assert [file.why_not for file in told] == [
        "", "No such file or directory", "it has another size now", "it has other content now",
    ]  # fmt: skip
    assert looked_at(spark, []) == []
    found = rows_of(spark, told).groupBy("offset", "counted").count().collect()
    assert sorted(tuple(row) for row in found) == [(0, False, 3), (1, True, 3), (2, True, 3), (3, True, 3)]


def test_files_that_are_gone_are_one_frame(spark: SparkSession, tmp_path: Path) -> None:
    gone = replace(imported(write(tmp_path / "x.parquet")), why_not="gone")
    files = [replace(gone, offset=n, rows=n % 3, window=WINDOW + n * WINDOW_MS) for n in range(400)]
    frame = rows_of(spark, files)
    plan = str(query_of(frame).analyzed())
    assert plan.count("LogicalRDD") + plan.count("LocalRelation") <= 4, "no plan for each file"
    rows = frame.collect()
    assert len(rows) == sum(n % 3 for n in range(400)) and all(row.counted for row in rows)
    assert {(row.offset, row.row, row.due) for row in rows} == {
        (n, row, WINDOW + n * WINDOW_MS + WINDOW_MS - 1) for n in range(400) for row in range(n % 3)
    }
    assert rows[0].topic is None and rows[0].content is None and rows[0].metadata is None


def headers_as(kind: str) -> pa.Array:
    if kind == "map":
        return pa.array([[("h", b"1"), ("", b"")], [], None], pa.map_(pa.string(), pa.binary()))
    value = pa.string() if kind == "text" else pa.binary()
    one = pa.struct([("name", pa.string()), ("value", value)])
    texts = [[{"name": "h", "value": "1"}, {"name": "", "value": ""}], [], None]
    return pa.array(texts if kind == "text" else [
        None if row is None else [{"name": one["name"], "value": one["value"].encode()} for one in row] for row in texts
    ], pa.list_(one))  # fmt: skip


@pytest.mark.parametrize("kind", ["list", "text", "map"])
def test_what_goes_with_a_payload_is_hashed_as_that_of_a_command(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    keys = pa.array(["k", None, ""]) if kind == "text" else pa.array([b"k", None, b""])
    topics = pa.array(["a", "b", "a"]).dictionary_encode() if kind == "map" else ["a", "b", "a"]
    file = imported(write(
        tmp_path / "x.parquet", topic=topics, key=keys, headers=headers_as(kind), labels=[["x", "ü"], None, []],
        payload=pa.array(["1", "", "3"]) if kind == "text" else [b"1", b"", b"3"],
    ))  # fmt: skip
    packed = pack_headers([("h", b"1"), ("", b"")])
    drafts = [
        Draft("a", b"1", key=b"k", labels=("x", "ü"), header_count=packed[0], headers=packed[1]), Draft("b", b""),
        Draft("a", b"3", key=b""),
    ]  # fmt: skip
    sent = [record("duemq.buffer", 2, n, 5, schedule_frame(draft, WINDOW + n)) for n, draft in enumerate(drafts)]
    names = ("due", "topic", "content", "metadata")
    as_commands = commands(kafka_frame(spark, sent)).select(*names).orderBy("due").collect()
    as_rows = rows_of(spark, [file]).select(*names).orderBy("due").collect()
    assert as_rows == as_commands and len({row.metadata for row in as_rows}) == 3
