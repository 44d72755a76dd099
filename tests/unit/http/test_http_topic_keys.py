"""Keys for some topics only, and keys with a rate: what each route shows, changes and refuses."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from duemq.cluster.figures import Figures, SealedWindow
from duemq.model.callers.access import Grant, Scope
from duemq.proxy.api.server_info import _topics
from duemq.proxy.gateway.base import Gateway
from duemq.proxy.gateway.limited_gateway import LimitedGateway
from duemq.proxy.table import ENDPOINTS
from tests.support.http.console_site import ConsoleGateway
from tests.support.http.http_site import NOW, ORDER
from tests.unit.http.test_http_access import Site, code_of, with_site

OTHER = {**ORDER, "topic": "payments"}
FILE = {
    "path": "/shared/a.parquet", "sha256": "0" * 64, "size": 812345, "window": NOW - NOW % 1_800_000 + 86_400_000,
    "rows": 10,
}  # fmt: skip
BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/v1/messages"): OTHER,
    ("PUT", "/v1/messages/{id}"): OTHER,
    ("PATCH", "/v1/messages/{id}"): {"deliver_after": "1h"},
    ("POST", "/v1/messages:batch"): {"messages": [OTHER]},
    ("POST", "/v1/messages:cancel"): {"filter": {"topic": "payments"}},
    ("POST", "/v1/messages:move"): {"moves": [{"id": "m1", "deliver_after": "1h"}]},
    ("PUT", "/v1/topics/{topic}/consumers/{consumer}"): {"cursor": "AAAA"},
    ("POST", "/v1/imports"): FILE,
    ("POST", "/v1/jobs"): {"kind": "purge", "filter": {"topic": "payments", "dead_to": NOW}},
    ("POST", "/v1/imports:batch"): {"files": [FILE]},
}
OTHERS = {
    "/v1/cluster",
    "/v1/frames",
    "/v1/limits",
    "/v1/topics",
}  # about the server; the list of topics: tests/functional
ROUTES = [
    (endpoint.method, endpoint.path)
    for endpoint in ENDPOINTS
    if endpoint.path.startswith("/v1/") and endpoint.path not in OTHERS and endpoint.scope != "admin"
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_route_neither_shows_nor_changes_what_is_of_another_topic(method: str, path: str) -> None:
    """The gateway has one message, m1 of orders, and every topic's name is payments: the key is for neither."""

    async def scenario(site: Site) -> None:
        key = await site.key("send", "read", "cancel", "operate", topics=["reports.*"])
        site.gateway.pages *= 4
        place = path.replace("{topic}", "payments").replace("{id}", "m1").replace("{consumer}", "c")
        query = "?topic=payments" if (method, path) in {("GET", "/v1/messages"), ("GET", "/v1/dlq")} else ""
        answer = await site.ask(method, place + query, key, BODIES.get((method, path)))
        if answer.status_code == 200:
            document = answer.json()
            assert not document.get("messages")
            assert all("error" in one or one["status"] == "unknown" for one in document.get("results", ()))
        else:
            assert answer.status_code in (403, 404), answer.text
        assert not site.gateway.sent and not site.gateway.changes

    with_site(scenario)


def test_a_list_holds_the_messages_of_the_keys_topics_only() -> None:
    async def scenario(site: Site) -> None:
        site.gateway.pages *= 4
        for topics, count in ((["orders"], 1), (["ord*"], 1), (["order"], 0), (["orders.*"], 0)):
            key = await site.key("read", topics=topics)
            assert len((await site.ask("GET", "/v1/messages", key)).json()["messages"]) == count, topics

    with_site(scenario)


def test_the_cluster_names_no_bad_topic_of_another_topic() -> None:
    async def scenario(site: Site) -> None:
        site.gateway.cluster = lambda: {"nodes": [], "shards": [], "topics": {"bad": "no leader", "orders": "x"}}  # type: ignore[method-assign]
        key = await site.key("read", topics=["orders"])
        assert (await site.ask("GET", "/v1/cluster", key)).json()["topics"] == {"orders": "x"}

    with_site(scenario)


def test_a_batch_is_answered_item_by_item() -> None:
    async def scenario(site: Site) -> None:
        key = await site.key("send", topics=["orders"])
        answer = (await site.ask("POST", "/v1/messages:batch", key, {"messages": [OTHER, ORDER, OTHER]})).json()
        assert [result.get("error", {}).get("code") for result in answer["results"]] == ["forbidden", None, "forbidden"]
        assert answer["accepted"] == 1 and [draft.topic for draft in site.gateway.sent] == ["orders"]

    with_site(scenario)


