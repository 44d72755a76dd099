"""Spark writes each delivery to a table once, although its driver is killed in the middle of a batch."""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from duemq.client import Client, Draft
from duemq.dev.kafka.kafka import KafkaServers
from tests.e2e.server import Server, wait_for
from tests.support.servers.real_servers import need_servers
from tests.support.spark.spark_process import SparkProcess
from tests.support.spark.spark_site import spark_tests
from tests.support.spark.stream_run import MOST

pytestmark = [*spark_tests, pytest.mark.slow]
FIRST, ALL = 4 * MOST, 5 * MOST + 70


def text_of(number: int) -> bytes:
    return b"%d %s" % (number, bytes(1_000))  # so that Python keeps none of them back


def deliver(url: str, texts: range) -> None:
    """Have these messages delivered; from 0 on all of them then are."""
    with Client(url, timeout=300) as client:
        client.send_batch([Draft("orders", text_of(n), key=f"k{n % 7}") for n in texts])
        cursor, count, deadline = None, 0, time.monotonic() + 300
        while count < texts.stop:
            assert time.monotonic() < deadline
            page = client.records("orders", after=cursor, max=10_000, wait=timedelta(seconds=5))
            cursor, count = page.cursor, count + len(page.records)


def sunk(sink: Path) -> set[Path]:
    """The files that the sink's log has: those of a batch that did not end are not in it."""
    lines = [line for log in (sink / "_spark_metadata").glob("[0-9]*") for line in log.read_text().splitlines()[1:]]
    return {Path(json.loads(line)["path"].removeprefix("file://")) for line in lines}


@pytest.mark.parametrize("log", ["embedded", "kafka"])
def test_deliveries_are_written_once_although_the_driver_is_killed(tmp_path: Path, log: str) -> None:
    need_servers()
    folder = tmp_path / "run"
    folder.mkdir()
    sink = folder / "sink"
    with ExitStack() as stack:
        options: tuple[str, ...] = ()
        if log == "kafka":
            kafka = stack.enter_context(KafkaServers(tmp_path / "kafka"))
            options = ("--kafka", kafka.bootstrap, "--set", "topics.partitions=3")
        server = stack.enter_context(Server(tmp_path / "data", *options)).start()
        deliver(server.url, range(FIRST))
        run = SparkProcess("stream_run", folder, server.url, "orders", folder)
        try:
            wait_for(lambda: run.alive() and (folder / "checkpoint/commits/0").exists(), "the first batch", 200)
            (folder / "hold").touch()  # a task of the next batches writes some rows, and waits
            wait_for(lambda: run.alive() and set(sink.glob("*.parquet")) - sunk(sink), "a file of a batch", 200)
        finally:
            run.kill()
        (folder / "hold").unlink()
        deliver(server.url, range(FIRST, ALL))
        run = SparkProcess("stream_run", folder, server.url, "orders", folder)
        try:
            assert run.process.wait(300) == 0, run.log
        finally:
            run.kill()
        found = pa.concat_tables(pq.read_table(path) for path in sunk(sink))
        assert Counter(found["payload"].to_pylist()) == Counter(text_of(n) for n in range(ALL))
        assert len(set(found["id"].to_pylist())) == ALL
        assert len(set(found["partition"].to_pylist())) == (3 if log == "kafka" else 1)
