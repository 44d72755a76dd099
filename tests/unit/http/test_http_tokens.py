"""Bearer tokens of an OpenID Connect provider: which are good, what they allow, and what becomes of its keys."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from pydantic import ValidationError

from duemq.model.errors import BadConfig
from duemq.proxy.login import tokens
from duemq.proxy.login.settings import LoginSettings
from duemq.proxy.login.tokens import Issuer, person_id
from tests.support.http.http_site import ORDER
from tests.support.http.provider import CLIENT, ISSUER, Provider
from tests.unit.http.test_http_access import Site

SETTINGS = LoginSettings(issuer=ISSUER, audience=CLIENT, roles=(
    "duemq-viewer=viewer", "duemq-operator=operator", "duemq-admin=admin", "shop=operator:orders.*",
    "mail=operator:mail.*",
))  # fmt: skip
Scenario = Callable[[Site, Provider], Awaitable[None]]


def with_provider(scenario: Scenario, monkeypatch: pytest.MonkeyPatch, settings: LoginSettings = SETTINGS) -> None:
    provider = Provider()
    client = httpx.AsyncClient

    def to_provider(**options: Any) -> httpx.AsyncClient:
        return client(**{"transport": provider.transport, **options})

    monkeypatch.setattr(httpx, "AsyncClient", to_provider)

    async def run(site: Site) -> None:
        await scenario(site, provider)

    asyncio.run(Site(login=settings).run(run))


def test_a_token_allows_what_its_role_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(site: Site, provider: Provider) -> None:
        site.now = time.time_ns() // 1_000_000
        assert (await site.ask("GET", "/v1/limits")).status_code == 401
        viewer, operator, admin = (provider.token(roles=[f"duemq-{role}"]) for role in ("viewer", "operator", "admin"))
        for token, sends, lists in ((viewer, 403, 403), (operator, 201, 403), (admin, 201, 200)):
            assert (await site.ask("POST", "/v1/messages", token, ORDER)).status_code == sends
            assert (await site.ask("GET", "/v1/keys", token)).status_code == lists
        made = await site.ask("POST", "/v1/keys", admin, {"name": "shop", "role": "viewer"})
        assert (await site.ask("GET", "/v1/limits", made.json()["key"])).status_code == 200
        trail = (await site.ask("GET", "/v1/trail", admin)).json()["entries"]
        assert trail[0]["by"] == f"user:{person_id(ISSUER, 'u17')} (anna@example.com)"
        assert provider.requests == ["/.well-known/openid-configuration", "/keys"]

    with_provider(scenario, monkeypatch)


def test_people_are_told_apart_by_issuer_and_subject_and_shown_by_a_verified_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The address is what a person may have typed, and two may have the same."""

    async def scenario(site: Site, provider: Provider) -> None:
        site.now = time.time_ns() // 1_000_000
        by = []
        for claims in (
            {"sub": "u17", "email": "ceo@example.com"},
            {"sub": "u18", "email": "ceo@example.com", "email_verified": False},
            {"sub": "u19", "email": "ceo@example.com", "email_verified": None},
            {"sub": "u20", "email": "a" * 100 + "1"},
            {"sub": "u21", "email": "a" * 100 + "2"},
            {"sub": "u22\n2026-01-01 forged", "email": None},
        ):
            token = provider.token(**claims)
            sent = await site.ask("POST", "/v1/messages", token, ORDER, **{"Idempotency-Key": "one"})
            assert sent.status_code == 201, "nobody has another's key"
            await site.ask("PATCH", f"/v1/messages/{sent.json()['id']}", token, {"deliver_after": "2h"})
            by.append(site.gateway.callers[-1])
        names = ["ceo@example.com", "sub u18", "sub u19", "a" * 80, "a" * 80, "sub u22?2026-01-01 forged"]
        ids = [person_id(ISSUER, f"u{number}") for number in range(17, 22)]
        ids.append(person_id(ISSUER, "u22\n2026-01-01 forged"))
        assert by == [f"user:{id_} ({name})" for id_, name in zip(ids, names, strict=True)]

    with_provider(scenario, monkeypatch)


