"""Destinations over HTTP: declared and changed by administrators, paused and tested by operators, never a secret."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from typing import Any

import pytest

from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.bus.topic_cursor import encode_cursor
from duemq.cluster.topics.internal_topics import create_logs
from duemq.model.destinations.destination import Credentials, Destination, read_credentials
from duemq.model.errors import Rejected
from duemq.model.messages.names import group_cursor
from duemq.model.messages.record import pack_record
from duemq.proxy.relay_access import RelayAccess, SystemReply
from duemq.proxy.request.ingress import Ingress, MessageLimits
from tests.support.http.http_site import FORM, NOW
from tests.unit.http.test_http_access import Site, code_of, with_site

SECRET = "s3cret-of-the-shop"
SHOP: dict[str, Any] = {
    "name": "shop", "url": "https://shop.example.com/hook", "topics": ["orders"], "rate": 5, "timeout": "30s",
    "retry": {"kind": "exponential", "first": "2s"}, "options": {"method": "PUT"},
    "credentials": {"username": "u", "password": SECRET, "headers": {"x-key": SECRET}},
}  # fmt: skip
RECORD = pack_record(None, (), b"x")


class Destinations(Site):
    """A site with a log of its own that has records, and a relay that is scripted."""

    def __init__(self) -> None:
        super().__init__()
        self.tested: list[tuple[Destination, Credentials]] = []
        self.reply: SystemReply | Exception = SystemReply("accepted", "200", "", 3.5)
        self.figures: dict[str, dict[str, Any]] = {}
        self.at_work: set[str] = set()
        self.bus: MemoryBus

    async def ended(self, name: str, topics: Collection[str]) -> None:
        if self.at_work & set(topics):
            raise Rejected("conflict", "a relay is at work", "topics")

    async def test(self, destination: Destination, credentials: Credentials) -> SystemReply:
        self.tested.append((destination, credentials))
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply


def with_destinations(scenario: Callable[[Destinations], Awaitable[None]]) -> None:
    site = Destinations()

    async def run(_: Site) -> None:
        site.bus = MemoryBus(MemoryLog(lambda: NOW))
        await create_logs(site.bus, 1)
        await site.bus.create_topic("orders", 2)
        await site.bus.append({("orders", 0): [RECORD] * 3, ("orders", 1): [RECORD]})
        await site.bus.trim("orders", 0, 1)
        site.gateway.bus = site.bus
        app = site.http._transport.app  # type: ignore[attr-defined]
        ingress = Ingress(MessageLimits(), destinations=lambda: site.admin.destinations.by_name)
        relay = RelayAccess(site.test, site.figures.get, site.ended)
        app.service = replace(app.service, relay=relay, ingress=ingress)
        await scenario(site)

    asyncio.run(site.run(run))


def test_a_destination_is_declared_shown_changed_and_removed() -> None:
    async def scenario(site: Destinations) -> None:
        declared = await site.ask("POST", "/v1/destinations", body=SHOP)
        assert declared.status_code == 201 and declared.headers["Location"] == "destinations/shop"
        shown = declared.json()
        assert shown == {
            "name": "shop", "url": SHOP["url"], "system": "http", "state": "active", "topic": "destination.shop",
            "group": "destination.shop", "topics": ["orders"], "rate": 5, "concurrency": 0, "timeout": 30_000,
            "ordered": False, "options": shown["options"], "retry": shown["retry"], "paused": False, "disabled": "",
            "credentials": ["headers", "password", "username"], "figures": None,
        }  # fmt: skip
        assert shown["options"]["method"] == "PUT"
        assert (shown["retry"]["kind"], shown["retry"]["first"]) == ("exponential", 2_000)
        site.figures["shop"] = {"lag": 7}
        looked_up = (await site.ask("GET", "/v1/destinations/shop")).json()
        assert looked_up == shown | {"figures": {"lag": 7}}
        assert (await site.ask("GET", "/v1/destinations")).json() == {"destinations": [looked_up]}

        changed = await site.ask("PATCH", "/v1/destinations/shop", body={"rate": 9, "topics": ["orders", "bills"]})
        assert changed.json() == looked_up | {"rate": 9, "topics": ["orders", "bills"]}
        again = {name: value for name, value in changed.json().items() if name in ("url", "topics", "retry", "options")}
        same = await site.ask("PATCH", "/v1/destinations/shop", body=again)
        assert same.json() == changed.json(), "what is shown can be sent"

        removed = await site.ask("DELETE", "/v1/destinations/shop")
        assert (removed.status_code, removed.content) == (204, b"")
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", ":pause"), ("POST", ":test")):
            answer = await site.ask(method, f"/v1/destinations/shop{path}")
            assert (answer.status_code, code_of(answer)) == (404, "unknown_destination")
        assert (await site.ask("PATCH", "/v1/destinations/shop:pause")).status_code == 405
        missing = await site.ask("PATCH", "/v1/destinations/shop", body={})
        assert code_of(missing) == "unknown_destination"

    with_destinations(scenario)


def test_what_is_refused_names_the_field_and_tells_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(site: Destinations) -> None:
        await site.ask("POST", "/v1/destinations", body=SHOP)
        wrong: list[tuple[dict[str, Any], str, str | None]] = [
            ({}, "destination_exists", "name"),
            ({"name": "a b"}, "bad_field", "name"), ({"colour": 1}, "unknown_field", "colour"),
            ({"disabled": "x"}, "unknown_field", "disabled"), ({"start": "middle"}, "bad_field", "start"),
            ({"replace": 1}, "bad_field", "replace"), ({"credentials": SECRET}, "bad_field", "credentials"),
            ({"credentials": {"password": [SECRET]}}, "bad_field", "credentials.password"),
            ({"credentials": {"pin": SECRET}}, "unknown_field", "credentials.pin"),
            ({"url": f"https://u:{SECRET}@shop.example.com"}, "bad_field", "url"),
            ({"options": {"colour": 1}}, "unknown_field", "options.colour"),
            ({"topics": ["duemq.admin"]}, "bad_field", "topics"), ({"rate": True}, "bad_field", "rate"),
            ({"rate": "5"}, "bad_field", "rate"), ({"timeout": True}, "bad_field", "timeout"),
            ({"timeout": "500"}, "bad_field", "timeout"),
            ({"retry": {"kind": "delays", "delays": [False]}}, "bad_field", "retry.delays.0"),
            ({"retry": {"factor": True}}, "bad_field", "retry.factor"), ({"paused": 1}, "bad_field", "paused"),
            ({"ordered": "yes"}, "bad_field", "ordered"),
            ({"credentials": {"password": SECRET * 500}}, "bad_field", "credentials"),
        ]  # fmt: skip
        for fields, code, field in wrong:
            answer = await site.ask("POST", "/v1/destinations", body={**SHOP, **fields})
            assert (code_of(answer), answer.json().get("field")) == (code, field), (fields, answer.text)
            assert SECRET not in answer.text
        moved = await site.ask("PATCH", "/v1/destinations/shop", body={"url": "https://evil.example.com"})
        assert (code_of(moved), moved.json()["field"]) == ("bad_field", "credentials")
        replaced = await site.ask(
            "POST", "/v1/destinations", body={"name": "shop", "url": SHOP["url"], "replace": True}
        )
        assert replaced.status_code == 201 and replaced.json()["credentials"] == ["headers", "password", "username"]
        assert replaced.json()["rate"] == 0
        await site.admin.trail.flush()
        trail = await site.ask("GET", "/v1/trail?limit=1000")
        done = [(entry["action"], entry["code"]) for entry in trail.json()["entries"]]
        assert ("POST /v1/destinations", "") in done and ("PATCH /v1/destinations/{name}", "bad_field") in done
        everything = trail.text + (await site.ask("GET", "/v1/destinations")).text + caplog.text
        assert SECRET not in everything

    with caplog.at_level(logging.DEBUG):
        with_destinations(scenario)


def test_a_group_begins_where_the_topics_end_or_as_it_is_told() -> None:
    async def scenario(site: Destinations) -> None:
        async def place(topic: str) -> bytes | None:
            return await site.bus.get_consumer_cursor(topic, group_cursor("destination.shop"))

        await site.ask("POST", "/v1/destinations", body=SHOP)
        assert await place("orders") == encode_cursor("orders", (3, 1)).encode()
        assert await place("destination.shop") == encode_cursor("destination.shop", ()).encode(), (
            "from its first record"
        )
        await site.bus.append({("orders", 0): [RECORD]})
        await site.ask("PATCH", "/v1/destinations/shop", body={"rate": 1, "start": "first"})
        assert await place("orders") == encode_cursor("orders", (3, 1)).encode(), "it goes on where it is"
        await site.ask("PATCH", "/v1/destinations/shop", body={"topics": []})
        await site.ask("PATCH", "/v1/destinations/shop", body={"topics": ["orders"], "start": "first"})
        assert await place("orders") == encode_cursor("orders", (1, 0)).encode()

        await site.bus.set_consumer_cursor(
            "destination.shop", group_cursor("destination.shop"), b"of a topic that is gone"
        )
        await site.ask("DELETE", "/v1/destinations/shop")
        await site.ask("POST", "/v1/destinations", body=SHOP)
        assert await place("orders") == encode_cursor("orders", (4, 1)).encode()
        assert await place("destination.shop") == encode_cursor("destination.shop", ()).encode()

    with_destinations(scenario)


def test_operators_pause_resume_and_test() -> None:
    async def scenario(site: Destinations) -> None:
        await site.ask("POST", "/v1/destinations", body=SHOP)
        admin, key = await site.key("admin"), await site.key("operate")
        states = [
            (await site.ask("POST", f"/v1/destinations/shop:{step}", key)).json()["state"]
            for step in ("pause", "pause", "resume")
        ]
        assert states == ["paused", "paused", "active"]
        await site.admin.destinations.disable("shop", "410 Gone", "relay")
        gone = (await site.ask("GET", "/v1/destinations/shop", admin)).json()
        assert (gone["state"], gone["disabled"], gone["paused"]) == ("disabled", "410 Gone", False)
        assert (await site.ask("POST", "/v1/destinations/shop:resume", key)).json()["state"] == "active"

        site.reply = SystemReply("failed", "500", "out of order", 12.5)
        tested = await site.ask("POST", "/v1/destinations/shop:test", key)
        assert tested.json() == {"result": "failed", "status": "500", "detail": "out of order", "took_ms": 12.5}
        ((destination, credentials),) = site.tested
        assert destination.name == "shop" and credentials == read_credentials(SHOP["credentials"])
        site.reply = Rejected("not_supported", "it needs x: pip install 'duemq[http]'")
        missing = await site.ask("POST", "/v1/destinations/shop:test", key)
        assert (code_of(missing), "duemq[http]" in missing.text) == ("not_supported", True)
        for method, path, body in (("POST", "", SHOP), ("PATCH", "/shop", {}), ("DELETE", "/shop", None)):
            assert (await site.ask(method, f"/v1/destinations{path}", key, body)).status_code == 403

    with_destinations(scenario)


def test_a_key_for_some_topics_knows_a_destination_whose_topics_are_all_its_own() -> None:
    async def scenario(site: Destinations) -> None:
        await site.ask("POST", "/v1/destinations", body=SHOP)
        for topics, covered in (
            (["destination.shop"], False), (["orders"], False), (["destination.*", "orders"], True), ([], True),
        ):  # fmt: skip
            key = await site.key("read", "operate", topics=topics)
            listed = (await site.ask("GET", "/v1/destinations", key)).json()["destinations"]
            assert [one["name"] for one in listed] == ["shop"] * covered
            for method, step in (("GET", ""), ("POST", ":pause"), ("POST", ":test")):
                answer = await site.ask(method, f"/v1/destinations/shop{step}", key)
                assert answer.status_code == (200 if covered else 404)

    with_destinations(scenario)


def test_a_message_names_a_destination_instead_of_a_topic() -> None:
    async def scenario(site: Destinations) -> None:
        await site.ask("POST", "/v1/destinations", body=SHOP)
        message = {"destination": "shop", "payload": "p", "deliver_after": "1h"}
        accepted = await site.ask("POST", "/v1/messages", body=message)
        assert accepted.status_code == 201 and accepted.json()["topic"] == "destination.shop"
        batch = [message, {**message, "destination": "nobody"}, {**message, "topic": "orders"}]
        results = (await site.ask("POST", "/v1/messages:batch", body={"messages": batch})).json()["results"]
        assert [one.get("topic") or (one["error"]["code"], one["error"]["field"]) for one in results] == [
            "destination.shop", ("unknown_destination", "destination"), ("bad_field", "destination"),
        ]  # fmt: skip
        raw = await site.http.post("/v1/messages", content=b"p", headers=FORM | {"duemq-destination": "shop"})
        assert raw.json()["topic"] == "destination.shop"
        for name in ("nobody", 5, None, "", "a/b"):
            refused = await site.ask("POST", "/v1/messages", body={**message, "destination": name})
            assert code_of(refused) == ("unknown_destination" if isinstance(name, str) else "bad_field")

        named = await site.ask("PUT", "/v1/messages/first", body=message)
        await site.ask("DELETE", "/v1/destinations/shop")
        assert code_of(await site.ask("POST", "/v1/messages", body=message)) == "unknown_destination"
        again = await site.ask("PUT", "/v1/messages/first", body=message)
        assert (again.status_code, again.json()["id"]) == (200, named.json()["id"]), "a repeat gets the first receipt"

    with_destinations(scenario)


def test_a_key_sends_to_a_destination_by_its_topic() -> None:
    async def scenario(site: Destinations) -> None:
        await site.ask("POST", "/v1/destinations", body=SHOP)
        message = {"destination": "shop", "payload": "p", "deliver_after": "1h"}
        for topics, status in (["destination.*"], 201), (["orders"], 404):  # as of one that does not exist
            key = await site.key("send", topics=topics)
            assert (await site.ask("POST", "/v1/messages", key, message)).status_code == status

    with_destinations(scenario)


def test_a_group_is_put_nowhere_while_a_relay_still_reads_for_it() -> None:
    """What the relay stores when it ends would undo it."""

    async def scenario(site: Destinations) -> None:
        site.at_work = {"orders"}
        before = await site.bus.get_consumer_cursor("orders", group_cursor("destination.shop"))
        response = await site.ask("POST", "/v1/destinations", body=SHOP)
        assert (response.status_code, code_of(response)) == (409, "conflict")
        assert await site.bus.get_consumer_cursor("orders", group_cursor("destination.shop")) == before
        site.at_work = set()
        assert (await site.ask("POST", "/v1/destinations", body=SHOP)).status_code == 201

    with_destinations(scenario)


def test_a_web_hook_is_shown_without_its_secret_to_those_who_only_look() -> None:
    async def scenario(site: Site) -> None:
        hook = "https://hooks.example.com/services/T000/SECRETPATH?token=s3cr3t"
        for name, url in (("hook", hook), ("plain", "https://example.com/in"), ("bus", "nats://mq:4222")):
            await site.ask("POST", "/v1/destinations", body={"name": name, "url": url})
        viewer, operator = await site.key("read"), await site.key("read", "operate")
        listed = await site.ask("GET", "/v1/destinations", viewer)
        assert {one["name"]: one["url"] for one in listed.json()["destinations"]} == {
            "hook": "https://hooks.example.com/services/...", "plain": "https://example.com/in", "bus": "nats://mq:4222",
        }  # fmt: skip
        one = await site.ask("GET", "/v1/destinations/hook", viewer)
        assert "SECRET" not in one.text and "s3cr3t" not in one.text
        assert (await site.ask("GET", "/v1/destinations/hook", operator)).json()["url"] == hook

    with_site(scenario)
