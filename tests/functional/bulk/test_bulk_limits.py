"""Rows are judged by what the server accepts: what it would refuse later is a reject before anything is handed over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from duemq.client import Admin
from duemq.client.http.values import Limits
from duemq.model.timing import WINDOW_MS
from duemq.pipeline.bulk_schedule.job import Options, schedule
from duemq.pipeline.bulk_schedule.manifest import JobFolder
from duemq.pipeline.bulk_schedule.rules import BulkRules
from duemq.pipeline.columns import Columns
from duemq.pipeline.errors import BadInput, RowsRejected
from duemq.pipeline.logs.server import Server
from tests.e2e.server import Server as Process
from tests.support.spark.spark_site import spark_tests

pytestmark = spark_tests
COLUMNS = Columns("due", "body", topic="topic")


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A server that delivers to `orders` only, payloads of ten bytes, an hour and a half ahead."""
    folder = tmp_path_factory.mktemp("tight")
    stage = folder / "stage"
    stage.mkdir()
    said = (
        f"delay_files.import_from={stage}",
        "topics.allowed=orders",
        "limits.max_payload_bytes=10",
        "limits.max_delay=150m",
    )
    with Process(folder / "data", *(word for one in said for word in ("--set", one))) as server:
        server.start()
        yield server.url, stage
        assert server.stop() == 0


def table(spark: SparkSession) -> DataFrame:
    due = (int(time.time() * 1000) // WINDOW_MS + 2) * WINDOW_MS
    rows = [(due, "orders", "short"), (due, "mails", "short"), (due, "orders", "eleven byte"),
            (due + 4 * WINDOW_MS, "orders", "late")]  # fmt: skip
    return spark.createDataFrame(rows, "due bigint, topic string, body string")


def test_rows_that_the_server_would_refuse_are_rejects(spark: SparkSession, tight: tuple[str, Path]) -> None:
    url, stage = tight
    done = schedule(table(spark), COLUMNS, "tight", Options(stage), Server(url), source="a table")
    assert (done.manifest.accepted, done.manifest.rejected) == (1, 3)
    rejects = spark.read.parquet(f"file://{done.manifest.rejects}").collect()
    reasons = {row.body if row.topic == "orders" else row.topic: row.reason for row in rejects}
    assert "not among the topics the server delivers to" in reasons["mails"]
    assert "the limit is 10" in reasons["eleven byte"]
    assert "is more than 9000000 ms after" in reasons["late"]
    with Admin(url) as client:
        assert [one.state for one in client.imports()] == ["imported"]


def test_a_strict_job_of_such_rows_schedules_nothing(spark: SparkSession, tight: tuple[str, Path]) -> None:
    url, stage = tight
    with Admin(url) as client:
        before = len(client.imports())
        with pytest.raises(RowsRejected):
            schedule(table(spark), COLUMNS, "strict", Options(stage, strict=True), Server(url), source="a table")
        assert len(client.imports()) == before


def test_a_lead_below_the_servers_is_refused() -> None:
    limits = Limits(1, (), 1, 1, 1, 1, 1, 1, 1, True, 1, 1, 120_000)
    assert BulkRules.of(limits, 120_000).lead_ms == 120_000
    with pytest.raises(BadInput, match="a lead of 119999 ms is too short"):
        BulkRules.of(limits, 119_999)


def test_the_clock_of_the_server_says_what_is_too_soon(spark: SparkSession, tight: tuple[str, Path]) -> None:
    """A driver whose clock differs would hand over what the server refuses."""
    url, stage = tight
    limits = Server(url).limits()
    assert limits.now_ms is not None and abs(limits.now_ms - time.time() * 1000) < 60_000
    behind = BulkRules.of(replace(limits, now_ms=limits.now_ms - 600_000))
    assert abs(behind.ahead_ms + 600_000) < 60_000 and BulkRules.of(replace(limits, now_ms=None)).ahead_ms == 0
    done = schedule(table(spark), COLUMNS, "behind", Options(stage), Server(url), rules=behind, source="t")
    assert abs(done.manifest.began - limits.now_ms + 600_000) < 60_000


def test_a_driver_whose_clock_is_a_day_ahead_hands_its_files_over(
    spark: SparkSession, tight: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own clock their windows have ended, and the server may have forgotten them."""
    url, stage = tight
    frame, now_s = table(spark), time.time
    monkeypatch.setattr(time, "time", lambda: now_s() + 86_400)
    done = schedule(frame, COLUMNS, "ahead", Options(stage), Server(url), source="t")
    monkeypatch.undo()
    assert (done.manifest.accepted, done.forgotten) == (1, 0)
    handed_at = JobFolder(stage, "ahead").handed_at()
    assert handed_at is not None and abs(handed_at - time.time() * 1000) < 60_000
