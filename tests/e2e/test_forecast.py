"""`duemq spark forecast` over the folder of a real server: every pending message is counted once, where it is due."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest
import typer
from pyspark.sql import SparkSession
from rocksdict import WriteBatch

from duemq.model.errors import CorruptStore
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.message import Draft
from duemq.model.timing import WINDOW_MS
from duemq.pipeline.cli.forecast import forecast as command
from duemq.pipeline.errors import BadInput, JobFailed
from duemq.pipeline.forecast import store
from duemq.pipeline.forecast.read import pending
from duemq.storage.data_folder import read_info
from duemq.storage.keyspace import ROW
from duemq.storage.rocksdb import Memory
from duemq.storage.shard.store import ShardStore
from duemq.storage.tiering.transitions import begin_load
from tests.e2e.server import Server, run, wait_for
from tests.support.shard.import_schedule import write_messages
from tests.support.spark.other_file_system import other_file_system
from tests.support.spark.spark_site import spark_tests

pytestmark = [*spark_tests, pytest.mark.slow]

Capsys = pytest.CaptureFixture[str]
SEALED, IMPORTED, NEAR = 600, 200, 30


class World(NamedTuple):
    """A stopped server's folder, a backup made while it ran, and how many messages are due per topic and ms."""

    data: Path
    backups: Path
    due: Counter[tuple[str, int]]
    start: int


