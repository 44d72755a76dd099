"""What several functional tests use: a real server for all tests of a session, and a bus on Kafka for one test."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from duemq.bus.kafka.bus import KafkaBus
from duemq.dev.kafka.kafka import KafkaServers
from duemq.storage.jobs.jobs import TieringJob, encode
from duemq.storage.jobs.jobs import tiering_job as job_of
from duemq.storage.tiering import tiering_job
from duemq.storage.tiering.tiering_process import perform
from tests.functional.kafka.kafka_bus import options
from tests.support.patience import PROCESS_S, SERVERS_S

GUARD = "key-of-the-guarded-server"
_PATIENT = {"DUEMQ_HTTP__ANSWER_TIMEOUT_MS": "60000"}  # a busy machine would answer 503 and 202
_URL = re.compile(r"duemq serves (http://\S+)")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of `duemq serve` with default settings. On SIGTERM it has to stop, cleanly."""
    yield from _served(tmp_path_factory.mktemp("server"), {})


@pytest.fixture(scope="session")
def guarded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """As `server`, for who presents GUARD as API key."""
    yield from _served(tmp_path_factory.mktemp("guarded-server"), {"DUEMQ_HTTP__API_KEYS": GUARD})


def _served(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    duemq = Path(sys.executable).with_name("duemq")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [duemq, "serve", "--data", folder / "data", "--listen", "127.0.0.1:0"],
            stdout=log, stderr=log, env=os.environ | _PATIENT | environment,
        )  # fmt: skip
    try:
        yield _url(process, folder / "log")
    finally:
        process.terminate()
        code = process.wait(PROCESS_S)
    assert code == 0, (folder / "log").read_text()


@pytest.fixture(scope="session")
def kafka_with_duemq(kafka: KafkaServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The bootstrap address of a Kafka on which `duemq serve` delivers."""
    folder = tmp_path_factory.mktemp("server-on-kafka")
    duemq = Path(sys.executable).with_name("duemq")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [duemq, "serve", "--kafka", kafka.bootstrap, "--data", folder / "data", "--listen", "127.0.0.1:0"],
            stdout=log, stderr=log, env=os.environ | _PATIENT | {"DUEMQ_STORAGE__REFUSE_PERCENT": "100"},
        )  # fmt: skip
    try:
        _url(process, folder / "log")
        yield kafka.bootstrap
    finally:
        process.terminate()
        code = process.wait(PROCESS_S)
    assert code == 0, (folder / "log").read_text()


def _url(process: subprocess.Popen[bytes], log: Path) -> str:
    """Where it listens, which it says once it is ready."""
    deadline = time.monotonic() + PROCESS_S
    while time.monotonic() < deadline and process.poll() is None:
        if found := _URL.search(log.read_text()):
            return found[1]
        time.sleep(0.05)
    raise AssertionError(f"the server did not start:\n{log.read_text()}")


@pytest.fixture
def transactions() -> str:
    """`kafka.transactions`. Modules whose tests are about commits override it, to run with both protocols."""
    return "auto"


@pytest.fixture
async def bus(kafka: KafkaServers, transactions: str) -> AsyncIterator[KafkaBus]:
    bus = await KafkaBus.open(options(kafka.bootstrap, transactions=transactions))
    yield bus
    await bus.close()


@pytest.fixture
async def two(kafka: KafkaServers, transactions: str) -> AsyncIterator[tuple[KafkaBus, KafkaBus]]:
    """Two buses of one cluster, as two processes have them."""
    shared = options(kafka.bootstrap, transactions=transactions)
    first, second = await KafkaBus.open(shared), await KafkaBus.open(shared)
    yield first, second
    await asyncio.gather(first.close(), second.close())


@pytest.fixture
async def connections_are_closed() -> AsyncIterator[None]:
    """aiokafka does not wait for the ones it closes, and TLS takes a moment for it."""
    yield
    loop: Any = asyncio.get_running_loop()
    async with asyncio.timeout(SERVERS_S):
        while any(open._sock is not None for open in loop._transports.values()):  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.01)


@pytest.fixture
def tiering_work_in_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seal and load in a thread: starting a process for each takes most of the time of a test with small windows.

    The process itself is tested by `test_child.py`, and by every test that starts a server.
    """

    async def lines(job: TieringJob) -> AsyncGenerator[bytes, None]:
        for done in await asyncio.to_thread(lambda: list(perform(job_of(orjson.loads(encode(job)))))):
            yield encode(done)

    monkeypatch.setattr(tiering_job, "_lines", lines)
