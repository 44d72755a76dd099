"""A node's internal HTTP: who is let in, what is understood, and how far a shard has to be before it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.responses import Response
from starlette.routing import Route

from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.cluster.shards.codec import TOKEN_HEADER
from duemq.cluster.shards.progress import Progress
from duemq.cluster.shards.shard_reader import Query
from duemq.cluster.topics.internal_topics import BUFFER
from duemq.delay.api.internal_http import create_internal_app
from duemq.delay.node_backend import NodeBackend
from duemq.delay.reads.local_reader import LocalReader
from duemq.model.errors import LogFailed, Unavailable
from duemq.model.log.ledger import Entry
from duemq.model.messages.key import make_key
from duemq.model.messages.record import StoredRecord, pack_record
from duemq.model.readiness import Readiness, Reason
from duemq.storage.delay_files.catalog import DelayFileCatalog

KEY = make_key(1, 0, 0)
COMMAND = pack_record(None, (), b"command")


class MarkedBus(MemoryBus):
    """Frames of b"marker" are what a transaction leaves behind: nobody reads them."""

    async def read(
        self, topic: str, partition: int, offset: int, max_records: int, max_bytes: int = 8 << 20
    ) -> list[StoredRecord]:
        found = await super().read(topic, partition, offset, 1_000, max_bytes)
        return [record for record in found if record.frame != b"marker"][:max_records]


class Held:
    """One shard without messages, which has applied nothing yet."""

    def __init__(self) -> None:
        self.bus = MarkedBus(MemoryLog())
        self.progress, self._numbers = Progress(), count(1)
        store = SimpleNamespace(
            names=lambda names: [None], current_keys=lambda keys: [None], endings=lambda keys: [None],
            rows=lambda keys, known: [None], sealed_keys=lambda keys: [], scan_part=lambda *asked: ([], [], None),
            delay_files=DelayFileCatalog(Path(), (), (), ()),
        )  # fmt: skip
        replica = SimpleNamespace(entry=Entry(0, 0, KEY, 0))
        shard = SimpleNamespace(progress=self.progress, store=store, replica=replica, rebuilding=False, stopped=False)
        self.shards: Any = {0: shard}
        self.reader = LocalReader(cast(Any, self), wait_s=0.2)

    def apply(self, applied: int) -> None:
        self.progress.publish(Entry(next(self._numbers), applied, KEY, 0))


def with_held(scenario: Callable[[Held], Awaitable[None]]) -> None:
    async def run() -> None:
        held = Held()
        await held.bus.create_topic(BUFFER, 1)
        await scenario(held)

    asyncio.run(run())


def test_a_read_waits_for_what_was_accepted_and_not_for_what_nobody_reads() -> None:
    async def scenario(held: Held) -> None:
        await held.bus.append({(BUFFER, 0): [COMMAND, COMMAND, b"marker"]})
        with pytest.raises(Unavailable, match="catching up"):
            await held.reader.holder(0, b"n:x")
        reading = asyncio.create_task(held.reader.holder(0, b"n:x"))
        await asyncio.sleep(0)
        held.apply(2)
        assert await reading is None
        assert (await held.reader.search(Query(), {0: KEY}))[0].messages == []
        with pytest.raises(Unavailable, match="catching up"):
            await held.reader.state(0, KEY, 5)
        with pytest.raises(Unavailable, match="shard 1 cannot be read here"):
            await held.reader.state(1, KEY, 0)

    with_held(scenario)


def test_a_name_is_unknown_only_where_it_is_sure_how_far_the_log_goes() -> None:
    """A broker that was deposed, and does not know it, says less than there is: a name was called unknown for it."""

    async def scenario(held: Held) -> None:
        await held.bus.append({(BUFFER, 0): [COMMAND, COMMAND]})
        held.bus.end_offset = AsyncMock(return_value=1)  # type: ignore[method-assign]
        held.bus.sure_end = AsyncMock(return_value=2)  # type: ignore[method-assign]
        held.apply(1)
        with pytest.raises(Unavailable, match="catching up"):
            await held.reader.holder(0, b"n:x")
        held.bus.sure_end.side_effect = LogFailed("the brokers do not agree")
        with pytest.raises(Unavailable, match="do not agree"):
            await held.reader.holder(0, b"n:x")
        held.bus.sure_end.side_effect = None
        held.apply(2)
        assert await held.reader.holder(0, b"n:x") is None
        held.bus.sure_end.reset_mock()
        held.shards[0].store.names = lambda names: [b"k" * 32]
        assert await held.reader.holder(0, b"n:x")
        assert not held.bus.sure_end.called, "asking all brokers is for the rare answer"

    with_held(scenario)


def test_the_door_answers_those_who_know_the_token() -> None:
    async def more(request: Any) -> Response:
        return Response(b"snapshot")

    async def scenario(held: Held) -> None:
        held.apply(1)
        backend = SimpleNamespace(reader=held.reader, cluster=lambda: {"nodes": []}, stuck=dict)
        backend.readiness = lambda: Readiness(Reason.CATCHING_UP)
        app = create_internal_app(
            cast(NodeBackend, backend), CollectorRegistry(), "secret", [Route("/internal/snapshots/1", more)]
        )
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://node") as http:
            read: dict[str, str | int] = {"first_key": KEY.hex(), "offset": 0}
            paths = ("/internal/shards/0/state", "/internal/snapshots/1", "/internal/nothing")
            for token in ({}, {TOKEN_HEADER: "wrong"}, {TOKEN_HEADER: "secret2"}):
                for path in paths:
                    assert (await http.get(path, params=read, headers=token)).status_code == 401
            assert (await http.get("/healthz")).status_code == 200
            assert (await http.get("/livez")).status_code == 200
            assert (await http.get("/readyz")).json()["reason"] == "catching_up"
            assert (await http.get("/v1/cluster")).json() == {"nodes": []}
            assert (await http.get("/metrics")).status_code == 200
            http.headers[TOKEN_HEADER] = "secret"
            assert (await http.get(paths[0], params=read)).json() == {"state": None}
            assert (await http.get(paths[1])).content == b"snapshot"
            assert (await http.get("/internal/shards/7/state", params=read)).status_code == 503
            wrong: list[dict[str, str | int]] = [
                {"first_key": "zz"},
                {"first_key": "00"},
                {"offset": "--5"},
                {"offset": "x"},
            ]
            for change in wrong:
                assert (await http.get(paths[0], params=read | change)).status_code == 400
            for body in (b"", b"[]", b'{"query":{},"after":[]}', b'{"query":{"x":1},"after":{}}'):
                assert (await http.post("/internal/search", content=body)).status_code == 400

    with_held(scenario)


@pytest.mark.parametrize("header", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "same-origin"}])
@pytest.mark.parametrize("token", ["", "secret"])
def test_no_page_of_a_browser_reads_the_messages_of_a_node(header: dict[str, str], token: str) -> None:
    """Neither one of another site, nor one whose own name was made to point to the node."""

    async def scenario(held: Held) -> None:
        held.apply(1)
        app = create_internal_app(cast(NodeBackend, SimpleNamespace(reader=held.reader)), CollectorRegistry(), token)
        own = {TOKEN_HEADER: token} if token else {}
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url="http://node", headers=own
        ) as http:
            body = b'{"query":{},"after":{}}'
            answer = await http.post("/internal/search", content=body, headers=header)
            assert (answer.status_code, answer.json()["code"]) == (403, "foreign_origin")
            assert (await http.post("/internal/search", content=body)).status_code != 403

    with_held(scenario)
