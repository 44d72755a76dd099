"""TLS and access keys with a real RocketMQ that wants both."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from duemq.relay.base import Reply, Result
from tests.support.outlets.site import out_message
from tests.support.tls.certificates import Authority

if TYPE_CHECKING:
    from tests.support.rocketmq.server import RocketMQServer

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

RIGHT = {"username": "duemq-access", "password": "duemq-secret"}


async def reply_of(
    server: RocketMQServer, credentials: Mapping[str, str], *, topic: str = "allowed", scheme: str = "rocketmqs"
) -> Reply:
    from tests.support.outlets.rocketmq_site import rocketmq_outlet  # gRPC and the client: over a second

    outlet = rocketmq_outlet(server.endpoint, dict(credentials), scheme=scheme, topic=topic)
    try:
        return await outlet.send(out_message(1))
    finally:
        await outlet.close()


def authority_of(server: RocketMQServer) -> str:
    from tests.support.rocketmq.security import Closed

    assert isinstance(server.security, Closed)
    return server.security.authority.ca.read_text()


async def test_access_keys(rocketmq_closed: RocketMQServer) -> None:
    server, ca = rocketmq_closed, {"ca": authority_of(rocketmq_closed)}
    assert (await reply_of(server, RIGHT | ca)).result is Result.ACCEPTED
    assert [one.message_id for one in server.stored("allowed")] == [out_message(1).identity]
    for wrong in (RIGHT | {"password": "another"}, RIGHT | {"username": "nobody"}, {}):
        reply = await reply_of(server, wrong | ca)
        assert (reply.result, reply.status) == (Result.AWAY, "UNAUTHORIZED")
        assert "duemq-secret" not in reply.detail
    for topic in ("forbidden", "nowhere"):
        reply = await reply_of(server, RIGHT | ca, topic=topic)
        assert (reply.result, reply.status) == (Result.AWAY, "UNAUTHORIZED")
        assert f"no permission to access Topic:{topic}" in reply.detail
    assert len(server.stored("allowed")) == 1
    assert server.stored("forbidden") == []


async def test_authorities(rocketmq_closed: RocketMQServer, tmp_path: Path) -> None:
    server, other = rocketmq_closed, Authority.make(tmp_path).ca.read_text()
    for wrong in ({"ca": other}, {}):
        reply = await reply_of(server, RIGHT | wrong)
        assert (reply.result, reply.status) == (Result.AWAY, "tls")
    reply = await reply_of(server, RIGHT, scheme="rocketmq")
    assert (reply.result, reply.status) == (Result.AWAY, "UNAVAILABLE")
