"""Who declares a destination reaches public addresses only, whatever its URL, its name server or its answers say."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from ipaddress import ip_network
from unittest import mock

import pytest

from duemq.model.destinations.destination import Credentials
from duemq.model.errors import Rejected
from duemq.relay.base import Reply, Result
from duemq.relay.http.outlet import HttpOutlet
from duemq.relay.network import resolver
from duemq.relay.outlets import RelayPolicy
from tests.functional.relay.hostile_urls import FORBIDDEN_ANSWERS, LITERALS
from tests.support.outlets.http_site import Endpoint, full_host, http_destination, status
from tests.support.outlets.site import LOOPBACK, out_message

pytestmark = pytest.mark.anyio

NOTHING_ALLOWED = RelayPolicy()
PUBLIC = "93.184.215.14"


class Names:
    """A name server of the test's own: its answers, one after another; the last one again and again."""

    def __init__(self, *answers: Sequence[str] | OSError) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, OSError):
            raise answer
        return answer


@pytest.fixture
async def sinks() -> AsyncIterator[list[Endpoint]]:
    """On 127.0.0.1 and ::1, at the same port."""
    first = Endpoint()
    await first.start()
    second = Endpoint(host="::1")
    second.port = first.port
    with suppress(OSError):  # a machine without IPv6 has nothing to reach there
        await second.start()
    yield [first, second]
    await first.stop()
    await second.stop()


async def reply_of(url: str, policy: RelayPolicy = NOTHING_ALLOWED, names: Names | None = None) -> Reply:
    outlet = HttpOutlet(http_destination(url, timeout=2_000), Credentials(), policy, names)
    try:
        return await outlet.send(out_message())
    finally:
        await outlet.close()


def test_the_list_is_long_enough() -> None:
    assert len(set(LITERALS)) == len(LITERALS) >= 60


@pytest.mark.parametrize("url", LITERALS)
async def test_no_hostile_url_is_connected_to(url: str, sinks: list[Endpoint]) -> None:
    url = url.replace("{port}", str(sinks[0].port))
    try:
        # A name is never looked up outside: what is no address here has none.
        with mock.patch.object(socket, "getaddrinfo", _local_names):
            reply = await reply_of(url)
    except Rejected as error:
        assert error.field == "url"
    else:
        assert reply.result is Result.AWAY
        assert reply.status in ("forbidden_address", "dns_error", "bad_url"), reply
    await asyncio.sleep(0)
    assert [sink.connections for sink in sinks] == [0, 0]


_lookup = socket.getaddrinfo


def _local_names(host: str, *rest: object, **options: object) -> object:
    if "localhost" not in host and host.strip(".[]").replace(".", "").isalpha():
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return _lookup(host, *rest, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}/", "http://localhost:{port}/", "http://0x7f.1:{port}/"])
async def test_the_same_urls_are_reached_where_the_operator_allows_it(url: str, sinks: list[Endpoint]) -> None:
    reply = await reply_of(url.replace("{port}", str(sinks[0].port)), LOOPBACK)
    assert reply.result is Result.ACCEPTED, "so the sinks see what comes"


@pytest.mark.parametrize("answer", FORBIDDEN_ANSWERS, ids=str)
async def test_no_answer_of_a_name_server_leads_inside(answer: list[str], sinks: list[Endpoint]) -> None:
    reply = await reply_of(f"http://hook.example:{sinks[0].port}/", names=Names(answer))
    assert (reply.result, reply.status) == (Result.AWAY, "forbidden_address")
    assert [sink.connections for sink in sinks] == [0, 0]


async def test_only_the_addresses_that_are_allowed_are_used(sinks: list[Endpoint]) -> None:
    policy = RelayPolicy(private_networks=[ip_network("127.0.0.1/32")])
    url = f"http://hook.example:{sinks[0].port}/"
    assert (await reply_of(url, policy, Names(["::1", "10.0.0.1", "127.0.0.1"]))).result is Result.ACCEPTED
    assert [sink.connections for sink in sinks] == [1, 0]


@pytest.mark.parametrize("host", ["localhost", "localhost.", "LOCALHOST", "%6cocalhost", "loc%C2%ADalhost"])
async def test_an_answer_that_changes_after_the_check_changes_nothing(host: str, sinks: list[Endpoint]) -> None:
    """DNS rebinding: the name is looked up once, and the connection goes to what was checked. The system's own
    look-up, which the client must not make, would lead to the sinks."""
    names = Names([PUBLIC], ["127.0.0.1"])
    url = f"http://{host}:{sinks[0].port}/"
    outlet = HttpOutlet(http_destination(url, timeout=500), Credentials(), NOTHING_ALLOWED, names)
    reply = await outlet.send(out_message())
    assert reply.result is Result.AWAY and reply.status in ("timeout", "refused", "unreachable"), reply
    assert [name.rstrip(".") for name in names.asked] == ["localhost"]
    await outlet.close()
    assert [sink.connections for sink in sinks] == [0, 0]