def sealed_in(server: Server) -> float:
    lines = server.call("GET", "/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("duemq_sealed_messages{"))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("forecast")
    options = ("--shards", "2", "--set", "delay_files.seal_rows=50", "--set", "delay_files.seal_windows=1")
    start = (int(time.time() * 1000) // WINDOW_MS + 8) * WINDOW_MS
    due: Counter[tuple[str, int]] = Counter()
    ids: dict[str, tuple[str, int]] = {}
    with Server(folder / "data", *options, "--set", f"delay_files.import_from={folder / 'shared'}") as server:
        server.start()

        def send(topic: str, dues: list[int]) -> list[str]:
            keyed = ({"topic": topic, "payload": "x", "key": str(n), "deliver_at": at} for n, at in enumerate(dues))
            body = {"messages": list(keyed)}
            sent = [one["id"] for one in server.call("POST", "/v1/messages:batch", body).json()["results"]]
            ids.update(zip(sent, ((topic, at) for at in dues), strict=True))
            due.update((topic, at) for at in dues)
            return sent

        sealed = send("orders", [start + n * 997 for n in range(SEALED)])
        wait_for(lambda: sealed_in(server) == SEALED, "delay files of both shards")
        drafts = [Draft("letters", b"y", start + WINDOW_MS + n // 50) for n in range(IMPORTED)]
        write_messages(folder / "shared" / "a.parquet", drafts)
        imported = run("import", folder / "shared", url=server.url)
        assert imported.returncode == 0, imported.stderr
        due.update((draft.topic, draft.due or 0) for draft in drafts)
        near = send("orders", [start - WINDOW_MS + n * 60_000 for n in range(NEAR)])  # too few to be sealed
        late = send("late", [start + 5, start + 5])  # into a window that is sealed already
        letters = server.call("GET", "/v1/messages?topic=letters&limit=20").json()["messages"]
        ids.update((one["id"], ("letters", one["deliver_at_ms"])) for one in letters)
        for id_ in (*sealed[:40], near[0], late[0], *(one["id"] for one in letters[:7])):
            assert server.call("DELETE", f"/v1/messages/{id_}").status_code == 200
            due[ids[id_]] -= 1
        for n, id_ in enumerate((*sealed[40:50], near[1], letters[8]["id"])):  # out of their windows, into others
            to = start + 4 * WINDOW_MS + n
            assert server.call("PATCH", f"/v1/messages/{id_}", {"deliver_at": to}).status_code == 200
            due[ids[id_]] -= 1
            due[ids[id_][0], to] += 1
        assert server.call("POST", f"/v1/messages/{sealed[50]}:deliver-now").status_code == 200
        due[ids[sealed[50]]] -= 1
        server.send("orders", payload="soon", deliver_after="10ms")
        wait_for(lambda: len(server.delivered_ids("orders")) == 2, "both deliveries")
        made = run("backup", folder / "backups", "--data", server.data)
        assert made.returncode == 0, made.stderr
        with pytest.raises(BadInput, match="duemq backup"), pending(None, server.data):  # type: ignore[arg-type]
            pass
        assert server.stop() == 0, server.log
        yield World(server.data, folder / "backups", +due, start)


def counted(spark: SparkSession, folder: Path) -> dict[tuple[str, int], int]:
    """Messages per topic and second (ms)."""
    with pending(spark, folder) as found:
        rows = found.rows.groupBy("topic", "second_ms").sum("messages").collect()
    return {(row.topic, row.second_ms): row["sum(messages)"] for row in rows}


def seconds(due: Counter[tuple[str, int]]) -> Counter[tuple[str, int]]:
    found: Counter[tuple[str, int]] = Counter()
    for (topic, ms), count in due.items():
        found[topic, ms - ms % 1_000] += count
    return found


def test_every_pending_message_is_counted_where_it_is_due_now(world: World, spark: SparkSession) -> None:
    assert any((world.data / "shards" / "000" / "far").rglob("0*.parquet")) and any(
        world.data.rglob("far/*/a*.parquet")
    )
    assert counted(spark, world.data) == seconds(world.due)


def test_a_backup_says_the_same_and_stays_as_it_is(world: World, spark: SparkSession) -> None:
    assert counted(spark, world.backups) == seconds(world.due)
    (backup,) = world.backups.glob("2*Z")
    files = {str(file.relative_to(backup)) for file in backup.rglob("*") if file.is_file()}
    named = {file["name"] for file in orjson.loads((backup / "backup.json").read_bytes())["files"]}
    assert files == named | {"backup.json"}


def test_a_window_that_is_being_loaded_is_in_both_places_and_counted_once(
    world: World, spark: SparkSession, tmp_path: Path
) -> None:
    """As a kill leaves it in the middle of a load: the rows are in RocksDB, those of cancelled ones too."""
    data = shutil.copytree(world.data, tmp_path / "data")
    ids = IdCodec(read_info(data).secret)
    for shard in range(2):
        opened = ShardStore(data / "shards" / f"{shard:03d}", Memory(8 << 20, 8 << 20), ids)
        windows = opened.delay_files.windows()
        begin_load(opened, windows)
        batch = WriteBatch(raw_mode=True)
        for file in opened.delay_files.all():
            for keys, rows in file.open(opened.path, ids).whole():
                for key, row in zip(keys, rows, strict=True):
                    batch.put(ROW + key, row)
        opened.change(batch)
        opened.flush()
        opened.close()
    assert counted(spark, data) == seconds(world.due)


def test_a_file_that_lost_rows_is_not_taken_for_a_small_load(world: World, spark: SparkSession, tmp_path: Path) -> None:
    data = shutil.copytree(world.data, tmp_path / "data")
    sealed = sorted(data.rglob("far/*/0*.parquet"))
    content = sealed[0].read_bytes()
    other = sealed[1].read_bytes()
    sealed[0].write_bytes(other)
    with pytest.raises(JobFailed, match="it is damaged"):
        counted(spark, data)
    sealed[0].write_bytes(content[: len(content) // 2])
    with pytest.raises(JobFailed, match="cannot be read"):
        counted(spark, data)


@pytest.mark.parametrize("name", ["a stage", "gr[1]", "{x}?"])
def test_a_folder_of_any_name_is_read(world: World, spark: SparkSession, tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    data = shutil.copytree(world.data, tmp_path / name / "data")
    assert counted(spark, data) == seconds(world.due)


def test_tables_and_page_go_to_one_place_on_any_file_system(
    world: World, spark: SparkSession, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(spark), "stop", lambda _: None)  # the command's session is the tests', which goes on
    monkeypatch.chdir(tmp_path)
    into = other_file_system(spark, tmp_path / "disk") + "/of 2031"
    command(str(world.backups), into, length="1h", start=str(world.start), capacity="2", hot=2, as_json=True)
    said = orjson.loads(capsys.readouterr().out)
    assert said["page"] == f"{into}/forecast.html"
    made = {path.name for path in (tmp_path / "disk" / "of 2031").iterdir()}
    assert made >= {"forecast.html", "load_by_minute", "hot_seconds", "backlog"}
    assert not (tmp_path / "viewfs:").exists(), "a URI is no path below the working folder"
    assert (tmp_path / "disk" / "of 2031" / "forecast.html").read_text().count("<svg") == 3
    with pytest.raises(typer.Exit):
        command(f"{into}/backup", None, length="1h", start=None, capacity=None, hot=2, as_json=True)
    assert "read from a disk" in orjson.loads(capsys.readouterr().out)["error"]["detail"]


def test_what_is_no_folder_of_duemqs_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no duemq\.json"), pending(spark, tmp_path):
        pass
    with pytest.raises(CorruptStore, match="no store"):
        store.describe(tmp_path)


def test_the_command_tells_all_of_it(
    world: World,
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(type(spark), "stop", lambda _: None)  # the command's session is the tests', which goes on

    def told(**options: Any) -> Any:
        command(
            str(world.backups), str(tmp_path / "out"), start=str(world.start), capacity="2", as_json=True, **options
        )
        return orjson.loads(capsys.readouterr().out)

    said = told(length="1h", hot=2)
    due = seconds(world.due)
    inside = {at: count for at, count in due.items() if at[1] < world.start + 3_600_000}
    assert said["pending"] == due.total() and said["counted"] == sum(inside.values())
    assert said["beyond"] == due.total() - said["counted"] == 12
    assert said["overdue"] == sum(count for (_, at), count in due.items() if at < world.start) == NEAR - 2
    hottest = said["hot"][0]
    letters = IMPORTED - 8
    assert (hottest["second_ms"], hottest["messages"]) == (world.start + WINDOW_MS, letters)
    assert hottest["topics"] == [["letters", letters]]
    assert hottest["late_ms"] == (letters - 2) / 2 * 1_000
    assert {one["topic"]: one["messages"] for one in said["topics"]}["letters"] == letters
    assert said["late"][-1]["over"] and said["late_minutes"] == len(said["late"])
    table = spark.read.parquet(str(tmp_path / "out" / "load_by_minute"))
    assert sum(row.messages for row in table.collect()) == said["counted"]
    text = (tmp_path / "out" / "forecast.html").read_text()
    assert text.count("<svg") == 3 and "letters" in text and "http" not in text

    command(f"file://{world.data}", None, start=str(world.start), length="5d", capacity=None, hot=3)
    shown = capsys.readouterr().out
    assert "All of it can be delivered on time" in shown and "steady figure" in shown
