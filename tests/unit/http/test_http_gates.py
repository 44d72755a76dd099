"""Every route that OpenAPI names, for every kind of caller, its own topic and another one: made from the table."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from duemq.model.callers.access import Scope
from duemq.proxy.api.endpoint import Endpoint
from duemq.proxy.table import ENDPOINTS
from tests.support.http.console_site import ConsoleGateway
from tests.support.http.http_site import FORM
from tests.support.http.provider import Provider
from tests.unit.http.test_http_access import Site, code_of, path_of
from tests.unit.http.test_http_tokens import SETTINGS

OWN, OTHER = "orders", "mails"
REFUSED = frozenset((401, 403))


class GateSite(Site):
    """Presents one kind of caller after another, all for the topic `OWN` alone."""

    gateway_type = ConsoleGateway

    async def knock(self, endpoint: Endpoint, topic: str, headers: dict[str, str]) -> httpx.Response:
        path = path_of(endpoint.path.replace("{topic}", topic))
        body: dict[str, Any] = {"json": {}} if endpoint.body is not None else {}
        return await self.http.request(endpoint.method, path, headers=headers, **body)


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


async def ended_callers(site: GateSite, scope: Scope) -> dict[str, dict[str, str]]:
    """Callers whose grant of this scope has ended, and those who never had one."""
    admin = await site.key("admin")
    keys = {kind: await site.key(scope, **({"expires_after": "1m"} if kind == "expired" else {})) for kind in
            ("revoked", "expired", "rotated", "session")}  # fmt: skip
    answer = await site.http.post("/console/login", data={"key": keys["session"]}, headers=FORM)
    cookie = {"Cookie": answer.headers["set-cookie"].partition(";")[0]}
    site.http.cookies.clear()
    await site.ask("DELETE", f"/v1/keys/{keys['revoked'].split('_')[1]}", admin)
    await site.ask("POST", f"/v1/keys/{keys['rotated'].split('_')[1]}:rotate", admin, {"overlap": "0s"})
    site.now += 61_000
    presented = {kind: bearer(keys[kind]) for kind in ("revoked", "expired", "rotated")}
    return presented | {"session": cookie, "none": {}, "X-API-Key": {"X-API-Key": keys["revoked"]}}


@pytest.mark.parametrize("scope", list(Scope))
def test_no_route_is_open_to_a_caller_whose_grant_has_ended(scope: Scope) -> None:
    """A session opens the console alone."""

    async def scenario(site: GateSite) -> None:
        for kind, headers in (await ended_callers(site, scope)).items():
            for endpoint in ENDPOINTS:
                answer = await site.knock(endpoint, OWN, headers)
                assert (answer.status_code == 401) is (endpoint.scope is not None), (kind, endpoint.path)

    asyncio.run(GateSite().run(scenario))  # type: ignore[arg-type]


def is_open(endpoint: Endpoint, scopes: set[Scope], topic: str) -> bool:
    """What the table says of a caller with these scopes for the topic `OWN` alone."""
    if endpoint.scope is None:
        return True
    more = {Scope.CONSUME} if Scope.OPERATE in scopes else set()
    return endpoint.scope in scopes | more and not endpoint.all_topics and (
        "{topic}" not in endpoint.path or topic == OWN)  # fmt: skip


@pytest.mark.parametrize("scope", [scope for scope in Scope if scope is not Scope.ADMIN])
@pytest.mark.parametrize("topic", [OWN, OTHER])
def test_each_route_is_open_to_the_scope_and_the_topic_that_the_table_names(scope: Scope, topic: str) -> None:
    async def scenario(site: GateSite) -> None:
        headers = bearer(await site.key(scope, topics=[OWN]))
        for endpoint in ENDPOINTS:
            await check(site, endpoint, {scope}, topic, headers)

    asyncio.run(GateSite().run(scenario))  # type: ignore[arg-type]


@pytest.mark.parametrize("topic", [OWN, OTHER])
def test_a_token_opens_what_its_role_opens(topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    provider, client = Provider(), httpx.AsyncClient
    monkeypatch.setattr(httpx, "AsyncClient", lambda **options: client(**{"transport": provider.transport, **options}))
    scopes = {Scope.SEND, Scope.READ, Scope.CANCEL, Scope.OPERATE}
    settings = SETTINGS.model_copy(update={"roles": (f"duemq-shop=operator:{OWN}",)})

    async def scenario(site: GateSite) -> None:
        headers = bearer(provider.token(roles=["duemq-shop"]))
        for endpoint in ENDPOINTS:
            await check(site, endpoint, scopes, topic, headers)

    asyncio.run(GateSite(login=settings).run(scenario))  # type: ignore[arg-type]


async def check(site: GateSite, endpoint: Endpoint, scopes: set[Scope], topic: str, headers: dict[str, str]) -> None:
    answer = await site.knock(endpoint, topic, headers)
    where = endpoint.method, endpoint.path, scopes, topic
    if not is_open(endpoint, scopes, topic):
        assert answer.status_code in (403, 404), where
        assert code_of(answer) in ("forbidden", "unknown_topic"), where
    else:
        assert answer.status_code not in REFUSED or "all topics" in answer.json()["detail"], where
