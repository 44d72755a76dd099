"""`duemq spark audit` as a process: its exit code, its JSON, its tables and its page."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import orjson
import pyarrow.parquet as pq
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

from duemq.pipeline.spark.connector import JARS_VARIABLE
from tests.e2e.server import DUEMQ, environment
from tests.support.audit.audit_site import Past, make_topics
from tests.support.consumer.consumer_site import until
from tests.support.spark.spark_site import spark_jars, spark_tests

pytestmark = [*spark_tests, pytest.mark.slow]

COPIES = "copies"


class Page(HTMLParser):
    """What a page asks for, and whether its elements are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "br", "line", "rect", "circle", "polyline"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("line", "rect", "circle", "polyline") or self.open[-1] == tag:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


async def copy_a_record(bootstrap: str) -> str:
    """Deliver a message once more, to another topic; returns its id."""
    async with AIOKafkaConsumer(
        "other", bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        first = await consumer.getone()
    await make_topics(bootstrap, {COPIES: 1})
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        await producer.send_and_wait(COPIES, first.value, first.key, headers=list(first.headers))
    id_: bytes = dict(first.headers)["duemq-id"]
    return id_.decode()


async def remove_the_copy(bootstrap: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_topics([COPIES])
        await until(partial(gone, admin), "the topic is gone")
    finally:
        await admin.close()


async def gone(admin: AIOKafkaAdminClient) -> bool:
    return COPIES not in await admin.list_topics()


@pytest.fixture
def copied(past: Past) -> Iterator[str]:
    """The id of a message that somebody has copied, until the end of the test."""
    yield asyncio.run(copy_a_record(past.bootstrap))
    asyncio.run(remove_the_copy(past.bootstrap))


def test_what_is_violated_is_told(past: Past, copied: str, tmp_path: Path) -> None:
    out = tmp_path / "audit"
    settings = ("--master", "local[2]", "--conf", "spark.driver.memory=1g", "--conf", "spark.sql.shuffle.partitions=4")
    done = subprocess.run(
        [str(DUEMQ), "spark", "audit", "--kafka", past.bootstrap, "--out", str(out), *settings, "--json", "--outcomes",
         "--topics", "*"],
        capture_output=True, text=True, timeout=300, env=environment() | {JARS_VARIABLE: str(spark_jars())},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("{"), (done.stdout[:500], done.stderr[-800:])
    said = orjson.loads(done.stdout)
    assert (said["clean"], said["violations"]) == (False, {"twice": 1, "wrong_topic": 1})
    assert said["accepted"] == sum(said["outcomes"].values())
    wrong = pq.read_table(out / "violations").to_pylist()
    assert {(one["kind"], one["id"], one["topic"], one["records"]) for one in wrong} == {
        ("twice", copied, "other", 2), ("wrong_topic", copied, "other", 2),
    }  # fmt: skip
    outcomes = pq.read_table(out / "outcomes").to_pylist()
    assert sum(one["part"] == "range" and one["outcome"] != "none" for one in outcomes) == said["accepted"]
    late = pq.read_table(out / "lateness").to_pylist()
    assert sum(one["messages"] for one in late) == sum(one["records"] > 0 for one in outcomes)
    page = Page()
    page.feed((out / "report.html").read_text())
    assert page.links == [] and page.open == []
    assert "2 violations" in page.text and copied in page.text


def test_copies_in_other_topics_are_not_looked_for_unless_asked(past: Past, copied: str, tmp_path: Path) -> None:
    done = audited(past, tmp_path / "audit")
    assert done.returncode == 0, done.stderr
    said = orjson.loads(done.stdout)
    assert COPIES not in said["read"] and "orders" in said["read"]
    assert any(COPIES in note and "not read" in note for note in said["notes"])


def test_a_failure_of_spark_is_no_violation(past: Past, tmp_path: Path) -> None:
    done = audited(past, tmp_path / "audit", "--conf", "spark.driver.maxResultSize=1")
    assert done.returncode == 9, done.stderr
    error = orjson.loads(done.stdout)["error"]
    assert error["kind"] == "JobFailed" and "maxResultSize" in error["detail"]
    assert len(done.stderr.splitlines()) < 20, done.stderr


def audited(past: Past, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    settings = ("--master", "local[2]", "--conf", "spark.driver.memory=1g", "--conf", "spark.sql.shuffle.partitions=4")
    return subprocess.run(
        [str(DUEMQ), "spark", "audit", "--kafka", past.bootstrap, "--out", str(folder), *settings, *more, "--json"],
        capture_output=True, text=True, timeout=300, env=environment() | {JARS_VARIABLE: str(spark_jars())},
    )  # fmt: skip
