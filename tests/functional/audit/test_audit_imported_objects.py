"""Imported files in an object store: the audit reads them there, and says in words what it cannot read."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from duemq.client import Admin
from duemq.dev.kafka.kafka import KafkaServers
from duemq.dev.servers.ports import HOST, free_port
from duemq.model.messages.message import Draft
from duemq.model.timing import WINDOW_MS
from duemq.pipeline.audit import imported
from duemq.pipeline.audit.evidence import Gathered
from duemq.pipeline.audit.imported import AuditedFile, looked_at, rows_of
from duemq.pipeline.audit.job import AuditResult, audit, conclude
from duemq.pipeline.files.s3a import store_of
from duemq.storage.object_store import ObjectStore
from tests.e2e.server import Server, wait_for
from tests.functional.audit.test_audit_imported import WINDOW, write
from tests.functional.audit.test_audit_review import history
from tests.support.audit.audit_site import make_topics
from tests.support.servers.real_servers import need_servers
from tests.support.servers.s3_site import ACCESS_KEY, REGION, SECRET_KEY, S3Site
from tests.support.shard.import_schedule import write_messages
from tests.support.spark.java import query_of
from tests.support.spark.spark_site import spark_tests

pytestmark = spark_tests


@pytest.fixture
def settings(spark: SparkSession, s3: S3Site) -> Iterator[SparkSession]:
    """A session with the settings of Spark's own client that lead to the store."""
    said = {
        "endpoint": s3.endpoint.removeprefix("http://"), "connection.ssl.enabled": "false", "access.key": ACCESS_KEY,
        "secret.key": SECRET_KEY, "endpoint.region": REGION,
    }  # fmt: skip
    names = [f"spark.hadoop.fs.s3a.{name}" for name in said]
    for name, value in zip(names, said.values(), strict=True):
        spark.conf.set(name, value)
    yield spark
    for name in names:
        spark.conf.unset(name)


def taken(s3: S3Site, key: str, path: Path, offset: int = 7) -> AuditedFile:
    """An object with the content of a file, as the log tells of it."""
    content = path.read_bytes()
    return AuditedFile(
        2, offset, 3, WINDOW - 9, s3.put(key, content), WINDOW, len(content), hashlib.sha256(content).hexdigest()
    )


