"""`duemq spark cancel` and `duemq spark move` as commands: what they print, what they write, and their exit codes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.e2e.server import DUEMQ, Server, environment
from tests.support.spark.spark_site import spark_tests

pytestmark = [*spark_tests, pytest.mark.slow]
_WITHIN_S = 900
DAY_MS = 86_400_000


def spark(*words: object, url: str) -> subprocess.CompletedProcess[str]:
    memory = ("--conf", "spark.driver.memory=800m", "--conf", "spark.sql.shuffle.partitions=2")
    command: list[str | Path] = [DUEMQ, "spark", *map(str, words), "--url", url, "--master", "local[2]", *memory]
    return subprocess.run(command, capture_output=True, text=True, timeout=_WITHIN_S, env=environment())


def test_orders_are_moved_then_cancelled_by_their_business_key(shared_server: Server, tmp_path: Path) -> None:
    due = 2_000_000_000_000
    ids = [shared_server.send("spark-mass", deliver_at=due) for _ in range(5)]
    late = shared_server.send("spark-mass")
    names = ["o1", "o1", "o2", "o3", "o4", "o5"]
    ids_table = pa.table({"name": names, "id": [*ids, late], "due_ms": pa.array([due] * 6, pa.int64())})
    pq.write_table(ids_table, tmp_path / "ids.parquet")
    orders = tmp_path / "orders.csv"
    orders.write_text("order,country\no1,FR\no2,FR\no3,DE\no1,FR\no9,FR\no5,FR\n")
    by_key = ("--key", "order", "--ids", tmp_path / "ids.parquet", "--where", "country = 'FR'")

    moved = spark("move", orders, *by_key, "--by", "1d", "--json", url=shared_server.url)
    counts = {"moved": 5, "already_delivered": 1, "unknown": 1}
    assert (moved.returncode, orjson.loads(moved.stdout)["counts"]) == (4, counts), moved.stderr
    dues = [shared_server.state(id_)["deliver_at_ms"] for id_ in ids]
    assert dues == [due + DAY_MS] * 3 + [due] * 2

    folder = tmp_path / "answers"
    cancelled = spark("cancel", orders, *by_key, "--answers", folder, url=shared_server.url)
    assert cancelled.returncode == 4, cancelled.stderr
    assert cancelled.stdout == "5 cancelled, 1 already delivered, 1 unknown\n"
    assert "cancelling" in cancelled.stderr
    answers: list[dict[str, Any]] = pq.read_table(folder).to_pylist()
    assert sorted((row["order"], row["id"] or "", row["status"]) for row in answers) == sorted([
        *[("o1", id_, "cancelled") for id_ in ids[:2]] * 2, ("o2", ids[2], "cancelled"), ("o9", "", "unknown"),
        ("o5", late, "already_delivered"),
    ])  # fmt: skip
    assert [shared_server.state(id_)["status"] for id_ in ids] == ["cancelled"] * 3 + ["scheduled"] * 2


def test_what_is_wrong_is_said_in_one_line(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("id\nx\n")
    away = "http://127.0.0.1:9"
    nobody = spark("cancel", table, "--id", "id", "--patience", "0", "--json", url=away)
    assert nobody.returncode == 8
    (error,) = orjson.loads(nobody.stdout).values()
    assert error["detail"].startswith("cannot connect to http://127.0.0.1:9") and "run it again" in error["detail"]
    usage = spark("move", table, "--id", "id", url=away)
    assert usage.returncode == 2 and "say when" in usage.stderr
    usage = spark("cancel", table, "--id", "id", "--key", "k", url=away)
    assert usage.returncode == 2 and "say which messages" in usage.stderr
