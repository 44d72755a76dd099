"""The HTTP application over a scripted gateway, for tests."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx
import uvicorn
from prometheus_client import CollectorRegistry, Gauge
from starlette.types import ASGIApp

from duemq.bus.memory import MemoryBus
from duemq.cluster.shards.shard_reader import MessageState, Query
from duemq.model.errors import Rejected
from duemq.model.log.ledger import Answer
from duemq.model.messages.message import Draft, Terms
from duemq.model.messages.names import Name
from duemq.model.readiness import Readiness
from duemq.proxy.app import create_app
from duemq.proxy.gateway.base import ChangeOutcome, Gateway, MessagePage, OwnTopic, Receipt
from duemq.proxy.request.ingress import Ingress, MessageLimits
from duemq.storage.shard.topic_counts import TopicCount
from duemq.web.settings import HttpSettings
from tests.support.virtual_loop import VirtualLoop

NOW = 1_795_255_200_000
NOW_TEXT = "2026-11-21T10:00:00.000Z"
ORDER = {"topic": "orders", "payload": "p", "deliver_after": "90s"}
STATE = MessageState("m1", "scheduled", "orders", NOW, b"k", ("a",), (("h", b"v"),), payload=b"\xff", expires=NOW)
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
JSON = {"Content-Type": "application/json"}
TEXT = {"Content-Type": "text/plain", "duemq-topic": "orders"}


class FakeGateway:
    """Knows names as a shard does; all else is answered from `outcome`, `found` and `error`."""

    bus: MemoryBus  # of sites that have a log

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.unreadable: Exception | None = None
        self.ready = Readiness(None)
        self.stuck_s: dict[int, float] = {}
        self.outcome: ChangeOutcome | None = ChangeOutcome("m1", Answer.OK, NOW)
        self.found: MessageState | None = STATE
        self.pages = [MessagePage([STATE], None)]
        self.sent: list[Draft] = []
        self.refused: dict[str, Rejected] = {}  # by topic
        self.mastered: list[int] = []
        self.queries: list[Query] = []
        self.changes: list[tuple[int, tuple[str, ...], int | Sequence[int]]] = []
        self.terms: list[Terms | None] = []  # of each change
        self.callers: list[str] = []  # of each change
        self.times: list[bool] = []  # of each change, whether times were asked for
        self.names: dict[Name, tuple[bytes, Receipt]] = {}

    async def send(self, drafts: Sequence[Draft]) -> list[Receipt | Rejected]:
        if self.error:
            raise self.error
        receipts: list[Receipt | Rejected] = []
        for draft in drafts:
            if draft.topic in self.refused:
                receipts.append(self.refused[draft.topic])
                continue
            self.sent.append(draft)
            receipt = Receipt(f"m{len(self.sent)}", "scheduled", draft.topic, draft.due or NOW)
            if draft.name:
                content, first = self.names.setdefault(draft.name, (draft.fingerprint, receipt))
                if first is not receipt:
                    receipt = first._replace(known=True, conflict=content != draft.fingerprint)
            receipts.append(receipt)
        return receipts

    async def named(self, names: Sequence[tuple[Name, bytes]]) -> list[Receipt | None]:
        if self.unreadable:
            raise self.unreadable
        firsts = [self.names.get(name) for name, _ in names]
        return [
            None if first is None else first[1]._replace(known=True, conflict=first[0] != said)
            for first, (_, said) in zip(firsts, names, strict=True)
        ]

    async def change(
        self,
        kind: int,
        targets: Sequence[str],
        due: int | Sequence[int] = 0,
        *,
        times: bool = False,
        terms: Terms | None = None,
        by: str = "",
    ) -> list[ChangeOutcome]:
        self.callers.append(by)
        self.terms.append(terms)
        self.changes.append((kind, tuple(targets), due))
        self.times.append(times)
        return [self.outcome or ChangeOutcome(target, Answer.UNKNOWN) for target in targets]

    async def state(self, target: str, caller: str = "") -> MessageState | None:
        if self.unreadable:
            raise self.unreadable
        return self.found

    async def topics_of(self, refs: Sequence[str], caller: str = "") -> dict[str, OwnTopic]:
        found = await self.state("", caller)
        return {} if found is None else dict.fromkeys(refs, OwnTopic(found.id, found.topic))

    async def find(self, query: Query) -> MessagePage:
        self.queries.append(query)
        return self.pages[len(self.queries) - 1]

    async def pending(self, topic: str) -> TopicCount | None:
        return None

    def trouble(self, topic: str) -> str | None:
        return None

    def troubles(self) -> dict[str, str]:
        return {"bad": "no broker leads partition: 0"}

    def cluster(self) -> dict[str, Any]:
        return {"nodes": [{"name": "a", "master_of": self.mastered}], "shards": [{"shard": 0}, {"shard": 1}]}

    async def drain(self, name: str) -> None:
        if name != "a":
            raise Rejected("unknown_node", f"there is no node {name}", "node")

    async def resume(self, name: str) -> None:
        await self.drain(name)

    def readiness(self) -> Readiness:
        return self.ready

    def stuck(self) -> dict[int, float]:
        return self.stuck_s


Ask = Callable[..., Coroutine[Any, Any, httpx.Response]]
Scenario = Callable[[FakeGateway, Ask], Awaitable[None]]


def app_over(
    gateway: FakeGateway, settings: HttpSettings | None = None, limits: MessageLimits | None = None
) -> ASGIApp:
    registry = CollectorRegistry()
    Gauge("duemq_pending", "Messages.", registry=registry).set(3)
    own = settings or HttpSettings()
    return create_app(
        cast(Gateway, gateway), Ingress(limits or MessageLimits()), own, registry, lambda: NOW, asyncio.Event()
    )


@asynccontextmanager
async def served(app: ASGIApp) -> AsyncIterator[str]:
    """The URL of an application that runs on the loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        web = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None))
        async with asyncio.TaskGroup() as group:
            group.create_task(web.serve(sockets=[listener]))
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                web.should_exit = True


def with_app(
    scenario: Scenario,
    settings: HttpSettings | None = None,
    limits: MessageLimits | None = None,
    *,
    in_virtual_time: bool = False,
    over: FakeGateway | None = None,
) -> None:
    async def run() -> None:
        gateway = over or FakeGateway()
        transport = httpx.ASGITransport(app=app_over(gateway, settings, limits))
        async with httpx.AsyncClient(transport=transport, base_url="http://duemq") as http:
            await scenario(gateway, http.request)

    with asyncio.Runner(loop_factory=VirtualLoop if in_virtual_time else None) as loop:
        loop.run(run())


def refused(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The problem document of a refusal."""
    document: dict[str, Any] = response.json()
    assert (response.status_code, document["code"]) == (status, code), document
    assert response.headers["Content-Type"] == "application/problem+json"
    assert document["status"] == status and document["title"] and document["detail"]
    assert document["type"].endswith(code)
    return document
