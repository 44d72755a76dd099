"""Groups over HTTP, on a relay and a log in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest

from duemq.client import AsyncClient, LeaseEnded, ReceivedMessage
from duemq.client.consumer.options import ConsumerOptions
from duemq.model.messages.record import pack_record
from duemq.proxy.relay_access import RelayAccess
from duemq.relay.embedded.log import EmbeddedLog
from duemq.relay.relay import Relay
from tests.support.patience import WITHIN_S
from tests.support.relay.relay_site import Site as Log
from tests.unit.http.test_http_access import Site, code_of
from tests.unit.http.test_http_trail import entries_of

GROUP = "/v1/topics/orders/groups/billing"


class Groups(Site):
    """A server with a relay that leases messages. `log` delivers scheduled messages at once."""

    log: Log

    async def deliver(self, *payloads: bytes | None) -> None:
        await self.log.deliver("orders", *payloads)

    async def receive(self, query: str = "", key: str = "") -> list[dict[str, Any]]:
        answer = await self.ask("POST", f"{GROUP}:receive{query}", key)
        assert answer.status_code == 200, answer.text
        messages: list[dict[str, Any]] = answer.json()["messages"]
        return messages

    async def tell(self, verb: str, body: dict[str, Any], key: str = "") -> httpx.Response:
        return await self.ask("POST", f"{GROUP}:{verb}", key, body)


def with_groups(scenario: Callable[[Groups], Awaitable[None]]) -> None:
    site = Groups()

    async def run(_: Site) -> None:
        site.log = log = Log()
        log.bus = site.bus

        def log_of(group: str, options: ConsumerOptions) -> EmbeddedLog:
            return EmbeddedLog(group, lambda: site.bus, log.schedule, lambda: site.now, "the log")

        relay = Relay(
            site.admin.destinations, site.admin.log.on_change, log_of, log.open, log.disable, lambda: site.now
        )
        site.app.service = replace(site.app.service, relay=RelayAccess(leases=relay.pool_of))
        running = asyncio.create_task(relay.run())
        try:
            async with asyncio.timeout(WITHIN_S):
                await scenario(site)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(site.run(run))


def test_the_first_receive_creates_the_group_and_it_begins_with_the_oldest_record() -> None:
    async def scenario(site: Groups) -> None:
        await site.deliver(b"1", b"\xff", None)
        await site.bus.append({("orders", 1): [pack_record(b"k", [("duemq-due", b"1795255200000")], b"4")]})
        messages = list[dict[str, Any]]()
        while len(messages) < 4:
            messages += await site.receive("?max=9&wait=5s&visibility=1m")
        assert sorted(str(each.get("payload", each.get("payload_base64"))) for each in messages) == [
            "/w==",
            "1",
            "4",
            "None",
        ]
        (keyed,) = [each for each in messages if each["key"]]
        assert keyed["due_at"] == "2026-11-21T10:00:00.000Z" and keyed["headers"] == {} and keyed["key"] == "k"
        assert {each["attempt"] for each in messages} == {1} and keyed["topic"] == "orders"
        assert await site.receive() == [], "leased messages are hidden"
        group = (await site.ask("GET", GROUP)).json()
        assert (group["visibility"], group["attempts"], group["destination"]) == (30_000, 17, "orders.billing")
        assert (await site.ask("GET", "/v1/topics/orders/groups")).json() == {"groups": [group]}
        assert (await site.ask("GET", "/v1/topics/mail/groups")).json() == {"groups": []}
        assert (await site.ask("DELETE", GROUP)).status_code == 204
        assert code_of(await site.ask("GET", GROUP)) == "unknown_group"

    with_groups(scenario)


def test_one_receipt_has_an_answer_and_several_have_a_result_each() -> None:
    async def scenario(site: Groups) -> None:
        await site.deliver(b"1", b"2", b"3")
        receipts = [(await site.receive("?wait=5s"))[0]["receipt"] for _ in range(3)]
        one, two, three = receipts
        extended = await site.tell("extend", {"receipt": one, "visibility": "1h"})
        assert extended.json() == {"receipt": one, "status": "extended"}
        results = (await site.tell("ack", {"receipts": [one, "0-1", two]})).json()["results"]
        assert [each.get("status") or each["error"]["code"] for each in results] == ["acked", "lease_ended", "acked"]
        assert (await site.tell("ack", {"receipt": one})).status_code == 200, "a repeat gets the same answer"
        refused = await site.tell("nack", {"receipt": one})
        assert (refused.status_code, code_of(refused)) == (409, "lease_ended")
        assert (await site.tell("nack", {"receipt": three, "reason": "no stock"})).json()["status"] == "nacked"
        (again,) = await site.receive("?wait=5s")
        assert (again["payload"], again["attempt"]) == ("3", 2)
        dead = await site.tell("nack", {"receipt": again["receipt"], "dead_letter": True})
        assert dead.json()["status"] == "dead"
        await site.log.filled("dlq.destination.orders.billing", 1)

    with_groups(scenario)


def test_a_group_is_declared_and_changed() -> None:
    async def scenario(site: Groups) -> None:
        await site.deliver(b"1")
        declared = await site.ask("PUT", GROUP, body={"visibility": "2m", "attempts": 1, "start": "last"})
        assert (declared.status_code, declared.json()["visibility"]) == (201, 120_000)
        same = await site.ask("PUT", GROUP, body={"visibility": "2m", "attempts": 1})
        assert (same.status_code, same.json()) == (200, declared.json())
        await site.deliver(b"2")
        (two,) = await site.receive("?wait=5s")
        assert two["payload"] == "2", "it starts at the end"
        await site.tell("nack", {"receipt": two["receipt"]})
        await site.log.filled("dlq.destination.orders.billing", 1)
        assert (await site.ask("PUT", GROUP, body={"attempts": 3})).json()["attempts"] == 3
        await site.admin.destinations.pause("orders.billing", "test")
        paused = await site.ask("POST", f"{GROUP}:receive")
        assert (paused.status_code, code_of(paused)) == (503, "unavailable")

    with_groups(scenario)


def test_what_may_be_received_is_a_matter_of_scope_and_topic() -> None:
    async def scenario(site: Groups) -> None:
        await site.deliver(b"1")
        reader, consumer = await site.key("read", topics=["orders"]), await site.key("consume", topics=["orders"])
        other = await site.key("consume", topics=["mail"])
        for key in (reader, other):
            assert code_of(await site.ask("POST", f"{GROUP}:receive", key)) == "forbidden"
        (one,) = await site.receive("?wait=5s", consumer)
        assert code_of(await site.tell("ack", {"receipt": one["receipt"]}, other)) == "forbidden"
        assert (await site.tell("ack", {"receipt": one["receipt"]}, consumer)).status_code == 200

    with_groups(scenario)


@pytest.mark.parametrize(
    ("verb", "query", "body", "code", "field"),
    [
        ("receive", "?max=0", None, "bad_query", "max"),
        ("receive", "?max=1001", None, "bad_query", "max"),
        ("receive", "?visibility=13h", None, "bad_query", "visibility"),
        ("receive", "?visibility=5ms", None, "bad_query", "visibility"),
        ("receive", "?wait=x", None, "bad_query", "wait"),
        ("ack", "", {}, "bad_field", "receipt"),
        ("ack", "", {"receipt": "a-1", "receipts": []}, "bad_field", "receipt"),
        ("ack", "", {"receipts": "a-1"}, "bad_field", "receipts"),
        ("ack", "", {"receipts": ["a"] * 1_001}, "batch_too_large", "receipts"),
        ("ack", "", {"receipt": 1}, "bad_field", "receipts"),
        ("ack", "", {"receipt": "a-1", "delay": 1}, "unknown_field", "delay"),
        ("nack", "", {"receipt": "a-1", "delay": "-1s"}, "negative_delay", "delay"),
        ("nack", "", {"receipt": "a-1", "delay": 1e300}, "delay_too_long", "delay"),
        ("nack", "", {"receipt": "a-1", "delay": 1, "dead_letter": True}, "bad_field", "delay"),
        ("nack", "", {"receipt": "a-1", "reason": "x" * 201}, "bad_field", "reason"),
        ("extend", "", {"receipt": "a-1"}, "bad_field", "visibility"),
        ("extend", "", {"receipt": "a-1", "visibility": "1ms"}, "bad_field", "visibility"),
        ("ack", "", {"receipt": "a-1"}, "unknown_group", "group"),
    ],
)
def test_a_wrong_request_is_told_the_field_and_its_limit(
    verb: str, query: str, body: Any, code: str, field: str
) -> None:
    async def scenario(site: Groups) -> None:
        refused = await site.ask("POST", f"{GROUP}:{verb}{query}", body=body)
        assert (code_of(refused), refused.json()["field"]) == (code, field), refused.text
        assert not site.admin.destinations.by_name, "and creates no group"

    with_groups(scenario)


def test_a_server_that_leases_nothing_says_so_and_stores_nothing() -> None:
    async def scenario(site: Site) -> None:
        for method, path, body in (
            ("POST", f"{GROUP}:receive", None), ("PUT", GROUP, {}),
            ("POST", "/v1/destinations", {"name": "orders.billing", "url": "pull:", "topics": ["orders"]}),
        ):  # fmt: skip
            assert code_of(await site.ask(method, path, body=body)) == "not_supported"
        assert not site.admin.destinations.by_name

    asyncio.run(Site().run(scenario))


def test_the_sdk_receives_and_acknowledges() -> None:
    async def scenario(site: Groups) -> None:
        transport = httpx.ASGITransport(site.app)
        async with AsyncClient("http://x", transport=transport) as client:
            made = await client.put_group("orders", "billing", visibility="1m", attempts=2)
            assert (made["visibility"], made["attempts"]) == (60_000, 2)
            await site.deliver(b"1", b"2", None)
            messages = list[ReceivedMessage]()
            while len(messages) < 3:
                messages += await client.receive("orders", "billing", max=5, wait=timedelta(seconds=5), visibility="2m")
            one, two, null = sorted(messages, key=lambda message: message.payload or b"3")
            assert (one.attempt, one.id, one.header_list, null.is_null) == (1, "id-1", (("h", b"1"),), True)
            await client.extend("orders", "billing", one.receipt, timedelta(minutes=1))
            assert await client.ack_many("orders", "billing", [one.receipt, null.receipt]) == [None, None]
            await client.nack("orders", "billing", two.receipt, reason="no stock")
            with pytest.raises(LeaseEnded):
                await client.ack("orders", "billing", two.receipt)
            (again,) = await client.receive("orders", "billing", wait=timedelta(seconds=5))
            assert (again.payload, again.attempt) == (b"2", 2)
            await client.nack("orders", "billing", again.receipt, dead_letter=True)
            await site.log.filled("dlq.destination.orders.billing", 1)

    with_groups(scenario)


def test_groups_of_a_topic_and_in_all_are_bounded() -> None:
    async def scenario(site: Groups) -> None:
        await site.admin.destinations.declare({"name": "hook", "url": "https://h.example/", "paused": True}, None, "")
        for topic in range(5):
            for number in range(20):
                answer = await site.ask("PUT", f"/v1/topics/t{topic}/groups/g{number}", body={})
                assert answer.status_code == 201
            assert code_of(await site.ask("PUT", f"/v1/topics/t{topic}/groups/g", body={})) == "too_many_groups"
        assert code_of(await site.ask("POST", f"{GROUP}:receive")) == "too_many_groups"
        await site.ask("DELETE", "/v1/topics/t0/groups/g0")
        assert (await site.ask("POST", f"{GROUP}:receive")).status_code == 200

    with_groups(scenario)


def test_the_trail_has_each_change_of_a_group_and_no_receive() -> None:
    async def scenario(site: Groups) -> None:
        await site.deliver(b"1")
        (one,) = await site.receive("?wait=5s")
        await site.receive()
        await site.tell("ack", {"receipt": one["receipt"]})
        await site.ask("PUT", GROUP, body={})
        await site.ask("PUT", GROUP, body={"attempts": 3})
        await site.ask("DELETE", GROUP)
        actions = [entry["action"].partition(" /v1/topics/{topic}/groups/")[::2] for entry in await entries_of(site)]
        assert actions == [("DELETE", "{group}"), ("PUT", "{group}"), ("POST", "{group}:receive")]

    with_groups(scenario)
