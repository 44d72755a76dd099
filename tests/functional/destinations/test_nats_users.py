"""Users of a NATS server that sign with a key: an nkey, or a `.creds` file with a JWT."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import nats
import pytest
from nats.aio.client import RawCredentials

from duemq.model.destinations.destination import read_credentials
from duemq.model.errors import Rejected
from duemq.relay.base import Result
from tests.functional.destinations.test_nats_outlet import replies
from tests.support.destinations.nats_node import NatsNode
from tests.support.destinations.nats_users import Nkey, Operator
from tests.support.outlets.nats_site import nats_outlet
from tests.support.outlets.site import out_message
from tests.support.servers.real_servers import need

pytestmark = [pytest.mark.anyio, pytest.mark.servers, pytest.mark.smoke, pytest.mark.xdist_group("destinations")]


async def test_an_nkey(tmp_path: Path) -> None:
    known, other = Nkey.make(), Nkey.make()
    rights = 'permissions: { publish: ["orders"], subscribe: ["_INBOX.>"] }'
    settings = f"authorization {{ users = [ {{ nkey: {known.public}, {rights} }} ] }}"
    with need(lambda: NatsNode(tmp_path, settings=settings)) as node:
        (reply,) = await replies(node, b"", credentials=read_credentials({"creds": known.seed}), subject="orders")
        assert reply[:2] == (Result.FAILED, "no_stream")  # there is none: it got so far
        (reply,) = await replies(node, b"", credentials=read_credentials({"creds": known.seed}), subject="secret")
        assert reply[:2] == (Result.AWAY, "permissions")
        for credentials in ({"creds": other.seed}, {}):
            (reply,) = await replies(node, b"", credentials=read_credentials(credentials), subject="orders")
            assert reply[:2] == (Result.AWAY, "authorization")
            assert other.seed not in reply.detail


async def test_a_creds_file(tmp_path: Path) -> None:
    operator, stranger = Operator(), Operator()
    with need(lambda: NatsNode(tmp_path, settings=operator.settings)) as node:
        admin = RawCredentials(operator.creds())
        async with await nats.connect(node.url, user_credentials=admin) as client:
            await client.jetstream().add_stream(name="ORDERS", subjects=["orders", "secret"])
            relay = read_credentials({"creds": operator.creds("orders").replace("\n", "\r\n")})
            (reply,) = await replies(node, b"hello", credentials=relay, subject="orders")
            assert reply.status == "ok"
            assert (await client.jetstream().stream_info("ORDERS")).state.messages == 1
        (reply,) = await replies(node, b"", credentials=relay, subject="secret")
        assert reply[:2] == (Result.AWAY, "permissions")
        gone = operator.creds("orders", expires_at=int(time.time()) - 10)
        for creds in (stranger.creds("orders"), gone):
            (reply,) = await replies(node, b"", credentials=read_credentials({"creds": creds}), subject="orders")
            assert reply[:2] == (Result.AWAY, "authorization")


async def test_a_creds_file_that_expires_while_it_is_in_use(tmp_path: Path) -> None:
    operator = Operator()
    with need(lambda: NatsNode(tmp_path, settings=operator.settings)) as node:
        creds = operator.creds("orders", expires_at=int(time.time()) + 3)
        outlet = nats_outlet(node, read_credentials({"creds": creds}), subject="orders")
        async with asyncio.timeout(30):
            assert (await outlet.send(out_message(1))).status == "no_stream"
            while (reply := await outlet.send(out_message(2))).status != "authorization":
                assert reply.status in ("no_stream", "connection_lost")
                await asyncio.sleep(0.05)
        assert reply.result is Result.AWAY
        await outlet.close()


@pytest.mark.parametrize(
    "creds", ["guess", "SUAAA", Nkey.make().public, Nkey.make().seed * 2, f"{Nkey.make().seed}\n{Nkey.make().seed}",
              f"a {Nkey.make().seed}", "-----BEGIN NATS USER JWT-----\nx.y.z\n------END NATS USER JWT------\n"],
    ids=["a word", "short", "public", "twice", "two lines", "with a word", "only a token"],  # the keys are random
)  # fmt: skip
def test_what_is_no_key_is_refused_and_not_repeated(creds: str) -> None:
    with pytest.raises(Rejected) as refusal:
        read_credentials({"creds": creds})
    assert refusal.value.field == "credentials.creds"
    assert creds not in str(refusal.value)