def test_an_object_is_read_as_a_file_is(settings: SparkSession, s3: S3Site, tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", key=[b"k", None, b""], labels=[["x"], None, []])
    object_ = taken(s3, f"{s3.bucket()}/jobs/a b/50%25 [1] ü.parquet", path)
    local = replace(object_, path=str(path), offset=8)
    assert looked_at(settings, [object_, local]) == [object_, local]
    rows = rows_of(settings, [object_, local]).orderBy("offset", "row").collect()
    same = [tuple(row)[2:] for row in rows]
    assert len(rows) == 6 and same[:3] == same[3:] and [row.due for row in rows[:3]] == [WINDOW + n for n in range(3)]
    assert not any(row.counted for row in rows)
    plan = query_of(rows_of(settings, [object_])).toString()
    assert SECRET_KEY not in plan and "s3" not in plan, "the plan is on Spark's pages and in its logs"


def test_objects_that_are_not_what_was_imported(settings: SparkSession, s3: S3Site, tmp_path: Path) -> None:
    path, bucket = write(tmp_path / "x.parquet"), s3.bucket()
    files = [taken(s3, f"{bucket}/{n}.parquet", path, n) for n in range(4)]
    s3.files().delete_file(f"{bucket}/1.parquet")
    s3.put(f"{bucket}/2.parquet", b"short")
    s3.put(f"{bucket}/3.parquet", bytes(reversed(path.read_bytes())))
    told = looked_at(settings, files)
    assert [file.why_not for file in told] == [
        "", "no such object", "it has another size now", "it has other content now",
    ]  # fmt: skip
    found = rows_of(settings, told).groupBy("offset", "counted").count().collect()
    assert sorted(tuple(row) for row in found) == [(0, False, 3), (1, True, 3), (2, True, 3), (3, True, 3)]
    nowhere = replace(files[0], path="s3://no-such-bucket-of-ours/0.parquet")
    assert looked_at(settings, [nowhere])[0].why_not != ""


def test_a_store_that_is_away_is_asked_once(
    settings: SparkSession, s3: S3Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "x.parquet")
    files = [taken(s3, f"{s3.bucket()}/x.parquet", path, n) for n in range(3)]
    settings.conf.set("spark.hadoop.fs.s3a.bucket.away.endpoint", f"http://{HOST}:{free_port()}")
    away = [replace(files[0], offset=n, path=f"s3://away/{n}.parquet") for n in range(10, 30)]
    asked: list[str] = []
    reasons = imported._reasons

    def counting(
        spark: SparkSession, some: list[AuditedFile], stores: dict[str, ObjectStore]
    ) -> dict[tuple[int, int], str]:
        asked.extend(file.path for file in some)
        return reasons(spark, some, stores)

    monkeypatch.setattr(imported, "_reasons", counting)
    told = looked_at(settings, [*files, *away])
    settings.conf.unset("spark.hadoop.fs.s3a.bucket.away.endpoint")
    assert [file.why_not for file in told[:3]] == ["", "", ""]
    assert all(file.why_not.startswith("its store does not serve it: NETWORK_CONNECTION") for file in told[3:])
    assert len([path for path in asked if path.startswith("s3://away/")]) == 1
    assert len(asked) == 4


def test_how_a_bucket_is_reached_follows_from_the_settings_of_the_session(settings: SparkSession, s3: S3Site) -> None:
    store = store_of(settings, "jobs")
    assert store == ObjectStore(s3.endpoint, REGION, ACCESS_KEY, SECRET_KEY)
    assert SECRET_KEY not in repr(store)
    own = {"endpoint": "https://other:9000", "session.token": "t", "access.key": "a"}
    for name, value in own.items():
        settings.conf.set(f"spark.hadoop.fs.s3a.bucket.jobs.{name}", value)
    assert store_of(settings, "jobs") == ObjectStore("https://other:9000", REGION, "a", SECRET_KEY, "t")
    assert store_of(settings, "others") == store
    for name in own:
        settings.conf.unset(f"spark.hadoop.fs.s3a.bucket.jobs.{name}")
    settings.conf.set("spark.hadoop.fs.s3a.connection.ssl.enabled", "true")
    assert store_of(settings, "jobs").endpoint == s3.endpoint.replace("http://", "https://")
    for name in ("endpoint", "access.key", "secret.key", "endpoint.region"):
        settings.conf.unset(f"spark.hadoop.fs.s3a.{name}")
    assert store_of(settings, "jobs") == ObjectStore(), "the rest is for the variables and roles of each machine"


def of_object(spark: SparkSession, read: Gathered, s3: S3Site) -> tuple[Gathered, str]:
    """The same logs, of a server that took the file in from the store."""
    row = read.frames.commands.where("path is not null").first()
    assert row is not None
    path = s3.put(f"{s3.bucket()}/jobs/x.parquet", Path(row.path).read_bytes())
    Path(row.path).unlink()
    commands = spark.createDataFrame(
        [
            tuple((one.asDict() | ({"path": path} if one.path else {})).values())
            for one in read.frames.commands.collect()
        ],
        read.frames.commands.schema,
    )
    return replace(read, frames=replace(read.frames, commands=commands)), path


def test_the_messages_of_an_object_are_judged_like_others(settings: SparkSession, s3: S3Site, tmp_path: Path) -> None:
    """A history of faults, two of which are of the messages of a file."""

    def of_file(result: AuditResult) -> list[str]:
        return [row["kind"] for row in result.shown if row["offset"] == 12]

    by_path = conclude(settings, history(settings, tmp_path), tmp_path / "out")
    read, path = of_object(settings, history(settings, tmp_path), s3)
    by_object = conclude(settings, read, tmp_path / "out")
    assert of_file(by_object) == of_file(by_path) == ["altered", "altered", "altered_headers", "altered_headers"]
    assert by_object.violation_counts == by_path.violation_counts and by_object.account == by_path.account
    assert by_object.notes == by_path.notes == []
    s3.files().delete_file(path.removeprefix("s3://"))
    gone = conclude(settings, read, tmp_path / "out")
    assert gone.notes == [
        f"{path} cannot be read as it was imported (no such object): its 2 messages are counted, and when and where "
        "they were due is not known"
    ]
    assert of_file(gone) == [] and gone.account == by_path.account


@pytest.mark.slow
def test_an_audit_of_a_server_that_takes_files_in_from_a_store(
    settings: SparkSession, s3: S3Site, tmp_path: Path
) -> None:
    need_servers()
    bucket = s3.bucket()
    window = (time.time_ns() // 1_000_000 // WINDOW_MS + 4) * WINDOW_MS
    write_messages(tmp_path / "a.parquet", [Draft("orders", b"far %d" % n, window + n) for n in range(40)])
    uri = s3.put(f"{bucket}/jobs/a.parquet", (tmp_path / "a.parquet").read_bytes())
    said = {
        "delay_files.import_from": f"s3://{bucket}/jobs",
        "delay_files.s3_endpoint": s3.endpoint,
        "topics.partitions": 0,
    }
    words = [word for name, value in said.items() for word in ("--set", f"{name}={value}")]
    with KafkaServers(tmp_path / "kafka") as kafka:
        asyncio.run(make_topics(kafka.bootstrap, {"orders": 2}))
        with Server(tmp_path / "data", "--kafka", kafka.bootstrap, "--shards", "2", *words) as server:
            server.environment = s3.variables
            server.start()
            with Admin(server.url, timeout=120) as client:
                file = client.import_file(uri)
                wait_for(lambda: client.import_record(file.id).state == "imported", "the import")
                listed = server.call("GET", "/v1/messages?topic=orders&limit=1000").json()["messages"]
                near, gone = [one["id"] for one in listed][10:12]
                assert server.call("POST", f"/v1/messages/{near}:deliver-now").status_code == 200
                assert server.call("DELETE", f"/v1/messages/{gone}").status_code == 200
                wait_for(lambda: server.call("GET", f"/v1/messages/{near}").json()["status"] == "delivered", "one")
            assert server.stop() == 0, server.log
        result = audit(settings, kafka.bootstrap, tmp_path / "audit")
        assert result.clean and not any(uri in note for note in result.notes), (result.shown, result.notes)
        assert {outcome: count for outcome, count in result.account.items() if count} == {
            "pending": 38, "delivered": 1, "cancelled": 1,
        }  # fmt: skip
        s3.files().delete_file(f"{bucket}/jobs/a.parquet")
        without = audit(settings, kafka.bootstrap, tmp_path / "audit")
        assert without.clean and without.account == result.account
        (note,) = [note for note in without.notes if uri in note]
        assert "no such object" in note and "its 40 messages are counted" in note
