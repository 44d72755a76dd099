"""The systems that messages are sent to: one of each for all tests of a process, or one for a single test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.destinations.nats_node import NatsNode
from tests.support.destinations.rabbitmq_node import RabbitMQNode
from tests.support.destinations.redis_nodes import RedisCluster, RedisNode
from tests.support.servers.real_servers import need


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQNode]:
    """One node. Tests that share it declare queues and exchanges with names of their own, and leave it running."""
    with need(lambda: RabbitMQNode(tmp_path_factory.mktemp("rabbitmq"))) as node:
        yield node


@pytest.fixture
def own_rabbitmq(tmp_path: Path) -> Iterator[RabbitMQNode]:
    """One node for one test, which may kill it."""
    with need(lambda: RabbitMQNode(tmp_path / "rabbitmq")) as node:
        yield node


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsNode]:
    """One server. Tests that share it use subjects and streams with names of their own, and leave it running."""
    with need(lambda: NatsNode(tmp_path_factory.mktemp("nats"))) as node:
        yield node


@pytest.fixture
def own_nats(tmp_path: Path) -> Iterator[NatsNode]:
    """One server for one test, which may kill it."""
    with need(lambda: NatsNode(tmp_path / "nats")) as node:
        yield node


@pytest.fixture(scope="session")
def redis_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisNode]:
    """One Redis. Tests that share it use keys with names of their own, and leave it running."""
    with need(lambda: RedisNode(tmp_path_factory.mktemp("redis"))) as node:
        yield node


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisNode]:
    """One Redis for one test, which may kill it."""
    with need(lambda: RedisNode(tmp_path / "redis")) as node:
        yield node


@pytest.fixture
def redis_cluster(tmp_path: Path) -> Iterator[RedisCluster]:
    """A cluster for one test, which may kill its nodes."""
    with need(lambda: RedisCluster(tmp_path / "redis")) as cluster:
        yield cluster
