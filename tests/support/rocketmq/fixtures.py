"""A real RocketMQ for the tests that need one: one for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.servers.real_servers import need_servers

if TYPE_CHECKING:
    from tests.support.rocketmq.server import RocketMQServer


@pytest.fixture(scope="session")
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQServer]:
    """One server. Tests that share it make topics with names of their own, and leave it running."""
    from tests.support.rocketmq.server import JARS, RocketMQServer  # gRPC and the client: over a second

    need_servers(JARS)
    with RocketMQServer(tmp_path_factory.mktemp("rocketmq")) as server:
        yield server


@pytest.fixture(scope="session")
def rocketmq_closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQServer]:
    """One server with TLS and access keys (see `Closed`), topics `allowed` and `forbidden`, and a user of `ACCESS`."""
    from tests.support.rocketmq.security import ACCESS, Closed
    from tests.support.rocketmq.server import JARS, RocketMQServer

    need_servers(JARS)
    folder = tmp_path_factory.mktemp("rocketmq-closed")
    with RocketMQServer(folder / "server", security=Closed(folder / "tls")) as server:
        for topic in ("allowed", "forbidden"):
            server.create_topic(topic)
        server.create_user(*ACCESS, "allowed")
        yield server