@pytest.mark.parametrize(
    ("type_", "claims", "good"),
    [
        ("at+jwt", {}, True),
        ("application/at+JWT", {}, True),
        (None, {}, True),
        ("JWT", {"nonce": "n", "typ": "Bearer"}, True),
        ("JWT", {"nonce": "n"}, False),
        ("JWT", {"at_hash": "h"}, False),
        ("logout+jwt", {}, False),
        ("at+jwt", {"events": {"http://schemas.openid.net/event/backchannel-logout": {}}}, False),
    ],
)
def test_tokens_of_other_types_open_nothing(
    type_: str | None, claims: dict[str, Any], good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ID tokens have the audience of the API too, where `login.audience` is empty."""

    async def scenario(site: Site, provider: Provider) -> None:
        token = provider.token(type_=type_, **claims)
        assert (await site.ask("GET", "/v1/limits", token)).status_code == (200 if good else 401)

    with_provider(scenario, monkeypatch)


@pytest.mark.parametrize(
    "claims",
    [{"aud": "another"}, {"iss": "https://evil.example.com"}, {"exp": None}, {"sub": None}, {"roles": []},
     {"roles": ["admin"]}, {"roles": {"duemq-admin": True}}, {"roles": None}, {"exp": float("inf")}, {"exp": "soon"}],
)  # fmt: skip
def test_a_token_with_wrong_claims_opens_nothing(claims: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(site: Site, provider: Provider) -> None:
        assert (await site.ask("GET", "/v1/limits", provider.token(**claims))).status_code == 401

    with_provider(scenario, monkeypatch)


@pytest.mark.parametrize(("claim", "from_now_s"), [("exp", -60), ("nbf", 600)])
def test_a_token_before_or_after_its_time_opens_nothing(
    claim: str, from_now_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(site: Site, provider: Provider) -> None:
        claims: dict[str, Any] = {claim: int(time.time()) + from_now_s}
        assert (await site.ask("GET", "/v1/limits", provider.token(**claims))).status_code == 401

    with_provider(scenario, monkeypatch)


def test_a_token_that_the_issuer_did_not_sign_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(site: Site, provider: Provider) -> None:
        other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        good = provider.token()
        head, body, signature = good.split(".")
        claims = jwt.decode(good, options={"verify_signature": False})
        wrong = [
            provider.token(other), provider.token(kid="r2"), jwt.encode(claims, "", "none", headers={"kid": "r1"}),
            jwt.encode(claims, "0" * 64, "HS256", headers={"kid": "r1"}), f"{head}.{body}.", f"{head}.{body}",
            f"{head}..{signature}", "..", "a.b.c", good[:-4] + "AAAA", good + "." + "x" * (16 << 10),
        ]  # fmt: skip
        for token in wrong:
            assert (await site.ask("GET", "/v1/limits", token)).status_code == 401, token
        assert (await site.ask("GET", "/v1/limits", good)).status_code == 200

    with_provider(scenario, monkeypatch)


@pytest.mark.parametrize("declared", [True, False], ids=["a key with alg", "without"])
def test_an_rsa_key_is_for_the_algorithm_it_declares_or_for_all_of_its_kind(
    declared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(site: Site, provider: Provider) -> None:
        if not declared:
            del provider.published[0]["alg"]
        for algorithm in ("RS256", "RS512", "PS256", "PS384"):
            good = algorithm == "RS256" or not declared
            token = provider.token(algorithm=algorithm)
            assert (await site.ask("GET", "/v1/limits", token)).status_code == (200 if good else 401), algorithm
        claims = jwt.decode(token, options={"verify_signature": False})
        for algorithm, secret in (("none", ""), ("HS256", "0" * 64)):
            token = jwt.encode(claims, secret, algorithm, headers={"kid": "r1"})
            assert (await site.ask("GET", "/v1/limits", token)).status_code == 401, algorithm

    with_provider(scenario, monkeypatch)


def test_new_keys_of_the_issuer_are_fetched_and_old_ones_stay_good_while_it_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(tokens, "monotonic", lambda: now)

    async def scenario(site: Site, provider: Provider) -> None:
        nonlocal now

        async def opened(token: str) -> int:
            return (await site.ask("GET", "/v1/limits", token)).status_code

        provider.away = True
        assert await opened(provider.token()) == 503
        now += 40
        provider.away = False
        assert await opened(provider.token()) == 200
        provider.publish_ec()
        by_ec = provider.token(provider.ec, "ES256", "e1")
        assert await opened(by_ec) == 401  # it was asked a moment ago
        asked = len(provider.requests)
        for _ in range(20):
            assert await opened(provider.token(kid="guess", jti=str(_))) == 401
        assert len(provider.requests) == asked
        now += 40
        assert await opened(by_ec) == 200
        provider.away = True
        now += 7200
        assert await opened(provider.token(jti="another")) == 200

    with_provider(scenario, monkeypatch)


def test_a_token_is_verified_once_until_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[str] = []
    verify = Issuer.verify

    async def counted(self: Issuer, token: str, audience: str) -> Any:
        verified.append(token)
        return await verify(self, token, audience)

    monkeypatch.setattr(Issuer, "verify", counted)

    async def scenario(site: Site, provider: Provider) -> None:
        site.now = time.time_ns() // 1_000_000
        token = provider.token()
        for _ in range(3):
            assert (await site.ask("GET", "/v1/limits", token)).status_code == 200
        assert len(verified) == 1
        site.now += 600_000
        await site.ask("GET", "/v1/limits", token)
        assert len(verified) == 2

    with_provider(scenario, monkeypatch)


@pytest.mark.parametrize(
    ("values", "role"),
    [(["duemq-viewer", "duemq-operator"], ("operator", ())), (["shop"], ("operator", ("orders.*",))),
     (["shop", "mail"], ("operator", ("orders.*", "mail.*"))), (["shop", "duemq-operator"], ("operator", ())),
     (["duemq-admin", "shop"], ("admin", ())), (["other"], None), ([], None)],
)  # fmt: skip
def test_the_strongest_role_counts(values: list[str], role: tuple[str, tuple[str, ...]] | None) -> None:
    assert SETTINGS.roles_of(values) == role


def test_roles_are_found_inside_of_objects() -> None:
    assert tokens.values_at({"realm_access": {"roles": ["a", 1]}}, "realm_access.roles") == ["a"]
    assert tokens.values_at({"https://x.example/roles": "a b"}, "https://x.example/roles") == ["a", "b"]
    assert tokens.values_at({"roles": 5}, "roles.x") == tokens.values_at({}, "roles") == []


@pytest.mark.parametrize(
    "fields",
    [{"issuer": "login.example.com", "audience": "a"}, {"issuer": ISSUER}, {"client_id": "a", "url": "https://x"},
     {"issuer": ISSUER, "client_id": "a"}, {"roles": "a"}, {"roles": "a=king"}, {"roles": "a=admin:orders"},
     {"session": "1s"}],
)  # fmt: skip
def test_wrong_settings_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        LoginSettings(**fields)


def test_without_the_extra_the_server_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "duemq.proxy.login.tokens")
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(BadConfig, match=r"pip install 'duemq\[login\]'"):
        asyncio.run(Site(login=SETTINGS).run(lambda site: asyncio.sleep(0)))
