"""Sessions of the console: begun by a key, bound to it, ended everywhere; and forms that come from elsewhere."""

from __future__ import annotations

import re

import pytest

from duemq.cluster.admin.sessions import MAX_OF_CALLER, MAX_SESSIONS
from duemq.model.callers.session import new_session
from duemq.proxy.access import LOGINS_PER_S
from duemq.proxy.console.endpoints import CONSOLE_ENDPOINTS
from duemq.web.settings import HttpSettings
from tests.support.http.console_site import OPERATOR, VIEWER, ConsoleSite, with_console
from tests.support.http.http_site import NOW

HOUR_MS = 3_600_000
FORMS = [endpoint.path.removeprefix("/console") for endpoint in CONSOLE_ENDPOINTS if endpoint.method == "POST"]


async def log_in(site: ConsoleSite, scopes: tuple[str, ...] = OPERATOR, page: str = "") -> str:
    """Log in by a new key, and the token of the session's forms."""
    made = await site.admin.keys.make({"name": "test", "scopes": list(scopes)}, "test")
    site.key_id = made["id"]
    response = await site.ask("POST", "/login", {"key": made["key"], "next": page})
    assert response.status_code == 303, response.text
    cookie = response.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Lax" in cookie and made["key"] not in cookie
    site.headers = {"Cookie": cookie.partition(";")[0]}
    site.location = response.headers["Location"]
    text = await site.page("/")
    return re.search(r'name="csrf" value="([0-9a-f]{64})"', text)[1]  # type: ignore[index]


def test_a_key_begins_a_session_that_may_what_the_key_may() -> None:
    async def scenario(site: ConsoleSite) -> None:
        token = await log_in(site, VIEWER)
        assert (await site.ask("GET", "/messages")).status_code == 200
        assert (await site.ask("POST", "/changes", {"kind": "cancel", "id": "m1", "csrf": token})).status_code == 403
        await site.admin.keys.revoke(site.key_id, "test")
        assert (await site.ask("GET", "/messages")).status_code == 303

    with_console(scenario)


@pytest.mark.parametrize("overlap_ms", [0, 60_000])
def test_a_session_ends_with_the_text_of_the_key_that_began_it(overlap_ms: int) -> None:
    async def scenario(site: ConsoleSite) -> None:
        token = await log_in(site, VIEWER)
        text = (await site.admin.keys.rotate(site.key_id, overlap_ms, "test"))["key"]
        assert (await site.ask("GET", "/messages")).status_code == (200 if overlap_ms else 303)
        renewed = await site.ask("POST", "/login", {"key": text, "csrf": token})
        site.gateway.now += overlap_ms
        assert (await site.ask("GET", "/messages")).status_code == 303
        if not overlap_ms:
            site.headers = {"Cookie": renewed.headers["Set-Cookie"].partition(";")[0]}
            assert (await site.ask("GET", "/messages")).status_code == 200

    with_console(scenario)


def test_a_session_of_a_version_that_knew_no_texts_is_over() -> None:
    async def scenario(site: ConsoleSite) -> None:
        made = await site.admin.keys.make({"name": "test", "scopes": ["read"]}, "test")
        session, text = new_session(made["id"], f"key:{made['id']}", site.gateway.now, site.gateway.now + 60_000)
        await site.admin.sessions.begin(session)
        site.headers = {"Cookie": f"duemq_session={text}"}
        assert (await site.ask("GET", "/messages")).status_code == 303

    with_console(scenario)


@pytest.mark.parametrize(
    ("proxies", "headers", "secure"),
    [
        (("127.0.0.0/8",), {"X-Forwarded-Proto": "https"}, True),
        (("127.0.0.0/8",), {"X-Forwarded-Proto": "http"}, False),
        (("127.0.0.0/8",), {}, False),
        (("10.0.0.0/8",), {"X-Forwarded-Proto": "https"}, False),
        ((), {"X-Forwarded-Proto": "https"}, False),
    ],
)
def test_cookies_follow_the_scheme_that_a_trusted_proxy_tells_of(
    proxies: tuple[str, ...], headers: dict[str, str], secure: bool
) -> None:
    async def scenario(site: ConsoleSite) -> None:
        made = await site.admin.keys.make({"name": "test", "scopes": ["read"]}, "test")
        site.headers = headers
        cookie = (await site.ask("POST", "/login", {"key": made["key"]})).headers["Set-Cookie"]
        assert ("; Secure" in cookie) is cookie.startswith("__Host-duemq_session=") is secure
        text = cookie.partition(";")[0].partition("=")[2]
        for name, opened in (("__Host-duemq_session", True), ("duemq_session", not secure)):
            site.headers = headers | {"Cookie": f"{name}={text}"}
            assert (await site.ask("GET", "/messages")).status_code == (200 if opened else 303), name

    with_console(scenario, http_settings=HttpSettings(trusted_proxies=proxies))


def test_a_wrong_key_begins_none_and_is_not_shown_again() -> None:
    async def scenario(site: ConsoleSite) -> None:
        await site.become(VIEWER)
        site.headers = {}
        for key in ("duemq_nonsense", "", "schlüssel"):
            response = await site.ask("POST", "/login", {"key": key})
            assert response.status_code == 401 and "Set-Cookie" not in response.headers
            assert not key or key not in response.text

    with_console(scenario)


