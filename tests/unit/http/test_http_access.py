"""What keys of each scope open, on every route that OpenAPI names."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import httpx
import orjson
import pytest
from prometheus_client import CollectorRegistry

from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.bus.topic_cursor import encode_cursor
from duemq.cluster.admin.administration import Administration
from duemq.cluster.topics.internal_topics import create_logs
from duemq.model.callers.access import ApiKey, Scope
from duemq.model.messages.names import consumer_cursor
from duemq.proxy.api.endpoint import Endpoint
from duemq.proxy.app import create_app
from duemq.proxy.gateway.base import Gateway
from duemq.proxy.login.settings import LoginSettings
from duemq.proxy.request.ingress import Ingress, MessageLimits
from duemq.proxy.table import ENDPOINTS
from duemq.web.settings import HttpSettings
from tests.support.http.http_site import NOW, ORDER, FakeGateway

PUBLIC = {"/v1/frames", "/", "/livez", "/healthz", "/readyz", "/openapi.json"}
ROUTES = [(endpoint.method, endpoint.path, endpoint.scope) for endpoint in ENDPOINTS]


class Site:
    """A server with an administrative log. `now` is its clock (epoch ms)."""

    gateway_type = FakeGateway

    def __init__(self, settings: HttpSettings | None = None, login: LoginSettings | None = None) -> None:
        self.now, self.login = NOW, login
        self.settings = settings or HttpSettings()

    async def run(self, scenario: Callable[[Site], Awaitable[None]], *, follows: bool = True) -> None:
        bus = MemoryBus(MemoryLog(lambda: self.now))
        await create_logs(bus, 1)
        self.admin = Administration(lambda: bus, lambda: self.now)
        self.keys = self.admin.keys
        self.gateway = self.gateway_type()
        self.gateway.bus = self.bus = bus
        app = create_app(
            cast(Gateway, self.gateway), Ingress(MessageLimits()), self.settings, CollectorRegistry(),
            lambda: self.now, asyncio.Event(), admin=self.admin, login=self.login,
        )  # fmt: skip
        self.app = cast(Any, app)
        async with (
            asyncio.TaskGroup() as group,
            httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://x") as self.http,
        ):
            following = group.create_task(self.admin.run() if follows else asyncio.sleep(0))
            if follows:
                await self.admin.log.ready.wait()
            try:
                await scenario(self)
            finally:
                following.cancel()

    async def key(self, *scopes: str, **fields: Any) -> str:
        new = {"name": "test", "scopes": [str(scope) for scope in scopes]} | fields
        made = await self.keys.make(new, "test")
        return str(made["key"])

    async def ask(self, method: str, path: str, key: str = "", body: Any = None, **headers: str) -> httpx.Response:
        bearer = {"Authorization": f"Bearer {key}"} if key else {}
        content = None if body is None else orjson.dumps(body)
        type_ = {} if body is None else {"Content-Type": "application/json"}
        return await self.http.request(method, path, headers=bearer | type_ | headers, content=content)


def with_site(scenario: Callable[[Site], Awaitable[None]], settings: HttpSettings | None = None) -> None:
    asyncio.run(Site(settings).run(scenario))


def test_a_request_without_a_key_is_counted_once_however_long_its_answer_takes() -> None:
    async def scenario(site: Site) -> None:
        await site.ask("GET", "/v1/limits")
        stream = {"type": "http", "method": "GET", "path": "/v1/topics/t/records", "headers": []}
        assert all(site.app.service.access.is_granted(stream) for _ in range(60))
        assert site.keys.keyless.count(site.now) == 1

    with_site(scenario)


def path_of(path: str) -> str:
    for name in ("id", "topic", "consumer", "node", "place", "name"):
        path = path.replace("{" + name + "}", "a")
    return path


def code_of(answer: httpx.Response) -> str:
    return str(answer.json().get("code"))


def test_every_route_says_what_it_needs() -> None:
    assert {path for _, path, scope in ROUTES if scope is None} == PUBLIC
    changing = {scope for method, _, scope in ROUTES if method != "GET"}
    assert Scope.ADMIN in changing and None not in changing


def test_every_route_refuses_a_caller_without_a_key() -> None:
    async def scenario(site: Site) -> None:
        _, text = "", await site.key("admin")
        wrong = text[:-1] + ("0" if text[-1] != "0" else "1")
        for method, path, scope in ROUTES:
            for key in ("", "not-a-key", wrong):
                answer = await site.ask(method, path_of(path), key)
                assert (answer.status_code == 401) is (scope is not None), path
        assert (await site.ask("GET", "/v1/nothing")).status_code == 401

    with_site(scenario)


def test_a_browser_is_sent_from_the_root_to_the_console_and_a_program_gets_json() -> None:
    browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"

    async def scenario(site: Site) -> None:
        sent = await site.ask("GET", "/", accept=browser)
        assert (sent.status_code, sent.headers["location"]) == (303, "console/")
        page = await site.ask("GET", "/console/", accept=browser)
        assert (page.status_code, page.headers["location"]) == (303, "./login?next=")
        for accept in ("*/*", "application/json"):
            answer = await site.ask("GET", "/", accept=accept)
            assert answer.json() == {"console": "console/", "openapi": "openapi.json"}
            assert (answer.headers["vary"], answer.headers["cache-control"]) == ("accept", "no-store")
        assert (await site.ask("POST", "/")).status_code == 405

    with_site(scenario, HttpSettings(access="keys"))


@pytest.mark.parametrize("scope", list(Scope))
def test_every_route_refuses_a_key_without_its_scope(scope: Scope) -> None:
    async def scenario(site: Site) -> None:
        key = await site.key(scope)
        for method, path, needed in ROUTES:
            answer = await site.ask(method, path_of(path), key)
            refused = answer.status_code == 403 and code_of(answer) == "forbidden"
            allowing = {needed, Scope.ADMIN, *((Scope.OPERATE,) if needed is Scope.CONSUME else ())}
            assert refused is (needed is not None and scope not in allowing), (method, path)

    with_site(scenario)


def test_a_viewer_changes_nothing() -> None:
    async def scenario(site: Site) -> None:
        key = await site.key("read")
        for method, path, needed in ROUTES:
            if method != "GET" and needed is not None:
                assert (await site.ask(method, path_of(path), key)).status_code == 403, (method, path)

    with_site(scenario)


@pytest.mark.parametrize("read_consumes", [False, True])
def test_a_cursor_takes_a_scope_that_readers_have_only_if_a_setting_says_so(read_consumes: bool) -> None:
    async def scenario(site: Site) -> None:
        await site.gateway.bus.create_topic("orders", 1)
        path, place = "/v1/topics/orders/consumers/billing", {"cursor": encode_cursor("orders", [0])}
        for scopes, allowed in ((("read",), read_consumes), (("consume",), True), (("operate",), True),
                                (("send", "cancel"), False), (("admin",), True)):  # fmt: skip
            answer = await site.ask("PUT", path, await site.key(*scopes), place)
            assert answer.status_code == (204 if allowed else 403), scopes
        answer = await site.ask("PUT", path.replace("orders", "no"), await site.key("consume"),
                                {"cursor": encode_cursor("no", [])})  # fmt: skip
        assert answer.status_code == 204
        assert await site.gateway.bus.get_consumer_cursor("no", consumer_cursor("billing")) is None
        for name in ("/destination.one", "%2Fdestination.one"):  # the cursor of a destination
            assert (await site.ask("PUT", path + name, await site.key("admin"), place)).status_code in (400, 404)

    with_site(scenario, HttpSettings(read_consumes=read_consumes))


@pytest.mark.parametrize("open_metrics", [False, True])
def test_metrics_need_a_key_for_all_topics_unless_they_are_open(open_metrics: bool) -> None:
    async def scenario(site: Site) -> None:
        assert (await site.ask("GET", "/metrics")).status_code == 200  # everybody may do everything
        viewer, sender = await site.key("read"), await site.key("send")
        limited = await site.key("read", topics=["orders.*"])
        assert (await site.ask("GET", "/metrics", viewer)).status_code == 200
        for key, status in (("", 401), (viewer[:-1], 401), (sender, 403), (limited, 403)):
            for method in ("GET", "HEAD"):
                answer = await site.ask(method, "/metrics", key)
                assert answer.status_code == (200 if open_metrics else status), (method, key)
        assert (await site.ask("GET", "/metrics/", "")).status_code == 404
        assert (await site.ask("GET", "/v1/limits")).status_code == 401

    with_site(scenario, HttpSettings(open_metrics=open_metrics))


def test_a_path_has_one_spelling() -> None:
    """A gateway in front that keeps strangers from a path compares it as it is."""

    async def scenario(site: Site) -> None:
        viewer = await site.key("read")
        limited = await site.key("read", topics=["orders.*"])
        fixed = [(method, path) for method, path, _ in ROUTES if not path.endswith("}")]
        for method, path in [*fixed, ("GET", "/nothing"), ("POST", "/console/logout")]:
            for key in ("", viewer, limited):
                for end in ("%0A", "%00", "%C2%85"):
                    answer = await site.ask(method, path_of(path) + end, key)
                    assert answer.status_code == 400, (method, path, key)

    with_site(scenario)


def test_a_route_without_a_declared_scope_is_no_route() -> None:
    one = ENDPOINTS[0]
    with pytest.raises(TypeError, match="scope"):
        Endpoint(one.method, one.path, one.handler, one.summary, one.tag, one.answers)  # type: ignore[call-arg]


def test_without_any_key_everybody_may_until_the_first_is_made() -> None:
    async def scenario(site: Site) -> None:
        assert (await site.ask("POST", "/v1/messages", body=ORDER)).status_code == 201
        made = await site.ask("POST", "/v1/keys", body={"name": "ops", "scopes": ["admin"]})
        assert made.status_code == 201 and made.json()["state"] == "active"
        assert (await site.ask("POST", "/v1/messages", body=ORDER)).status_code == 401
        assert (await site.ask("POST", "/v1/messages", made.json()["key"], ORDER)).status_code == 201
        listed = (await site.ask("GET", "/v1/keys", made.json()["key"])).json()["keys"]
        assert [key["name"] for key in listed] == ["ops"] and "key" not in listed[0]
        await site.ask("DELETE", f"/v1/keys/{made.json()['id']}", made.json()["key"])
        assert (await site.ask("POST", "/v1/messages", body=ORDER)).status_code == 401  # it does not open again

    with_site(scenario)


def test_the_first_key_is_an_admins_and_says_whom_it_shuts_out() -> None:
    async def scenario(site: Site) -> None:
        for _ in range(3):
            await site.ask("POST", "/v1/messages", body=ORDER)
        site.now += 30_000
        await site.ask("POST", "/v1/messages", body=ORDER)
        for fields in ({"role": "operator"}, {"scopes": ["send", "read", "cancel", "operate"]}):
            refused = await site.ask("POST", "/v1/keys", body={"name": "shop", **fields})
            assert (refused.status_code, code_of(refused), refused.json()["field"]) == (409, "needs_admin", "scopes")
        admin = {"name": "ops", "role": "admin"}
        asked = await site.ask("POST", "/v1/keys", body=admin | {"confirm": False})
        assert (asked.status_code, code_of(asked), asked.json()["keyless_requests"]) == (409, "unconfirmed", 4)
        site.now += 31_000
        asked = await site.ask("POST", "/v1/keys", body=admin | {"confirm": False})
        assert asked.json()["keyless_requests"] == 1, "of the last minute"
        assert (await site.ask("POST", "/v1/messages", body=ORDER)).status_code == 201, "nothing has changed"
        made = await site.ask("POST", "/v1/keys", body=admin | {"confirm": True})
        assert made.status_code == 201
        shop = {"name": "shop", "role": "viewer", "confirm": False}
        assert (await site.ask("POST", "/v1/keys", made.json()["key"], shop)).status_code == 201

    with_site(scenario)


def test_keys_are_known_by_id_and_by_name() -> None:
    async def scenario(site: Site) -> None:
        admin = await site.key("admin", name="ops")
        first, second = [(await site.key("read", name="wall board: 1@x")).split("_")[1] for _ in range(2)]
        named = "/v1/keys/wall%20board%3A%201%40x"
        answer = await site.ask("DELETE", named, admin)
        assert (code_of(answer), answer.json()["field"]) == ("bad_field", "id"), "two have this name"
        assert first in answer.json()["detail"] and second in answer.json()["detail"]
        await site.ask("DELETE", f"/v1/keys/{first}", admin)
        rotated = await site.ask("POST", f"{named}:rotate", admin, {"overlap": "0s"})
        assert rotated.json()["id"] == second, "the one that is active"
        assert (await site.ask("DELETE", named, admin)).json()["id"] == second

    with_site(scenario)


def test_keys_that_are_required_are_asked_for_before_there_is_one() -> None:
    async def scenario(site: Site) -> None:
        assert (await site.ask("POST", "/v1/messages", body=ORDER)).status_code == 401
        assert (await site.ask("POST", "/v1/messages", await site.key("send"), ORDER)).status_code == 201

    with_site(scenario, HttpSettings(access="keys"))


def test_a_key_of_the_settings_may_do_everything() -> None:
    async def scenario(site: Site) -> None:
        made = await site.ask("POST", "/v1/keys", "in-the-settings", {"name": "shop", "scopes": ["send"]})
        assert made.status_code == 201
        assert (await site.ask("POST", "/v1/messages", made.json()["key"], ORDER)).status_code == 201
        assert (await site.ask("GET", "/v1/keys", made.json()["key"])).status_code == 403

    with_site(scenario, HttpSettings(api_keys=("in-the-settings",)))


def test_a_key_ends_when_it_expires_is_revoked_or_its_overlap_is_over() -> None:
    async def scenario(site: Site) -> None:
        admin = await site.key("admin")
        short = await site.key("read", expires_after="1m")
        first = await site.key("read")
        id_ = first.split("_")[1]
        rotated = (await site.ask("POST", f"/v1/keys/{id_}:rotate", admin, {"overlap": "2m"})).json()["key"]

        async def opened() -> list[bool]:
            return [(await site.ask("GET", "/v1/limits", key)).status_code == 200 for key in (short, first, rotated)]

        assert await opened() == [True, True, True]
        site.now += 60_000
        assert await opened() == [False, True, True]
        site.now += 60_000
        assert await opened() == [False, False, True]
        for _ in range(2):
            revoked = await site.ask("DELETE", f"/v1/keys/{id_}", admin)
            assert (revoked.status_code, revoked.json()["state"]) == (200, "revoked")
        assert await opened() == [False, False, False]
        again = await site.ask("POST", f"/v1/keys/{id_}:rotate", admin, {})
        assert (again.status_code, code_of(again)) == (400, "bad_field")
        assert code_of(await site.ask("DELETE", "/v1/keys/nobody", admin)) == "unknown_key"

    with_site(scenario)


def test_a_rotated_key_is_the_same_caller() -> None:
    """An Idempotency-Key belongs to its caller."""

    async def scenario(site: Site) -> None:
        admin, first, other = await site.key("admin"), await site.key("send"), await site.key("send")
        id_ = first.split("_")[1]
        second = (await site.ask("POST", f"/v1/keys/{id_}:rotate", admin, {})).json()["key"]
        answers = [
            await site.ask("POST", "/v1/messages", key, ORDER, **{"Idempotency-Key": "order-17"})
            for key in (first, second, other)
        ]
        assert [answer.status_code for answer in answers] == [201, 200, 201]

    with_site(scenario)


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [({"scopes": ["send"]}, "bad_field", "name"), ({"name": "a"}, "bad_field", "scopes"),
     ({"name": "a", "scopes": "send"}, "bad_field", "scopes"),
     ({"name": "a", "scopes": ["fly"]}, "bad_field", "scopes"),
     ({"name": "a", "scopes": ["send"], "more": 1}, "unknown_field", "more"),
     ({"name": "a", "scopes": ["send"], "expires_at": NOW - 1}, "bad_field", "expires_at"),
     ({"name": "a", "scopes": ["send"], "expires_at": NOW + 1, "expires_after": "1d"}, "both_times", "expires_after"),
     ({"name": "a", "scopes": ["send"], "expires_after": 2**62}, "bad_time", "expires_after")],
)  # fmt: skip
def test_a_wrong_key_is_refused_and_changes_nothing(body: dict[str, Any], code: str, field: str) -> None:
    async def scenario(site: Site) -> None:
        answer = await site.ask("POST", "/v1/keys", body=body)
        assert (code_of(answer), answer.json()["field"]) == (code, field)
        assert (await site.ask("GET", "/v1/keys")).json() == {"keys": []}

    with_site(scenario)


def test_an_overlap_that_never_ends_is_refused_and_changes_nothing() -> None:
    async def scenario(site: Site) -> None:
        key = await site.key("admin")
        answer = await site.ask("POST", f"/v1/keys/{key.split('_')[1]}:rotate", key, {"overlap": 2**62})
        assert (code_of(answer), answer.json()["field"]) == ("bad_time", "overlap")
        assert (await site.ask("GET", "/v1/keys", key)).status_code == 200

    with_site(scenario)


def test_nobody_is_served_before_it_is_known_who_may() -> None:
    async def scenario(site: Site) -> None:
        answer = await site.ask("GET", "/v1/limits")
        assert (answer.status_code, answer.json()["detail"]) == (503, "the API keys are being read")
        answer = await site.ask("GET", "/readyz")
        assert (answer.status_code, answer.json()["reason"]) == (503, "keys_unknown")
        assert (await site.ask("GET", "/healthz")).status_code == 200

    asyncio.run(Site().run(scenario, follows=False))


def test_a_key_that_was_presented_before_opens_nothing_while_keys_are_not_known() -> None:
    """It may have been revoked meanwhile."""

    async def scenario(site: Site) -> None:
        key = await site.key("read")
        assert (await site.ask("GET", "/v1/limits", key)).status_code == 200
        site.admin.log.ready.clear()  # as where the log has a record that cannot be read
        assert (await site.ask("GET", "/v1/limits", key)).status_code == 503
        assert (await site.ask("GET", "/v1/limits", "in-the-settings")).status_code == 200

    with_site(scenario, HttpSettings(api_keys=("in-the-settings",)))


def test_a_key_is_checked_once_also_after_an_overlap_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[int] = []
    opened_by = ApiKey.opened_by

    def counted(self: ApiKey, presented: bytes, now: int) -> bool:
        checks.append(now)
        return opened_by(self, presented, now)

    monkeypatch.setattr(ApiKey, "opened_by", counted)

    async def scenario(site: Site) -> None:
        admin, first = await site.key("admin"), await site.key("read")
        rotated = await site.ask("POST", f"/v1/keys/{first.split('_')[1]}:rotate", admin, {"overlap": "1m"})
        site.now += 60_001
        checks.clear()
        for _ in range(3):
            assert (await site.ask("GET", "/v1/limits", rotated.json()["key"])).status_code == 200
        assert len(checks) == 1

    with_site(scenario)


def test_any_name_of_the_server_will_do_as_soon_as_keys_are_asked_for() -> None:
    async def scenario(site: Site) -> None:
        host = {"Host": "duemq.example.com"}
        assert code_of(await site.ask("GET", "/v1/limits", **host)) == "foreign_host"
        key = await site.key("admin")
        assert (await site.ask("GET", "/v1/limits", key, **host)).status_code == 200
        assert (await site.ask("GET", "/v1/limits", **host)).status_code == 401

    with_site(scenario)


def test_a_key_given_twice_is_refused() -> None:
    async def scenario(site: Site) -> None:
        key = await site.key("admin")
        for name, value in (("Authorization", f"Bearer {key}"), ("X-API-Key", key)):
            answer = await site.http.get("/v1/limits", headers=[(name, value), (name, "nonsense")])
            assert (answer.status_code, code_of(answer)) == (400, "bad_header")

    with_site(scenario)


def test_no_refusal_is_kept_by_a_cache_and_no_type_is_guessed() -> None:
    async def scenario(site: Site) -> None:
        key, sender = await site.key("read"), await site.key("send")
        for path, presented in (("/v1/keys", ""), ("/v1/keys", sender), ("/v1/no", key), ("/metrics", key)):
            answer = await site.ask("GET", path, presented)
            assert answer.headers["Cache-Control"] == "no-store", path
            assert answer.headers["X-Content-Type-Options"] == "nosniff", path

    with_site(scenario)


def test_a_caller_without_a_key_hears_no_addresses_while_keys_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(site: Site) -> None:
        site.admin.log.ready.clear()
        monkeypatch.setattr(type(site.admin.log), "trouble", "broker-7.internal:9092 is away")
        answer = await site.ask("GET", "/v1/limits")
        assert (answer.status_code, answer.json()["detail"]) == (503, "the API keys cannot be read now")

    with_site(scenario)
