"""`duemq spark audit` as a process: its exit code, its JSON, its tables and its page."""

from __future__ import annotations

import asyncio
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import orjson
import pyarrow.parquet as pq
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from duemq.pipeline.connector import JARS_VARIABLE
from tests.e2e.server import DUEMQ, environment
from tests.functional.test_spark_audit import Past, past
from tests.spark_site import spark_jars, spark_tests

pytestmark = spark_tests
__all__ = ("past",)


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


async def repeat_a_record(bootstrap: str) -> str:
    """Deliver a message once more; returns its id."""
    async with AIOKafkaConsumer(
        "other", bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        first = await consumer.getone()
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        await producer.send_and_wait("other", first.value, first.key, headers=list(first.headers))
    id_: bytes = dict(first.headers)["duemq-id"]
    return id_.decode()


def test_clean_and_violated(past: Past, tmp_path: Path) -> None:
    settings = ("--master", "local[2]", "--conf", "spark.driver.memory=1g", "--conf", "spark.sql.shuffle.partitions=4")
    command = (DUEMQ, "spark", "audit", "--kafka", past.bootstrap, "--out", tmp_path / "audit", *settings)

    def audited(*options: str) -> tuple[int, str]:
        done = subprocess.run(
            [*map(str, command), *options], capture_output=True, text=True, timeout=300,
            env=environment() | {JARS_VARIABLE: str(spark_jars())},
        )  # fmt: skip
        assert done.returncode in (0, 1), done.stderr
        return done.returncode, done.stdout

    code, text = audited()
    assert code == 0 and text.startswith("Every message is accounted for"), text
    page = Page()
    page.feed((tmp_path / "audit" / "report.html").read_text())
    assert page.links == [] and page.open == [] and "Every message is accounted for" in page.text

    id_ = asyncio.run(repeat_a_record(past.bootstrap))
    code, text = audited("--json")
    said = orjson.loads(text)
    assert (code, said["clean"], said["violations"]) == (1, False, {"twice": 1})
    assert said["accepted"] == sum(said["fates"].values())
    (wrong,) = pq.read_table(tmp_path / "audit" / "violations").to_pylist()
    assert (wrong["kind"], wrong["id"], wrong["topic"], wrong["records"]) == ("twice", id_, "other", 2)
    fates = pq.read_table(tmp_path / "audit" / "fates").to_pylist()
    assert sum(one["part"] == "range" and one["fate"] != "none" for one in fates) == said["accepted"]
    late = pq.read_table(tmp_path / "audit" / "lateness").to_pylist()
    assert sum(one["messages"] for one in late) == sum(one["records"] > 0 for one in fates)
    html = (tmp_path / "audit" / "report.html").read_text()
    assert "1 violation<" in html and id_ in html
