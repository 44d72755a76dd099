"""Filters by how topics and names begin, in lists and jobs; each caller finds by its own names and those of all."""

from __future__ import annotations

from pathlib import Path

import pytest

from duemq.bus.memory import MemoryLog
from duemq.cluster.shards.shard_reader import Query
from duemq.model.callers.access import Grant, Scope
from duemq.model.log.job import Order
from duemq.model.messages.message import CANCEL, Draft
from duemq.model.messages.names import Name, fingerprint, of_caller, of_client
from duemq.model.timing import LAST_MS
from duemq.proxy.gateway.base import Gateway, Receipt
from duemq.proxy.gateway.limited_gateway import LimitedGateway
from duemq.proxy.jobs.work import MessageWork
from tests.support.node.memory_nodes import MemoryNode

pytestmark = pytest.mark.anyio
SHOP = Grant("shopkey", frozenset((Scope.READ, Scope.CANCEL)), topics=("orders.*",))


async def found(gateway: Gateway, query: Query) -> set[str]:
    return {state.id for state in (await gateway.find(query)).messages}


async def test_prefixes_of_topics_and_names_choose_messages(tmp_path: Path) -> None:
    async with MemoryNode(MemoryLog(), tmp_path) as node:
        await node.lead()
        gateway, ids = node.gateway, dict[str, str]()

        async def send(what: str, topic: str, name: Name) -> None:
            (receipt,) = await gateway.send(
                [Draft(topic, b"", LAST_MS - 1, name=name, fingerprint=fingerprint(what.encode()))]
            )
            assert isinstance(receipt, Receipt)
            ids[what] = receipt.id

        await send("eu", "orders.eu", of_client("order-17"))
        await send("us", "orders.us", of_client("order-2"))
        await send("other", "mail", of_client("order-18"))
        await send("shop", "orders.eu", of_caller("shopkey", "order-19"))
        await send("stranger", "orders.eu", of_caller("other", "order-1"))

        async def chosen(query: Query, through: Gateway = gateway) -> set[str]:
            by_id = {id_: what for what, id_ in ids.items()}
            return {by_id[id_] for id_ in await found(through, query)}

        assert await chosen(Query(topic_prefix="orders.")) == {"eu", "us", "shop", "stranger"}
        assert await chosen(Query(topic_prefix="orders.e", name_prefix="order-17")) == {"eu"}
        assert await chosen(Query(name_prefix="order-1")) == {"eu", "other"}
        assert await chosen(Query(name_prefix="rder-1")) == set()
        limited = LimitedGateway(gateway, SHOP, lambda count: None)
        assert await chosen(Query(name_prefix="order-1"), limited) == {"eu", "shop"}, "not those of another caller"

        async def planned(order: Order) -> set[str]:
            by_id = {id_: what for what, id_ in ids.items()}
            plan = await MessageWork(gateway, 0).plan(order, LAST_MS, None)
            return {by_id[entry] for entry in plan.entries}

        prefixes = {"topic_prefix": "orders.", "name_prefix": "order-1"}
        assert await planned(Order("cancel", prefixes, caller="shopkey")) == {"eu", "shop"}
        assert await planned(Order("cancel", prefixes, caller="")) == {"eu"}
        await gateway.change(CANCEL, [ids["us"], ids["other"]])
        assert await chosen(Query(status="cancelled", topic_prefix="orders.")) == {"us"}
        assert await chosen(Query(status="cancelled", name_prefix="order-1")) == {"other"}