def test_a_conflict_does_not_tell_of_a_message_whose_topic_is_not_the_keys() -> None:
    """One that was redriven to another topic."""

    async def scenario(site: Site) -> None:
        key = await site.key("send", topics=["orders"])
        idempotent = {"Idempotency-Key": "k"}
        assert (await site.ask("PUT", "/v1/messages/n", key, ORDER)).status_code == 201
        assert (await site.ask("POST", "/v1/messages", key, ORDER, **idempotent)).status_code == 201
        for name, (content, receipt) in site.gateway.names.items():
            site.gateway.names[name] = content, receipt._replace(topic="payments")
        batch = {"messages": [ORDER | {"name": "n"}, ORDER | {"idempotency_key": "k"}]}
        answers = [
            await site.ask("PUT", "/v1/messages/n", key, ORDER),
            await site.ask("PUT", "/v1/messages/n", key, ORDER, **{"If-None-Match": "*"}),
            await site.ask("POST", "/v1/messages", key, ORDER, **idempotent),
        ]
        assert list(map(code_of, answers)) == ["name_conflict", "name_taken", "idempotency_conflict"]
        many = await site.ask("POST", "/v1/messages:batch", key, batch)
        assert [one["error"]["code"] for one in many.json()["results"]] == ["name_conflict", "idempotency_conflict"]
        for answer in (*answers, many):
            assert not any(told in answer.text for told in ('"id"', "m1", "m2", "payments", "deliver_at")), answer.text

    with_site(scenario)


def test_what_a_key_may_change_is_changed_by_its_id() -> None:
    """A name may be another message's by the time the change is decided; an id never is."""

    async def scenario(site: Site) -> None:
        key = await site.key("cancel", topics=["orders"])
        assert (await site.ask("DELETE", "/v1/messages/order-17", key)).status_code == 200
        assert [refs for _, refs, _ in site.gateway.changes] == [("m1",)]

    with_site(scenario)


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"topics": ["bad topic"]}, "topics"), ({"topics": "orders"}, "topics"), ({"topics": ["a"] * 21}, "topics"),
     ({"topics": ["orders"], "scopes": ["admin"]}, "topics"), ({"rate": -1}, "rate"), ({"rate": "5"}, "rate"),
     ({"rate": True}, "rate"), ({"rate": 1_000_001}, "rate"), ({"role": "viewer"}, "role")],
)  # fmt: skip
def test_wrong_limits_of_a_key_are_refused(fields: dict[str, Any], field: str) -> None:
    async def scenario(site: Site) -> None:
        answer = await site.ask("POST", "/v1/keys", body={"name": "a", "scopes": ["send"], **fields})
        assert (answer.status_code, code_of(answer), answer.json()["field"]) == (400, "bad_field", field)

    with_site(scenario)


@pytest.mark.parametrize(
    ("role", "scopes"),
    [("viewer", ["read"]), ("operator", ["send", "read", "cancel", "operate"]), ("admin", ["admin"])],
)
def test_a_role_stands_for_its_scopes(role: str, scopes: list[str]) -> None:
    async def scenario(site: Site) -> None:
        made = await site.ask("POST", "/v1/keys", await site.key("admin"), {"name": "a", "role": role})
        assert made.status_code == 201 and made.json()["scopes"] == scopes

    with_site(scenario)


def test_a_key_with_a_rate_gets_429_beyond_it_and_is_told_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("duemq.proxy.access.monotonic", lambda: now)

    async def scenario(site: Site) -> None:
        nonlocal now
        key, other = await site.key("send", rate=5), await site.key("send", rate=5)
        two = await site.ask("POST", "/v1/messages:batch", key, {"messages": [ORDER] * 2})
        assert two.headers["RateLimit-Policy"] == '"key";q=5;w=1'
        assert two.headers["RateLimit"] == '"key";r=3;t=1'
        many = await site.ask("POST", "/v1/messages:batch", key, {"messages": [ORDER] * 10})
        assert many.status_code == 200 and many.headers["RateLimit"] == '"key";r=0;t=2'
        refused = await site.ask("POST", "/v1/messages", key, ORDER)
        assert (refused.status_code, code_of(refused), refused.headers["Retry-After"]) == (429, "rate_limited", "2")
        assert refused.headers["RateLimit"] == '"key";r=0;t=2'
        assert (await site.ask("POST", "/v1/messages", other, ORDER)).status_code == 201
        now += 1
        assert (await site.ask("POST", "/v1/messages", key, ORDER)).status_code == 429
        now += 0.7
        assert (await site.ask("POST", "/v1/messages", key, ORDER)).status_code == 201
        now += 1000
        bad = await site.ask("POST", "/v1/messages", key, {"topic": "bad topic"})
        assert bad.status_code == 400 and bad.headers["RateLimit"] == '"key";r=4;t=1'

    with_site(scenario)


