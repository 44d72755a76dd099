"""The pipeline in sessions of Spark Connect, whose driver is another process: nothing asks for a JVM here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from duemq.client import Admin
from duemq.dev.kafka.kafka import KafkaServers
from duemq.model.timing import WINDOW_MS
from tests.e2e.server import Server, wait_for
from tests.support.servers.real_servers import need_servers
from tests.support.spark.spark_connect import ConnectServer

pytestmark = [pytest.mark.smoke, pytest.mark.servers, pytest.mark.xdist_group("spark")]
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Site:
    """A server on a Kafka of its own, and the stage that it takes files in from."""

    server: Server
    kafka: str
    stage: Path

    @property
    def url(self) -> str:
        return self.server.url


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    need_servers()
    with ConnectServer(tmp_path_factory.mktemp("connect")) as server:
        yield server


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    stage = folder / "stage"
    stage.mkdir()
    with KafkaServers(folder / "kafka") as kafka:
        options = ("--kafka", kafka.bootstrap, "--shards", "2", "--set", f"delay_files.import_from={stage}")
        with Server(folder / "data", *options) as server:
            server.start()
            yield Site(server, kafka.bootstrap, stage)
            assert server.stop() == 0


def test_messages_are_cancelled_and_moved(connect: ConnectServer, site: Site, tmp_path: Path) -> None:
    with Admin(site.url) as client:
        sent = [client.send("connect", str(at), deliver_after="1h") for at in range(12)]
        ids = [one.id for one in sent]
        pq.write_table(pa.table({"id": [*ids[:10], "nobody"]}), tmp_path / "ids.parquet")
        answers = {row["id"]: row for row in connect.run("cancel", site.url, tmp_path / "ids.parquet")}
        assert [answers[one]["status"] for one in [*ids[:10], "nobody"]] == [*["cancelled"] * 10, "unknown"]
        due = client.get(ids[10]).state.deliver_at_ms
        known = {"name": ["a", "b"], "id": ids[10:], "due_ms": [due, due + 5]}
        pq.write_table(pa.table(known), tmp_path / "known.parquet")
        pq.write_table(pa.table({"order": ["a", "c"]}), tmp_path / "orders.parquet")
        moved = {row["order"]: row for row in connect.run(
            "move", site.url, tmp_path / "orders.parquet", tmp_path / "known.parquet")}  # fmt: skip
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


def test_a_table_is_scheduled_once(connect: ConnectServer, site: Site, tmp_path: Path) -> None:
    first = (int(time.time() * 1000) // WINDOW_MS + 3) * WINDOW_MS
    table = table_of(tmp_path / "t.parquet", first, 2_000)
    done = connect.run("schedule", site.url, table, site.stage, "job")
    assert (done["rows"], done["rejected"], done["again"]) == (2_002, 2, False)
    assert len({row["id"] for row in done["ids"]}) == 2_000
    assert "sorting and writing delay files" in done["steps"]
    assert any(share[0] == share[1] > 0 for share in done["shares"])
    with Admin(site.url) as client:
        row = done["ids"][17]
        state = client.get(row["id"]).state
        assert (state.payload, state.deliver_at_ms) == (f"row {row['name'][2:]}".encode(), row["due_ms"])
        pending = sum(shard.pending or 0 for shard in client.cluster().shards)
        again = connect.run("schedule", site.url, table, site.stage, "job")
        assert again["again"] and len(again["ids"]) == 2_000
        assert sum(shard.pending or 0 for shard in client.cluster().shards) == pending


async def copy_one(bootstrap: str, topic: str) -> None:
    """Append the first record of a topic once more, as it is."""
    async with AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        record = await consumer.getone()
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        headers = list(record.headers)
        await producer.send_and_wait(topic, record.value, record.key, partition=record.partition, headers=headers)


def test_rows_are_sent_and_all_is_audited(connect: ConnectServer, site: Site, tmp_path: Path) -> None:
    """Each row is delivered once; an audit of all that these tests did finds the one record that was put in."""
    due = int(time.time() * 1000) + 1_000
    columns = {
        "due": [due + n for n in range(300)] + [None], "text": [f"sent {n}" for n in range(301)],
        "key": [f"k{n % 7}" for n in range(301)], "name": [f"sent-{n}" for n in range(301)],
    }  # fmt: skip
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    done = connect.run("send", site.kafka, tmp_path / "rows.parquet")
    assert done == {"rows": 301, "sent": 300, "rejected": 1}
    wait_for(lambda: len(site.server.delivered_ids("orders")) >= 300, "all rows are delivered")
    asyncio.run(copy_one(site.kafka, "orders"))
    said = connect.run("audit", site.kafka, tmp_path / "audit")
    assert said["found"] == {"twice": 1} and said["account"]["delivered"] >= 300, said
    assert [row["kind"] for row in said["shown"]] == ["twice"]
    assert pq.read_table(tmp_path / "audit" / "violations")["kind"].to_pylist() == ["twice"]
