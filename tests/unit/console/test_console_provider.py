"""Login to the console by an OpenID Connect provider: the code flow with PKCE, and all that may be wrong on the way."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest

from duemq.proxy.login.settings import LoginSettings
from tests.support.http.console_site import ConsoleSite, with_console
from tests.support.http.provider import CLIENT, ISSUER, SECRET, Provider

SETTINGS = LoginSettings(issuer=ISSUER, client_id=CLIENT, client_secret=SECRET, url="https://duemq.example.com/mq/")
Scenario = Callable[[ConsoleSite, Provider], Awaitable[None]]


@pytest.fixture
def with_provider(monkeypatch: pytest.MonkeyPatch) -> Callable[[Scenario], None]:
    provider, client = Provider(), httpx.AsyncClient
    monkeypatch.setattr(httpx, "AsyncClient", lambda **options: client(**{"transport": provider.transport, **options}))

    def run(scenario: Scenario) -> None:
        async def with_site(site: ConsoleSite) -> None:
            site.gateway.now = time.time_ns() // 1_000_000  # that of the tokens
            await scenario(site, provider)

        with_console(with_site, login=SETTINGS)

    return run


async def begin(site: ConsoleSite) -> str:
    """Where the browser is sent; it has the cookie of the login then."""
    response = await site.ask("GET", "/login/provider")
    assert response.status_code == 303 and "HttpOnly" in response.headers["Set-Cookie"]
    site.headers = {"Cookie": response.headers["Set-Cookie"].partition(";")[0]}
    return str(response.headers["Location"])


async def come_back(site: ConsoleSite, query: dict[str, str]) -> httpx.Response:
    return await site.ask("GET", "/login/callback?" + urlencode(query))


def test_a_person_logs_in_by_the_provider(with_provider: Callable[[Scenario], None]) -> None:
    async def scenario(site: ConsoleSite, provider: Provider) -> None:
        assert (await site.ask("GET", "/")).status_code == 303  # to the login
        assert "login/provider" in await site.page("/login")
        url = await begin(site)
        asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert asked["redirect_uri"] == "https://duemq.example.com/mq/console/login/callback"
        assert asked["response_type"] == "code" and asked["code_challenge_method"] == "S256"
        response = await come_back(site, provider.log_in(url))
        assert response.status_code == 303 and response.headers["Location"] == "../"
        site.headers = {"Cookie": response.headers.get_list("Set-Cookie")[0].partition(";")[0]}
        assert "Log out" in await site.page("/")
        assert (await site.ask("GET", "/schedule")).status_code == 200  # an operator's
        assert (await site.ask("GET", "/keys")).status_code == 403
        assert (await site.ask("GET", "/../v1/messages")).status_code == 401  # the cookie opens the console alone

    with_provider(scenario)


@pytest.mark.parametrize(
    ("query", "claims", "told"),
    [({"state": "another"}, {}, "not begun in this browser"),
     ({"iss": "https://evil.example.com"}, {}, "another provider"),
     ({"code": "guess"}, {}, "does not accept this code"), ({"error": "access_denied"}, {}, "access_denied"),
     ({}, {"nonce": "another"}, "token is not valid"), ({}, {"aud": "another"}, "token is not valid"),
     ({}, {"azp": "another"}, "token is not valid"), ({}, {"type_": "at+jwt"}, "token is not valid"),
     ({"state": ""}, {}, "not begun in this browser"),
     ({}, {"roles": []}, "no role of login.roles")],
)  # fmt: skip
def test_a_wrong_answer_begins_no_session_and_is_told(
    query: dict[str, str], claims: dict[str, Any], told: str, with_provider: Callable[[Scenario], None]
) -> None:
    async def scenario(site: ConsoleSite, provider: Provider) -> None:
        response = await come_back(site, provider.log_in(await begin(site), **claims) | query)
        assert response.status_code == 401 and "duemq_session" not in response.headers.get("Set-Cookie", "")
        assert "<title>Login refused" in response.text and told in response.text
        assert 'href="../login/provider"' in response.text, "a second try is one click away"
        assert "aria-invalid" not in response.text, "no key was wrong"

    with_provider(scenario)


def test_a_login_that_another_browser_began_ends_in_none(with_provider: Callable[[Scenario], None]) -> None:
    """Somebody who sends a victim the link back from his own login would have the victim act as him."""

    async def scenario(site: ConsoleSite, provider: Provider) -> None:
        answer = provider.log_in(await begin(site))
        await begin(site)  # the victim's own
        assert (await come_back(site, answer)).status_code == 401
        site.headers = {}
        assert (await come_back(site, answer)).status_code == 401

    with_provider(scenario)


def test_a_state_is_good_once_and_asks_the_provider_once(with_provider: Callable[[Scenario], None]) -> None:
    async def scenario(site: ConsoleSite, provider: Provider) -> None:
        answer = provider.log_in(await begin(site)) | {"code": "guess"}
        for _ in range(20):
            assert (await come_back(site, answer)).status_code == 401
        assert provider.requests.count("/token") == 1
        site.headers = {"Cookie": "__Host-duemq_login=.."}
        assert (await come_back(site, {"code": "x", "state": ""})).status_code == 401
        assert provider.requests.count("/token") == 1

    with_provider(scenario)


def test_a_login_by_the_provider_leads_back_to_the_page_that_was_asked_for(
    with_provider: Callable[[Scenario], None],
) -> None:
    async def scenario(site: ConsoleSite, provider: Provider) -> None:
        for page, goal in (("messages?topic=a&key=b", "../messages?topic=a&key=b"), ("//evil.example", "../")):
            site.headers = {}
            response = await site.ask("GET", "/login/provider?" + urlencode({"next": page}))
            site.headers = {"Cookie": response.headers["Set-Cookie"].partition(";")[0]}
            response = await come_back(site, provider.log_in(response.headers["Location"]))
            assert response.headers["Location"] == goal
        assert "login/provider?next=messages" in await site.page("/login?next=messages")
        url = await begin(site)
        site.headers = {"Cookie": f"{site.headers['Cookie']}A"}  # no base64
        assert (await come_back(site, provider.log_in(url))).headers["Location"] == "../"

    with_provider(scenario)


def test_a_code_is_good_once(with_provider: Callable[[Scenario], None]) -> None:
    async def scenario(site: ConsoleSite, provider: Provider) -> None:
        answer = provider.log_in(await begin(site))
        assert (await come_back(site, answer)).status_code == 303
        assert (await come_back(site, answer)).status_code == 401

    with_provider(scenario)


@pytest.mark.parametrize(
    ("userinfo", "in_token", "status"),
    [
        ({"sub": "u17", "roles": ["duemq-operator"]}, None, 303),
        ({"sub": "u17", "roles": ["other"]}, None, 401),
        ({"sub": "u17"}, None, 401),
        ({"sub": "u18", "roles": ["duemq-operator"]}, None, 401),
        ({"roles": ["duemq-operator"]}, None, 401),
        ({"sub": "u17", "roles": ["duemq-operator"]}, [], 401),
    ],
    ids=["there", "another", "none", "of another person", "of nobody", "the ID token says that there are none"],
)
def test_roles_that_the_id_token_does_not_name_are_read_from_the_userinfo(
    userinfo: dict[str, Any], in_token: list[str] | None, status: int, with_provider: Callable[[Scenario], None]
) -> None:
    """As providers do that follow OpenID Connect Core 1.0, 5.4, to the letter."""

    async def scenario(site: ConsoleSite, provider: Provider) -> None:
        provider.userinfo = userinfo
        response = await come_back(site, provider.log_in(await begin(site), roles=in_token))
        assert response.status_code == status

    with_provider(scenario)


def test_a_userinfo_that_is_not_needed_is_not_read(with_provider: Callable[[Scenario], None]) -> None:
    async def scenario(site: ConsoleSite, provider: Provider) -> None:
        provider.userinfo = {"sub": "u17", "roles": ["duemq-admin"]}
        assert (await come_back(site, provider.log_in(await begin(site)))).status_code == 303
        assert "/me" not in provider.requests

    with_provider(scenario)


def test_with_an_https_url_all_cookies_are_secure_and_bound_to_the_host(
    with_provider: Callable[[Scenario], None],
) -> None:
    """Browsers send no `Origin` with the two requests of the code flow, and TLS may end at a proxy."""

    async def scenario(site: ConsoleSite, provider: Provider) -> None:
        begun = await site.ask("GET", "/login/provider")
        site.headers = {"Cookie": begun.headers["Set-Cookie"].partition(";")[0]}
        ended = await come_back(site, provider.log_in(begun.headers["Location"]))
        cookies = begun.headers.get_list("Set-Cookie") + ended.headers.get_list("Set-Cookie")
        assert len(cookies) == 3
        for cookie in cookies:
            assert cookie.startswith("__Host-duemq_") and cookie.endswith("; Secure") and "Path=/;" in cookie
        session = cookies[1].partition(";")[0]
        for text, status in ((session, 200), (session.removeprefix("__Host-"), 303)):
            site.headers = {"Cookie": text}
            assert (await site.ask("GET", "/")).status_code == status

    with_provider(scenario)


def test_a_session_ends_with_the_token_it_was_made_from(with_provider: Callable[[Scenario], None]) -> None:
    async def scenario(site: ConsoleSite, provider: Provider) -> None:
        until = site.gateway.now // 1000 + 300
        response = await come_back(site, provider.log_in(await begin(site), exp=until))
        cookie = response.headers.get_list("Set-Cookie")[0]
        assert 0 < int(re.search(r"Max-Age=(\d+)", cookie)[1]) <= 300  # type: ignore[index]
        site.headers = {"Cookie": cookie.partition(";")[0]}
        assert (await site.ask("GET", "/")).status_code == 200
        site.gateway.now = until * 1000
        assert (await site.ask("GET", "/")).status_code == 303

    with_provider(scenario)


def test_a_token_begins_no_session_by_the_form_for_keys(with_provider: Callable[[Scenario], None]) -> None:
    async def scenario(site: ConsoleSite, provider: Provider) -> None:
        token = provider.token(roles=["duemq-admin"])
        for _ in range(2):  # also when it is known
            assert (await site.ask("POST", "/login", {"key": token})).status_code == 401
            assert (await site.ask("GET", "/keys", Authorization=f"Bearer {token}")).status_code == 200

    with_provider(scenario)