async def test_a_name_that_moves_inside_is_left_at_the_next_look_up(sinks: list[Endpoint]) -> None:
    policy = RelayPolicy(private_networks=[ip_network("127.0.0.1/32")])
    names = Names(["127.0.0.1"], ["::1"])
    url = f"http://hook.example:{sinks[0].port}/"
    with mock.patch.object(resolver, "LOOKUP_S", 0.0), mock.patch.object(resolver, "_STALE_S", 0.0):
        outlet = HttpOutlet(http_destination(url), Credentials(), policy, names)
        assert (await outlet.send(out_message())).result is Result.ACCEPTED
        reply = await outlet.send(out_message())
        assert reply.status == "forbidden_address"
        await outlet.close()
    assert [sink.connections for sink in sinks] == [1, 0]


async def test_an_old_answer_serves_while_the_name_server_is_away(sinks: list[Endpoint]) -> None:
    names = Names(["127.0.0.1"], OSError(errno.EAGAIN, "no answer"))
    url = f"http://hook.example:{sinks[0].port}/"
    with mock.patch.object(resolver, "LOOKUP_S", 0.0):
        outlet = HttpOutlet(http_destination(url), Credentials(), LOOPBACK, names)
        for _ in range(3):
            assert (await outlet.send(out_message())).result is Result.ACCEPTED
            await asyncio.sleep(0.01)
        await outlet.close()
    assert len(names.asked) > 1
    assert sinks[0].connections == 1, "the connection stays"


async def test_another_address_is_tried_after_one_that_refuses(sinks: list[Endpoint]) -> None:
    names = Names(["127.0.0.3", "127.0.0.1"])
    with mock.patch.object(resolver, "_AGAIN_S", 0.0), mock.patch.object(resolver, "_STALE_S", 0.0):
        outlet = HttpOutlet(http_destination(f"http://hook.example:{sinks[0].port}/"), Credentials(), LOOPBACK, names)
        assert (await outlet.send(out_message())).status == "refused"
        assert (await outlet.send(out_message())).result is Result.ACCEPTED
        await outlet.close()


async def test_another_address_is_tried_after_one_that_does_not_answer(sinks: list[Endpoint]) -> None:
    port = sinks[0].port
    names = Names(["127.0.0.3", "127.0.0.1"])
    with (
        full_host("127.0.0.3", port),
        mock.patch.object(resolver, "_AGAIN_S", 0.0),
        mock.patch.object(resolver, "_STALE_S", 0.0),
    ):
        outlet = HttpOutlet(
            http_destination(f"http://hook.example:{port}/", timeout=400), Credentials(), LOOPBACK, names
        )
        assert (await outlet.send(out_message())).status == "timeout"
        assert (await outlet.send(out_message())).result is Result.ACCEPTED
        await outlet.close()


async def test_an_endpoint_that_refuses_is_not_looked_up_for_each_message() -> None:
    names = Names(["127.0.0.3"])
    outlet = HttpOutlet(http_destination("http://hook.example:1/"), Credentials(), LOOPBACK, names)
    for _ in range(20):
        assert (await outlet.send(out_message())).status == "refused"
    await outlet.close()
    assert len(names.asked) <= 3


@pytest.mark.parametrize("target", ["http://169.254.169.254/latest/meta-data/", "http://127.0.0.1:{port}/inside"])
async def test_a_redirect_leads_nowhere(target: str, sinks: list[Endpoint]) -> None:
    target = target.replace("{port}", str(sinks[0].port))
    sinks[0].answer = status(302, b"", f"Location: {target}")
    reply = await reply_of(f"http://127.0.0.1:{sinks[0].port}/hook", LOOPBACK)
    assert reply == Reply(Result.FAILED, "302", target)
    assert [request.target for request in sinks[0].requests] == ["/hook"]


async def test_a_look_up_that_hangs_is_a_time_out_and_one_look_up(sinks: list[Endpoint]) -> None:
    asked: list[str] = []

    async def hangs(host: str) -> Sequence[str]:
        asked.append(host)
        await asyncio.sleep(3_600)
        return []

    outlet = HttpOutlet(http_destination("http://hook.example/", timeout=50), Credentials(), LOOPBACK, hangs)
    replies = await asyncio.gather(*(outlet.send(out_message(number)) for number in range(10)))
    replies.append(await outlet.send(out_message()))
    await outlet.close()
    assert {(reply.result, reply.status, reply.overloaded) for reply in replies} == {(Result.AWAY, "timeout", False)}
    assert len(asked) == 1