@pytest.mark.parametrize(
    ("chosen", "status"),
    [
        ({"topic_prefix": "reports.x"}, 200), ({"topic_prefix": "reports."}, 200), ({"topic_prefix": "report"}, 403),
        ({"topic_prefix": "exact"}, 403), ({"name_prefix": "n"}, 403),
        ({"topic": "payments", "topic_prefix": "reports.x"}, 403),
    ],
)  # fmt: skip
def test_a_job_by_prefix_is_for_a_key_that_covers_all_topics_with_it(chosen: dict[str, str], status: int) -> None:
    async def scenario(site: Site) -> None:
        key = await site.key("cancel", "operate", topics=["reports.*", "exact"])
        body = {"kind": "cancel", "filter": chosen, "dry_run": True}
        assert (await site.ask("POST", "/v1/jobs", key, body)).status_code == status

    with_site(scenario)


def test_limits_and_the_cluster_tell_a_key_of_some_topics_of_these_alone() -> None:
    async def scenario(site: Site) -> None:
        site.gateway.cluster = lambda: {  # type: ignore[method-assign]
            "nodes": [{"name": "a", "url": "http://10.0.0.7"}], "topics": {},
            "shards": [{"shard": 0, "pending": 7, "outcomes": {"accepted": 9}}],
        }  # fmt: skip
        viewer, mine = await site.key("read"), await site.key("read", topics=["b.*", "c"])
        assert (await site.ask("GET", "/v1/limits", viewer)).json()["topics"] == []
        assert (await site.ask("GET", "/v1/limits", mine)).json()["topics"] == ["b.*", "c"]
        cluster = (await site.ask("GET", "/v1/cluster", mine)).json()
        assert cluster["nodes"][0]["url"] == "" and cluster["shards"] == [{"shard": 0}]
        assert (await site.ask("GET", "/v1/cluster", viewer)).json()["shards"][0]["pending"] == 7

    with_site(scenario)


@pytest.mark.parametrize(("topics", "count"), [((), 1), (("b.*",), 0)])
def test_counts_of_all_topics_are_shown_to_callers_for_all_topics(topics: tuple[str, ...], count: int) -> None:
    """Pages of the console read these of the gateway of their caller."""

    async def scenario() -> None:
        inner = ConsoleGateway()
        inner.nodes_figures, inner.windows = [Figures("a", sealed=7)], [SealedWindow(NOW, 0, 3, 0, 7, 7)]
        grant = Grant("k", frozenset((Scope.READ,)), topics=topics)
        gateway = LimitedGateway(cast(Gateway, inner), grant, lambda _: None)
        assert [len(await gateway.figures()), len(await gateway.sealed_windows(0, 10))] == [count] * 2

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("allowed", "own", "shown"),
    [(["a.*", "b.*", "payroll"], ["b.*"], ["b.*"]), (["*"], ["b.*"], ["b.*"]), (["b.x", "a.x"], ["b.*"], ["b.x"]),
     (["a.*"], ["b.*"], ["b.*"]), (["a.*", "b.*"], [], ["a.*", "b.*"])],
)  # fmt: skip
def test_topics_that_are_allowed_are_shown_as_far_as_the_key_reaches(
    allowed: list[str], own: list[str], shown: list[str]
) -> None:
    assert _topics(tuple(allowed), Grant("k", frozenset(), topics=tuple(own))) == shown


def test_a_destination_of_others_is_refused_as_one_that_does_not_exist() -> None:
    async def scenario(site: Site) -> None:
        key = await site.key("send", topics=["orders"])
        answers = [
            await site.ask("POST", "/v1/messages", key, {"payload": "", **to})
            for to in ({"topic": "destination.billing"}, {"destination": "nothing"})
        ]
        for answer, name in zip(answers, ("billing", "nothing"), strict=True):
            assert (answer.status_code, code_of(answer)) == (404, "unknown_destination"), name
            assert answer.json()["detail"] == f"there is no destination '{name}'"

    with_site(scenario)
