"""The index on nodes that run: several shards, a take-over, a setting that changes, and what proxies are told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from duemq.bus.memory import MemoryLog
from duemq.cluster.shards.codec import query_from_json, query_to_json
from duemq.cluster.shards.shard_reader import Query
from duemq.delay.indexing.index_worker import IndexWorker
from duemq.model.errors import Rejected, Unavailable
from duemq.model.messages.message import CANCEL, DELIVER_NOW, MOVE, Draft
from duemq.model.timing import LAST_MS
from duemq.proxy.gateway.base import Receipt
from duemq.proxy.gateway.gateway import CommandGateway
from tests.support.node.memory_nodes import MemoryNode
from tests.support.patience import WITHIN_S

pytestmark = pytest.mark.anyio

KEY = Query(key="k1", newest=True, status=None)


async def send(gateway: CommandGateway, *drafts: Draft) -> list[str]:
    receipts = await gateway.send(drafts)
    assert all(isinstance(receipt, Receipt) for receipt in receipts)
    return [receipt.id for receipt in receipts if isinstance(receipt, Receipt)]


def order(key: bytes = b"k1", topic: str = "orders", due: int = LAST_MS - 1, *labels: str) -> Draft:
    return Draft(topic, b"pay", due, key, labels=labels)


async def found(gateway: CommandGateway, query: Query) -> list[tuple[str, str]]:
    """Ids and states, page after page."""
    answers: list[tuple[str, str]] = []
    while True:
        page = await gateway.find(query)
        answers += [(state.id, state.status) for state in page.messages]
        if page.cursor is None:
            return answers
        query = replace(query, cursor=page.cursor)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.01)


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


async def topics(node: MemoryNode) -> None:
    for topic in ("orders", "other"):
        await node.node.bus.create_topic(topic, 1)


async def test_the_newest_come_first_whatever_became_of_them(log: MemoryLog, tmp_path: Path) -> None:
    async with MemoryNode(log, tmp_path / "a", indexed_topics=("ord*",)) as node:
        await node.lead()
        await topics(node)
        gateway = node.gateway
        ids = []
        for number in range(4):
            ids += await send(gateway, order(b"k1", "orders", LAST_MS - number, "eu"))
            await asyncio.sleep(0.002)
        await send(gateway, order(b"k1", "other"), order(b"k2"))
        await gateway.change(CANCEL, [ids[1]])
        await asyncio.sleep(0.002)
        await gateway.change(MOVE, [ids[0]], LAST_MS - 9)
        await asyncio.sleep(0.002)
        await gateway.change(DELIVER_NOW, [ids[2]])
        await until(lambda: _is(gateway, ids[2], "delivered"))

        newest = [(ids[2], "delivered"), (ids[0], "scheduled"), (ids[3], "scheduled"), (ids[1], "cancelled")]
        assert await found(gateway, KEY) == newest
        assert await found(gateway, replace(KEY, limit=1)) == newest
        assert await found(gateway, replace(KEY, topic="orders", label="eu")) == newest
        assert await found(gateway, replace(KEY, key=None, label="eu")) == newest
        assert await found(gateway, replace(KEY, status="scheduled", due_from=LAST_MS - 8)) == [newest[2]]
        assert await found(gateway, replace(KEY, status="cancelled")) == [newest[3]]
        assert await found(gateway, replace(KEY, label="us")) == []
        # A list by due time is what it was, also where it comes from the index.
        assert await found(gateway, Query("orders", key="k1")) == [newest[1], newest[2]]
        assert len(await found(gateway, Query(key="k1"))) == 3

        with pytest.raises(Rejected) as refused:
            await gateway.find(replace(KEY, topic="other"))
        assert refused.value.code == "not_indexed"
        with pytest.raises(Rejected) as refused:
            await gateway.find(Query(newest=True, status=None, topic="orders"))
        assert refused.value.code == "bad_query"
        with pytest.raises(Rejected) as refused:
            page = await gateway.find(Query("orders", limit=1))
            await gateway.find(replace(KEY, cursor=page.cursor))
        assert refused.value.code == "bad_cursor", "a cursor of another order"


async def _is(gateway: CommandGateway, id_: str, status: str) -> bool:
    state = await gateway.state(id_)
    return state is not None and state.status == status


async def test_a_list_by_due_time_looks_at_no_other_message(
    log: MemoryLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with MemoryNode(log, tmp_path / "a", indexed_topics=("orders",)) as node:
        await node.lead()
        await topics(node)
        (id_,) = await send(node.gateway, order())
        await send(node.gateway, order(b"k1", "other"))
        scanned: list[tuple[Any, ...]] = []
        scan_part = node.shard.store.scan_part

        def note(*asked: Any) -> Any:
            scanned.append(asked)
            return scan_part(*asked)

        monkeypatch.setattr(node.shard.store, "scan_part", note)
        assert await found(node.gateway, Query("orders", key="k1")) == [(id_, "scheduled")]
        assert not scanned
        assert len(await found(node.gateway, Query(key="k1"))) == 2, "not all topics are indexed"
        assert scanned


async def test_a_standby_finds_the_same_after_its_take_over(log: MemoryLog, tmp_path: Path) -> None:
    async with MemoryNode(log, tmp_path / "b", indexed_topics=("*",)) as standby:
        async with MemoryNode(log, tmp_path / "a", indexed_topics=("*",)) as node:
            await node.lead()
            await topics(node)
            for number in range(20):
                ids = await send(node.gateway, order(b"k%d" % (number % 2), "orders", LAST_MS - number, "eu"))
            await node.gateway.change(CANCEL, ids)
            before = await found(node.gateway, KEY), await found(node.gateway, replace(KEY, key=None, label="eu"))
            assert len(before[0]) == 10 and len(before[1]) == 20
        await standby.lead()
        after = await found(standby.gateway, KEY), await found(standby.gateway, replace(KEY, key=None, label="eu"))
        assert after == before


async def test_what_was_there_before_is_indexed_and_until_then_scanned(
    log: MemoryLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with MemoryNode(log, tmp_path / "a") as node:
        await node.lead()
        await topics(node)
        ids = await send(node.gateway, order(), order(b"k2"), order())
        await node.gateway.change(CANCEL, ids[2:])
        with pytest.raises(Rejected):
            await node.gateway.find(KEY)
        assert not node.shard.store.index
    step, wait = IndexWorker.step, asyncio.Event()

    async def held(self: IndexWorker) -> bool:
        await wait.wait()
        return await step(self)

    monkeypatch.setattr(IndexWorker, "step", held)
    async with MemoryNode(log, tmp_path / "a", indexed_topics=("*",)) as node:
        await node.lead()
        ids += await send(node.gateway, order())
        with pytest.raises(Unavailable, match="built"):
            await node.gateway.find(KEY)
        assert await found(node.gateway, Query(key="k1")) == [(ids[0], "scheduled"), (ids[3], "scheduled")]
        wait.set()
        await node.until(lambda: node.shard.store.index.built, "the index to be built")
        assert await found(node.gateway, KEY) == [
            (ids[3], "scheduled"), (ids[0], "scheduled"), (ids[2], "cancelled"),
        ]  # fmt: skip
    async with MemoryNode(log, tmp_path / "a") as node:
        await node.lead()
        await node.until(lambda: not node.shard.store.index, "the index to be dropped")
        assert await found(node.gateway, Query(key="k1")) == [(ids[0], "scheduled"), (ids[3], "scheduled")]


def test_nodes_of_an_older_version_are_asked_as_before() -> None:
    assert "newest" not in query_to_json(Query(key="k"))
    assert query_from_json(query_to_json(KEY)) == KEY
