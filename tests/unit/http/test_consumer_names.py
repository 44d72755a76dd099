"""How many names a caller gives consumers, and which of them count."""

from __future__ import annotations

import asyncio

import pytest

from duemq.bus.topic_cursor import encode_cursor
from duemq.model.messages.names import consumer_cursor
from duemq.proxy.request import consumer_names
from tests.unit.http.test_http_access import Site, code_of, with_site

PLACE = {"cursor": encode_cursor("orders", [0])}


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_names, "MAX_NAMES", 3)


async def put(site: Site, key: str, name: str, topic: str = "orders") -> int:
    answer = await site.ask("PUT", f"/v1/topics/{topic}/consumers/{name}", key, {"cursor": encode_cursor(topic, [0])})
    assert answer.status_code == 204 or (answer.status_code, code_of(answer)) == (409, "too_many_consumers")
    return answer.status_code


def test_a_caller_has_so_many_names_in_all_topics_and_none_of_another_caller() -> None:
    async def scenario(site: Site) -> None:
        for topic in ("orders", "invoices"):
            await site.bus.create_topic(topic, 1)
        ann, bob, root = await site.key("consume"), await site.key("consume"), await site.key("admin")
        assert [await put(site, ann, name) for name in "ab"] == [204] * 2
        assert [await put(site, ann, "a", "invoices"), await put(site, ann, "c")] == [204, 409]
        assert [await put(site, ann, name) for name in "abab"] == [204] * 4, "these are there"
        refused = (await site.ask("PUT", "/v1/topics/orders/consumers/c", ann, PLACE)).json()
        assert "3 names" in refused["detail"] and refused["field"] == "consumer"
        assert [await put(site, bob, name) for name in "cde"] == [204] * 3
        assert await put(site, ann, "c") == 204, "bob's is there, and a cursor that is there costs nothing"
        assert await put(site, root, "f") == 204

    with_site(scenario)


def test_a_name_that_is_deleted_makes_room_and_its_consumer_begins_at_the_start() -> None:
    async def scenario(site: Site) -> None:
        await site.bus.create_topic("orders", 1)
        key, reader = await site.key("consume"), await site.key("read")
        assert [await put(site, key, name) for name in "abcd"] == [204] * 3 + [409]
        assert (await site.ask("DELETE", "/v1/topics/orders/consumers/b", reader)).status_code == 403
        for _ in range(2):
            assert (await site.ask("DELETE", "/v1/topics/orders/consumers/b", key)).status_code == 204
        assert (await site.ask("GET", "/v1/topics/orders/consumers/b", reader)).content == b""
        assert [await put(site, key, name) for name in "dbd"] == [204, 409, 204]

    with_site(scenario)


def test_names_from_before_the_limit_go_on_and_count_for_nobody() -> None:
    async def scenario(site: Site) -> None:
        await site.bus.create_topic("orders", 1)
        key = await site.key("consume")
        for number in range(10):
            await site.bus.set_consumer_cursor("orders", consumer_cursor(f"old-{number}"), PLACE["cursor"].encode())
        assert [await put(site, key, f"old-{number}") for number in range(10)] == [204] * 10
        assert [await put(site, key, name) for name in "abcd"] == [204] * 3 + [409]

    with_site(scenario)


def test_names_that_come_at_once_are_all_counted() -> None:
    async def scenario(site: Site) -> None:
        await site.bus.create_topic("orders", 1)
        key = await site.key("consume")
        refused = list[int]()
        site.app.consumer_names.on_refused = lambda: refused.append(1)
        codes = await asyncio.gather(*(put(site, key, f"n{number}") for number in range(10)))
        assert sorted(codes) == [204] * 3 + [409] * 7 and len(refused) == 7

    with_site(scenario)
