"""A search by one text over the API: its parts, its cursors, with and without an index."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from duemq.cluster.shards.shard_reader import MessageState, Query
from duemq.model.errors import Rejected, Unavailable
from duemq.proxy.gateway.base import MessagePage
from tests.support.http.http_site import STATE, Ask, FakeGateway, refused, with_app

KEYED = [replace(STATE, id=f"key-{number}", key=b"shop") for number in range(3)]
LABELLED = [replace(STATE, id="label-0", key=b"x", labels=("shop",)), replace(KEYED[1], labels=("shop",))]
RETURN = replace(STATE, id="back", topic="retry.destination.mail", headers=(("x-duemq-id", b"key-0"),), key=b"shop")


class Shelf(FakeGateway):
    """Has the messages above; a page's cursor is the number of messages before the next one."""

    def __init__(self, refusal: Exception | None) -> None:
        super().__init__()
        self.found, self.refusal = None, refusal

    async def find(self, query: Query) -> MessagePage:
        self.queries.append(query)
        if query.newest and self.refusal is not None:
            raise self.refusal
        among = [*KEYED, RETURN] if query.key is not None else LABELLED
        matching = [one for one in among if query.status in (None, one.status)]
        first = int(query.cursor or 0)
        end = first + query.limit
        return MessagePage(matching[first:end], str(end) if end < len(matching) else None)


async def ids_of(ask: Ask, limit: int, more: str = "") -> tuple[list[str], set[bool]]:
    ids, indexed, cursor = list[str](), set[bool](), ""
    while True:
        page: Any = (await ask("GET", f"/v1/messages?search=shop&limit={limit}{more}{cursor}")).json()
        ids += [one["id"] for one in page["messages"]]
        indexed.add(page["indexed"])
        if page["cursor"] is None:
            return ids, indexed
        cursor = f"&cursor={page['cursor']}"


@pytest.mark.parametrize("limit", [1, 2, 100])
@pytest.mark.parametrize(
    "refusal", [None, Rejected("not_indexed", "no"), Unavailable("the index is being built")], ids=lambda one: str(one)
)
def test_a_search_gives_each_match_once_whatever_the_pages_and_the_index(limit: int, refusal: Exception | None) -> None:
    gateway = Shelf(refusal)

    async def scenario(_: FakeGateway, ask: Ask) -> None:
        found = await ids_of(ask, limit)
        assert found == (["key-0", "key-1", "key-2", "back", "label-0"], {refusal is None})
        if refusal is not None:
            assert {one.status for one in gateway.queries if not one.newest} >= {"scheduled", "dead"}
        assert (await ids_of(ask, limit, "&returns=false"))[0] == ["key-0", "key-1", "key-2", "label-0"]
        gateway.found = LABELLED[1]  # by its name
        assert (await ids_of(ask, limit))[0] == ["key-1", "key-0", "key-2", "back", "label-0"]
        gateway.found = replace(STATE, id="other", topic="bills")
        assert (await ids_of(ask, limit, "&topic=orders"))[0] == ["key-0", "key-1", "key-2", "back", "label-0"]

    with_app(scenario, over=gateway)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("search=", "bad_query"),
        ("search=a&key=b", "bad_query"),
        ("search=a&order=newest", "bad_query"),
        ("search=a&returns=no", "bad_query"),
        ("search=a&cursor=AAAA", "bad_cursor"),
    ],
)
def test_a_search_that_is_not_understood_is_refused(query: str, code: str) -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        assert refused(await ask("GET", f"/v1/messages?{query}"), 400, code)["field"]

    with_app(scenario)


def test_a_message_without_an_index_is_looked_for_in_every_state() -> None:
    gateway = Shelf(Rejected("not_indexed", "no"))
    dead = MessageState("d", "dead", "orders", 1, key=b"shop")
    KEYED.append(dead)
    try:

        async def scenario(_: FakeGateway, ask: Ask) -> None:
            assert "d" in (await ids_of(ask, 100))[0]
            assert (await ids_of(ask, 100, "&status=dead"))[0] == ["d"]

        with_app(scenario, over=gateway)
    finally:
        KEYED.remove(dead)
