"""The NATS of the tests keeps what JetStream acknowledged, and shows what arrived."""

from __future__ import annotations

import ssl
from pathlib import Path

import nats
import pytest
from nats.js.api import ConsumerConfig

from duemq.dev.servers.ports import HOST
from tests.support.destinations.nats_node import NatsNode
from tests.support.servers.real_servers import need

pytestmark = [pytest.mark.anyio, pytest.mark.servers, pytest.mark.xdist_group("destinations")]
BODY = bytes(range(256))


@pytest.mark.smoke
async def test_what_was_acknowledged_survives_a_kill(own_nats: NatsNode) -> None:
    node = own_nats
    async with await nats.connect(node.url) as client:
        stream = client.jetstream()
        await stream.add_stream(name="ORDERS", subjects=["orders.>"])
        for number in [0, 1, 1, 2]:
            headers = {"Nats-Msg-Id": f"m-{number}", "Trace": "4711"}
            acknowledged = await stream.publish("orders.new", BODY, headers=headers)
            assert acknowledged.seq == number + 1
    node.restart()
    async with await nats.connect(node.url) as client:
        stream = client.jetstream()
        repeated = await stream.publish("orders.new", BODY, headers={"Nats-Msg-Id": "m-2"})
        assert repeated.duplicate  # it remembers them, too
        consumer = await stream.pull_subscribe("orders.>", config=ConsumerConfig(ack_wait=60))
        assert (await stream.stream_info("ORDERS")).state.messages == 3
        messages = await consumer.fetch(3, timeout=60)
        assert [message.headers["Nats-Msg-Id"] for message in messages if message.headers] == ["m-0", "m-1", "m-2"]


# Not in CI, which would have to build the command line of NATS: a minute on a new machine.
async def test_what_arrived_is_shown(nats_server: NatsNode) -> None:
    async with await nats.connect(nats_server.url) as client:
        stream = client.jetstream()
        await stream.add_stream(name="SHOWN", subjects=["shown.>"])
        assert nats_server.dump("SHOWN") == []
        for number in range(3):
            await stream.publish("shown.new", BODY, headers={"Nats-Msg-Id": f"m-{number}", "Trace": "4711"})
    arrived = nats_server.dump("SHOWN")
    assert [each.body for each in arrived] == [BODY] * 3
    assert [each.properties for each in arrived] == [{"subject": "shown.new", "sequence": n} for n in (1, 2, 3)]
    assert arrived[1].headers == {"Nats-Msg-Id": ["m-1"], "Trace": ["4711"]}


async def test_tls(tmp_path: Path) -> None:
    with need(lambda: NatsNode(tmp_path, tls=True)) as node:
        context = ssl.create_default_context(cafile=node.ca)
        async with await nats.connect(node.url, tls=context, tls_hostname=HOST) as client:
            await client.jetstream().add_stream(name="ORDERS", subjects=["orders"])
            await client.jetstream().publish("orders", BODY)
        assert [each.body for each in node.dump("ORDERS")] == [BODY]
