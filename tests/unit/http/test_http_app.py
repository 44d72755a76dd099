"""What the application does for every request: ids, keys, limits, errors."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from duemq.model.errors import DiskFull, Unavailable
from duemq.model.readiness import SENTENCES, Readiness, Reason, ShardTrouble
from duemq.proxy.app import create_app
from duemq.proxy.gateway.base import Gateway
from duemq.proxy.request.ingress import Ingress, MessageLimits
from duemq.web.probes import ReadinessCollector
from duemq.web.settings import HttpSettings
from tests.support.http.http_site import JSON, ORDER, TEXT, Ask, FakeGateway, refused, with_app


def test_a_body_is_refused_as_soon_as_it_is_too_large() -> None:
    async def endless() -> Any:
        while True:
            yield b"x" * 1000

    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        refused(await ask("POST", "/v1/messages", content=b"x" * 101, headers=TEXT), 413, "payload_too_large")
        refused(await ask("POST", "/v1/messages", content=endless(), headers=TEXT), 413, "payload_too_large")
        refused(await ask("POST", "/v1/messages:batch", content=endless(), headers=JSON), 413, "batch_too_large")

    with_app(scenario, limits=MessageLimits(max_payload_bytes=100, max_batch_bytes=5000))


def test_a_server_that_cannot_says_when_to_come_back_and_never_that_it_did() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        for error, code in ((Unavailable("no master", 3), "unavailable"), (DiskFull("full", 3), "disk_full")):
            gateway.error = error
            answer = await ask("POST", "/v1/messages", json=ORDER)
            refused(answer, 503, code)
            assert answer.headers["Retry-After"] == "3"
        gateway.error = RuntimeError("a bug")
        answer = await ask("POST", "/v1/messages", json=ORDER)
        assert answer.headers["X-Request-ID"] in refused(answer, 500, "internal")["detail"]
        assert (await ask("GET", "/readyz")).status_code == 200
        gateway.ready = Readiness(Reason.LEDGER_UNREADABLE, {0: ShardTrouble(Reason.LEDGER_UNREADABLE)})
        assert refused(await ask("GET", "/readyz"), 503, "unavailable")["reason"] == "ledger_unreadable"
        assert (await ask("GET", "/healthz")).status_code == 200

    with_app(scenario)


def test_probes_name_shards_and_states() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        trouble = ShardTrouble(Reason.REBUILDING, "rebuilding")
        shown = {"2": {"reason": "rebuilding", "state": "rebuilding", "detail": SENTENCES[Reason.REBUILDING]}}
        gateway.ready = Readiness(None, {2: trouble}, ("duemq.trail",))
        assert (await ask("GET", "/readyz")).json() == {"status": "ready", "shards": shown, "topics": ["duemq.trail"]}
        gateway.ready = Readiness(None, {1: ShardTrouble(Reason.BLOCKED, producer=4003, since=1_000)})
        blocked = (await ask("GET", "/readyz")).json()["shards"]["1"]
        assert (blocked["reason"], blocked["producer"], blocked["since_ms"]) == ("blocked", 4003, 1_000)
        gateway.ready = Readiness(Reason.UNFIT, {2: trouble})
        answer = await ask("GET", "/readyz")
        document = refused(answer, 503, "unavailable")
        assert document["shards"] == shown and "shard 2" in document["detail"] and answer.headers["Retry-After"] == "1"
        for path in ("/livez", "/healthz"):
            assert (await ask("GET", path)).json() == {"status": "ok"}
        gateway.stuck_s = {1: 61.5}
        for path in ("/livez", "/healthz"):
            stuck = refused(await ask("GET", path), 503, "stuck")
            assert stuck["shards"] == {"1": {"reason": "stuck", "seconds": 61}}

    with_app(scenario)


def test_every_reason_has_a_sentence() -> None:
    assert SENTENCES.keys() == set(Reason)


def test_every_answer_has_a_request_id_of_its_own() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        mine = {"X-Request-ID": "mine"}
        answers = [
            await ask(*call, headers=mine) for call in (("GET", "/metrics"), ("HEAD", "/healthz"), ("GET", "/x"))
        ]
        refused(answers[2], 404, "not_found")
        wrong = await ask("POST", "/v1/messages/m1")
        refused(wrong, 405, "method_not_allowed")
        assert wrong.headers["Allow"] == "DELETE, GET, HEAD, PATCH, PUT"
        ids = {answer.headers["X-Request-ID"] for answer in (*answers, wrong)}
        assert len(ids) == 4 and "mine" not in ids
        assert b"duemq_pending 3.0" in answers[0].content

    with_app(scenario)


def test_an_api_key_opens_v1() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        denied = await ask("GET", "/v1/cluster", headers={"Authorization": "Bearer key-three"})
        refused(denied, 401, "unauthorised")
        assert denied.headers["WWW-Authenticate"] == "Bearer"
        assert (await ask("GET", "/v1/cluster", headers={"Authorization": "bearer key-two-"})).status_code == 200
        assert (await ask("GET", "/v1/cluster", headers={"X-API-Key": "key-one-"})).status_code == 200
        assert (await ask("GET", "/healthz")).status_code == 200
        for key in ("key-one-", "key-two-"):
            headers = {"X-API-Key": key, "Idempotency-Key": "same"}
            assert (await ask("POST", "/v1/messages", json=ORDER, headers=headers)).status_code == 201

    with_app(scenario, settings=HttpSettings(api_keys=("key-one-", "key-two-")))


def test_only_http_is_served() -> None:
    app = create_app(
        cast(Gateway, SimpleNamespace()),
        Ingress(MessageLimits()),
        HttpSettings(),
        CollectorRegistry(),
        lambda: 0,
        asyncio.Event(),
    )

    async def nothing(*message: Any) -> Any:
        raise AssertionError("neither reads nor writes")

    with pytest.raises(RuntimeError, match="lifespan"):
        asyncio.run(cast(Any, app)({"type": "lifespan"}, nothing, nothing))


def test_metrics_name_the_topics_that_readyz_names() -> None:
    registry = CollectorRegistry()
    registry.register(ReadinessCollector(lambda: Readiness(None, {}, ("duemq.trail",))))
    assert registry.get_sample_value("duemq_own_topic_unusable", {"topic": "duemq.trail"}) == 1
    assert registry.get_sample_value("duemq_ready") == 1
