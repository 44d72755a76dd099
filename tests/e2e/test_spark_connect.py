"""The pipeline in sessions of Spark Connect, whose driver is another process: nothing asks for a JVM here."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from duemq.client import Client
from duemq.storage.rows import WINDOW_MS
from tests.e2e.server import Server
from tests.real_servers import need_servers
from tests.spark_connect import ConnectServer

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark")]
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    need_servers()
    server = ConnectServer(tmp_path_factory.mktemp("connect"))
    server.start()
    try:
        yield server
    finally:
        server.process.stop()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A server, and the stage that it takes files in from."""
    folder = tmp_path_factory.mktemp("served")
    stage = folder / "stage"
    stage.mkdir()
    with Server(folder / "data", "--set", f"far.adopt_from={stage}") as server:
        server.start()
        yield server.url, stage
        assert server.stop() == 0


def test_messages_are_cancelled_and_moved(connect: ConnectServer, served: tuple[str, Path], tmp_path: Path) -> None:
    url, _ = served
    with Client(url) as client:
        sent = [client.send("connect", str(at), deliver_after=HOUR_MS) for at in range(12)]
        ids = [one.id for one in sent]
        pq.write_table(pa.table({"id": [*ids[:10], "nobody"]}), tmp_path / "ids.parquet")
        answers = {row["id"]: row for row in connect.run("cancel", url, tmp_path / "ids.parquet")}
        assert [answers[one]["status"] for one in [*ids[:10], "nobody"]] == [*["cancelled"] * 10, "unknown"]
        due = client.get(ids[10]).state.deliver_at_ms
        known = {"name": ["a", "b"], "id": ids[10:], "due_ms": [due, due + 5]}
        pq.write_table(pa.table(known), tmp_path / "known.parquet")
        pq.write_table(pa.table({"order": ["a", "c"]}), tmp_path / "orders.parquet")
        moved = {row["order"]: row for row in connect.run(
            "move", url, tmp_path / "orders.parquet", tmp_path / "known.parquet")}  # fmt: skip
        assert (moved["a"]["status"], moved["a"]["at_ms"]) == ("moved", due + 1)
        assert (moved["c"]["status"], moved["c"]["detail"]) == ("unknown", "no id for this key")


def table_of(path: Path, first: int, rows: int) -> Path:
    columns = {
        "due": [first + n * 7_919 % (3 * WINDOW_MS) for n in range(rows)] + [0, None],
        "text": [f"row {n}" for n in range(rows + 2)], "key": [f"k{n % 5}" for n in range(rows + 2)],
        "name": [f"n-{n}" for n in range(rows + 2)],
    }  # fmt: skip
    pq.write_table(pa.table(columns), path)
    return path


def test_rows_are_judged(connect: ConnectServer, tmp_path: Path) -> None:
    now = 1_900_000_000_000
    told = connect.run("judge", table_of(tmp_path / "t.parquet", now + HOUR_MS, 100), now)
    assert told["reasons"] == [{"field": None, "rows": 100}, {"field": "due_ms", "rows": 2}]
    assert ["is null" in row["reason"] for row in sorted(told["rejected"], key=lambda row: row["name"])] == [
        False,
        True,
    ]


def test_a_table_is_scheduled_once(connect: ConnectServer, served: tuple[str, Path], tmp_path: Path) -> None:
    url, stage = served
    first = (int(time.time() * 1000) // WINDOW_MS + 3) * WINDOW_MS
    table = table_of(tmp_path / "t.parquet", first, 2_000)
    done = connect.run("schedule", url, table, stage, "job")
    assert (done["rows"], done["rejected"], done["again"]) == (2_002, 2, False)
    assert len({row["id"] for row in done["ids"]}) == 2_000
    assert "sorting and writing delay files" in done["steps"]
    assert any(share[0] == share[1] > 0 for share in done["shares"])
    with Client(url) as client:
        row = done["ids"][17]
        state = client.get(row["id"]).state
        assert (state.payload, state.deliver_at_ms) == (f"row {row['name'][2:]}".encode(), row["due_ms"])
        pending = sum(shard.pending or 0 for shard in client.cluster().shards)
        again = connect.run("schedule", url, table, stage, "job")
        assert again["again"] and len(again["ids"]) == 2_000
        assert sum(shard.pending or 0 for shard in client.cluster().shards) == pending
