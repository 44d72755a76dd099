"""The console over a scripted gateway with a log in memory, asked as a browser would."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
from prometheus_client import CollectorRegistry

from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.cluster.admin.administration import Administration
from duemq.cluster.figures import Figures, SealedWindow
from duemq.cluster.shards.shard_reader import Query
from duemq.cluster.topics.internal_topics import create_logs
from duemq.model.messages.import_command import ImportCommand
from duemq.model.messages.record import pack_record
from duemq.proxy.app import Application, create_app
from duemq.proxy.gateway.base import Gateway, ImportStatus, MessagePage
from duemq.proxy.login.settings import LoginSettings
from duemq.proxy.request.ingress import Ingress, MessageLimits
from duemq.proxy.settings import ConsoleSettings
from duemq.storage.imports.policy import ImportPolicy
from duemq.storage.shard.records import PENDING, ImportRecord
from duemq.storage.shard.topic_counts import TopicCount
from duemq.web.settings import HttpSettings
from tests.support.http.http_site import NOW, FakeGateway

IMPORTING = ImportPolicy(folders=(Path("/"),))
VIEWER, OPERATOR, ADMIN = ("read",), ("send", "read", "cancel", "operate"), ("admin",)


def node(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "name": name, "url": "http://x", "rack": "", "state": "ready", "reason": "", "watermark": 0, "full": "",
        "master_of": [0], "holds": None, "unfit": {}, "lag": {},
    } | fields  # fmt: skip


class ConsoleGateway(FakeGateway):
    """Lists what `pages` say once for each query, and has a topic `orders` with one record. `written_at`: what the
    clock of its log says (epoch ms), at first an hour before `NOW`. `now`: the clock of the site (epoch ms)."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.written_at = NOW, NOW - 3_600_000
        self.bus = MemoryBus(MemoryLog(lambda: self.written_at))
        self.nodes = [node("a"), node("b", master_of=[])]
        self.masters: list[str | None] = ["a"]
        self.nodes_figures = [
            Figures("a", (1.0, 10.0), (5, 5, 0), (1, 2, 3, 4, 5, 6, 7, 8), 0, 7, 2, 1 << 20, 1 << 30, 40.0)
        ]
        self.not_ready: str | None = None
        self.windows = [SealedWindow(NOW + 1_800_000 * n, 0, 2, 1, 500, 400) for n in range(400)]
        self.imported = list[ImportStatus]()
        self.refusing = dict[str, str]()
        self.drained: list[tuple[str, str]] = []
        self.outcomes = {"accepted": 10, "delivered": 5, "cancelled": 1, "dead": 1}

    async def find(self, query: Query) -> MessagePage:
        self.queries.append(query)
        return self.pages[min(len(self.queries), len(self.pages)) - 1]

    def why_not_ready(self) -> str | None:
        return self.not_ready

    async def pending(self, topic: str) -> TopicCount | None:
        return TopicCount(5, 0)

    def topic_lateness(self, topic: str) -> dict[str, Any]:
        return {"count": 3, "p50_ms": 1.0, "p99_ms": 2.0, "max_ms": 3}

    def troubles(self) -> dict[str, str]:
        return self.refusing

    def cluster(self) -> dict[str, Any]:
        shards = [
            {"shard": number, "master": master, "entry": 1, "entry_age_ms": 5, "applied": 1, "cursor_ms": NOW,
             "cursor_age_ms": 1, "pending": 3, "outcomes": self.outcomes}
            for number, master in enumerate(self.masters)
        ]  # fmt: skip
        return {"cluster": "test", "nodes": self.nodes, "shards": shards}

    async def figures(self) -> Sequence[Figures]:
        return self.nodes_figures

    async def import_file(self, command: ImportCommand) -> ImportStatus:
        status = ImportStatus(f"0-{len(self.imported)}", 0, ImportRecord(7, command, PENDING, NOW, "1 of 2 replicas"))
        self.imported.append(status)
        return status

    async def import_record(self, id_: str) -> ImportStatus | None:
        return next((one for one in self.imported if one.id == id_), None)

    async def sealed_windows(self, first: int, most: int) -> Sequence[SealedWindow]:
        return [one for one in self.windows if one.window >= first][:most]

    async def imports(
        self, state: str | None = None, below: str = "", limit: int | None = None, after: str | None = None
    ) -> Any:
        return len(self.imported), self.imported[:limit]

    async def drain(self, name: str) -> None:
        self.drained.append(("drain", name))

    async def resume(self, name: str) -> None:
        self.drained.append(("resume", name))