@pytest.mark.parametrize("path", FORMS)
def test_a_form_without_the_token_of_the_session_is_refused(path: str) -> None:
    async def scenario(site: ConsoleSite) -> None:
        token = await log_in(site, ("admin",))
        path_here = re.sub(r"\{\w+\}", "a", path)
        form = {"kind": "cancel", "id": "m1", "sure": "1", "topic": "orders"}
        for wrong in ({}, {"csrf": ""}, {"csrf": "0" * 64}):
            response = await site.ask("POST", path_here, form | wrong)
            assert response.status_code == 403 and "another session" in response.text, path
        assert site.gateway.changes == [] and site.gateway.sent == [] and site.gateway.drained == []
        assert (await site.ask("POST", path_here, form | {"csrf": token})).status_code not in (403, 500)

    with_console(scenario)


def test_htmx_sends_the_token_as_a_header() -> None:
    async def scenario(site: ConsoleSite) -> None:
        token = await log_in(site)
        text = await site.page("/messages")
        assert f'"X-CSRF-Token": "{token}"' in text and f'content="{token}"' in text
        form = {"kind": "cancel", "id": "m1"}
        assert (await site.ask("POST", "/changes:confirm", form, **{"X-CSRF-Token": token})).status_code == 200

    with_console(scenario)


def test_a_logout_ends_the_session_for_all_processes() -> None:
    async def scenario(site: ConsoleSite) -> None:
        token = await log_in(site)
        response = await site.ask("POST", "/logout", {"csrf": token})
        assert (response.status_code, response.headers["Location"]) == (303, "./login")
        assert "Max-Age=0" in response.headers["Set-Cookie"]
        assert (await site.ask("GET", "/")).status_code == 303

    with_console(scenario)


@pytest.mark.parametrize(
    ("page", "goal"),
    [
        ("messages?topic=a&key=b", "./messages?topic=a&key=b"),
        ("messages/m1", "./messages/m1"),
        ("//evil.example", "./"),
        ("https://evil.example", "./"),
        ("../../x", "./"),
        ("a\\b", "./"),
        ("a\r\nSet-Cookie: x", "./"),
    ],
)
def test_a_login_leads_to_a_page_of_the_console_and_nowhere_else(page: str, goal: str) -> None:
    async def scenario(site: ConsoleSite) -> None:
        await log_in(site, page=page)
        assert site.location == goal

    with_console(scenario)


def test_what_is_done_at_the_console_is_in_the_trail_and_a_question_is_not() -> None:
    async def scenario(site: ConsoleSite) -> None:
        token = await log_in(site)
        form = {"kind": "cancel", "id": "m1", "csrf": token}
        await site.ask("POST", "/changes:confirm", form)
        await site.ask("POST", "/changes", form)
        await site.ask("POST", "/cluster/nodes/a:drain", {"csrf": token})
        await site.ask("POST", "/cluster/nodes/a:drain", {"csrf": token, "sure": "1"})
        entries, _ = await site.admin.trail.read(100, None)
        actions = [entry.action for entry in entries]
        assert actions.count("POST /console/changes") == 1
        assert actions.count("POST /console/cluster/nodes/{node}:drain") == 1
        assert "POST /console/changes:confirm" not in actions
        assert {entry.by for entry in entries if "changes" in entry.action} == {site.key_id}

    with_console(scenario)


def test_logins_of_one_key_end_none_of_others_sessions_and_have_a_rate() -> None:
    async def scenario(site: ConsoleSite) -> None:
        await log_in(site, ("admin",))
        admin = dict(site.headers)
        viewer = (await site.admin.keys.make({"name": "v", "scopes": ["read"]}, "test"))["key"]
        site.headers = {}

        async def status_of_login(key: str) -> int:
            site.http.cookies.clear()
            return (await site.ask("POST", "/login", {"key": key})).status_code

        answers = [await status_of_login(viewer) for _ in range(LOGINS_PER_S + 5)]
        assert 429 in answers[LOGINS_PER_S:] and set(answers[:LOGINS_PER_S]) == {303}
        limited = (await site.admin.keys.make({"name": "l", "scopes": ["read"], "rate": 1}, "test"))["key"]
        assert [await status_of_login(limited) for _ in range(2)] == [303, 429]
        for number in range(MAX_OF_CALLER + 5):
            await site.admin.sessions.begin(new_session("v", "key:v", NOW + number, NOW + HOUR_MS)[0])
        kept = [one for _, one in site.admin.log.state.of_kind("sessions") if one["caller"] == "v"]
        assert sorted(one["created_at"] for one in kept) == [NOW + number for number in range(5, MAX_OF_CALLER + 5)]
        for number in range(MAX_SESSIONS):  # even if there is no place at all
            await site.admin.sessions.begin(new_session(f"c{number % 9}", "user", NOW, NOW + HOUR_MS)[0])
        site.http.cookies.clear()
        site.headers = admin
        assert (await site.ask("GET", "/keys")).status_code == 200

    with_console(scenario)