class ConsoleSite:
    """`ask` sends a request with the key of the role that was set, `None` for no key at all."""

    def __init__(
        self, app: Application, gateway: ConsoleGateway, http: httpx.AsyncClient, admin: Administration
    ) -> None:
        self.app, self.gateway, self.http, self.admin = app, gateway, http, admin
        self.headers: dict[str, str] = {}
        self.key_id = self.location = ""

    async def become(self, scopes: Sequence[str] | None) -> None:
        """Present a key with these scopes from now on."""
        self.headers = {}
        if scopes is not None:
            made = await self.admin.keys.make({"name": "test", "scopes": list(scopes)}, "test")
            self.headers = {"X-API-Key": made["key"]}

    async def bury(self, topic: str, count: int, *headers: tuple[str, bytes]) -> None:
        """Dead letters in a topic, each a second after the other. Without headers they have those of a consumer."""
        bus = self.gateway.bus
        await bus.create_topic(topic, 1)
        death = headers or (
            ("x-duemq-topic", b"orders"), ("x-duemq-reason", b"retries"), ("x-duemq-error", b"ValueError: <b>"),
            ("trace", b"4711"),
        )  # fmt: skip
        for number in range(count):
            await bus.append({(topic, 0): [pack_record(b"k%d" % number, death, b'{"amount": 12}')]})
            self.gateway.written_at += 1_000

    async def ask(self, method: str, path: str, form: Any = None, **headers: str) -> httpx.Response:
        return await self.http.request(method, f"/console{path}", data=form, headers=self.headers | headers)

    async def page(self, path: str) -> str:
        """A page that is there."""
        response = await self.ask("GET", path)
        assert response.status_code == 200, (path, response.text)
        return response.text


@asynccontextmanager
async def _site(settings: ConsoleSettings | None, login: LoginSettings | None, http_settings: HttpSettings) -> Any:
    gateway = ConsoleGateway()
    bus = gateway.bus
    await create_logs(bus, 1)
    await bus.create_topic("orders", 1)
    system = (("duemq-id", b"i"), ("duemq-due", b"1"), ("duemq-attempt", b"1"))
    await bus.append({("orders", 0): [pack_record(b"<k>", system, b"<script>alert(1)</script>")]})
    admin = Administration(lambda: bus, lambda: gateway.now)
    app = create_app(
        cast(Gateway, gateway), Ingress(MessageLimits()), http_settings, CollectorRegistry(), lambda: gateway.now,
        asyncio.Event(), admin=admin, login=login, console=settings, importing=IMPORTING,
    )  # fmt: skip
    transport = httpx.ASGITransport(cast(Any, app))
    async with asyncio.TaskGroup() as group, httpx.AsyncClient(transport=transport, base_url="http://x") as http:
        following = group.create_task(admin.run())
        await admin.log.ready.wait()
        await app.history.sample()
        try:
            yield ConsoleSite(app, gateway, http, admin)
        finally:
            following.cancel()


def with_console(
    scenario: Callable[[ConsoleSite], Awaitable[None]],
    settings: ConsoleSettings | None = None,
    login: LoginSettings | None = None,
    http_settings: HttpSettings | None = None,
) -> None:
    async def run() -> None:
        async with _site(settings, login, http_settings or HttpSettings()) as site:
            await scenario(site)

    asyncio.run(run())
