"""Every page of the console and every form: what they show, to whom, and what they refuse."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from urllib.parse import quote

import pytest

from duemq.model.callers.access import Scope
from duemq.model.errors import OutcomeUnknown, Rejected, Unavailable
from duemq.model.log.ledger import Answer
from duemq.model.messages.message import CANCEL, DELIVER_NOW, MOVE, REDRIVE
from duemq.model.messages.names import of_client
from duemq.model.messages.record import unpack_headers
from duemq.model.messages.row_notes import Attempt, ChangeHistory, PastChange
from duemq.proxy.console.endpoints import CONSOLE_ENDPOINTS
from duemq.proxy.gateway.base import ChangeOutcome, MessagePage
from duemq.proxy.settings import ConsoleSettings
from tests.support.house.tree import ROOT
from tests.support.http.console_site import ADMIN, OPERATOR, VIEWER, ConsoleSite, node, with_console
from tests.support.http.http_site import NOW, STATE

EVIL = "<script>alert(1)</script>"
PAGES = (
    "/",
    "/messages",
    "/messages/m1",
    "/dlq",
    "/dlq/topics",
    "/dlq/topics/orders",
    "/dlq/topics/orders/0:0",
    "/topics",
    "/topics/orders",
    "/cluster",
    "/files",
    "/imports",
    "/jobs",
)
INLINE = re.compile(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)|javascript:", re.IGNORECASE)


@pytest.mark.parametrize("path", [*PAGES, "/schedule", "/keys", "/trail", "/nothing"])
def test_a_page_has_no_inline_code_and_says_so_to_the_browser(path: str) -> None:
    async def scenario(site: ConsoleSite) -> None:
        response = await site.ask("GET", path)
        assert response.status_code == (404 if path == "/nothing" else 200)
        assert not INLINE.search(response.text)
        headers = response.headers
        policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == policy["form-action"] == "'self'"
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Frame-Options"] == "DENY" and headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "same-origin" and headers["Cache-Control"] == "no-store"
        config = json.loads(re.search(r"name=\"htmx-config\" content='([^']+)'", response.text)[1])  # type: ignore[index]
        assert config["allowEval"] is False and config["includeIndicatorStyles"] is False

    with_console(scenario)


@pytest.mark.parametrize("path", PAGES)
def test_all_that_a_page_refers_to_is_relative_so_that_it_works_below_any_prefix(path: str) -> None:
    async def scenario(site: ConsoleSite) -> None:
        text = await site.page(path)
        links = re.findall(r'(?:href|src|action|data-url|hx-get|hx-post)="([^"]*)"', text)
        assert links and not [link for link in links if link.startswith("/") or (":" in link.split("/")[0].split("?")[0]
                              and not re.match(r"(changes|redrives):", link))]  # fmt: skip
        for link in links:
            if "assets/" in link:
                depth = path.count("/") - 1
                assert link.startswith("../" * depth if depth else "./")

    with_console(scenario)


def test_the_console_without_a_slash_leads_to_its_overview_by_a_relative_location() -> None:
    async def scenario(site: ConsoleSite) -> None:
        response = await site.ask("GET", "")
        assert (response.status_code, response.headers["Location"]) == (308, "console/")

    with_console(scenario)


def test_what_comes_from_senders_is_escaped_everywhere() -> None:
    state = replace(
        STATE, topic=EVIL, key=EVIL.encode(), labels=(EVIL,), headers=((EVIL, EVIL.encode()),), payload=EVIL.encode(),
        status="dead", reason=EVIL, dead_at=NOW, expires=0,
    )  # fmt: skip

    async def scenario(site: ConsoleSite) -> None:
        gateway = site.gateway
        gateway.found, gateway.pages = state, [MessagePage([state], EVIL)]
        gateway.refusing = {EVIL: EVIL}
        gateway.nodes = [node(EVIL, reason=EVIL, state="out", full=EVIL, unfit={"0": EVIL}, rack=EVIL), node("b")]
        gateway.masters = [EVIL]
        await site.app.history.sample()
        for path in (*PAGES, f"/messages?topic=x&key={EVIL}&ref=", f"/dlq?label={EVIL}"):
            text = (await site.ask("GET", path)).text
            assert EVIL not in text and "<script>" not in text, path
            if path not in ("/topics", "/dlq/topics", "/dlq/topics/orders", "/files", "/imports", "/jobs"):
                assert "&lt;script&gt;" in text, path
        gateway.error = Rejected("bad_field", EVIL, EVIL)
        schedule = {"topic": "orders", "payload": EVIL, "headers": f"{EVIL}: {EVIL}", "key": f'"{EVIL}', "once": EVIL}
        text = (await site.ask("POST", "/schedule", schedule)).text
        assert EVIL not in text and "&lt;script&gt;" in text
        asked = await site.ask("POST", "/changes:confirm", {"kind": "cancel", "id": EVIL})
        assert EVIL not in asked.text and "&lt;script&gt;" in asked.text

    with_console(scenario)


def test_who_has_no_key_sees_nothing_but_assets_and_is_led_to_the_login() -> None:
    async def scenario(site: ConsoleSite) -> None:
        await site.become(ADMIN)
        await site.become(None)
        for path in (*PAGES, "/schedule"):
            response = await site.ask("GET", path)
            location = response.headers["Location"]
            assert response.status_code == 303 and response.text == "", path
            assert location == f"{'../' * (path.count('/') - 1) or './'}login?next={quote(path[1:], safe='')}"
        assert (await site.ask("GET", "/live", accept="text/event-stream")).status_code == 401
        assert (await site.ask("GET", "/messages", **{"HX-Request": "true"})).status_code == 401
        assert (await site.ask("POST", "/changes", {"kind": "cancel", "id": "m1"})).status_code == 401
        name = re.search(r"assets/([^\"]+\.css)", (await site.ask("GET", "/login")).text)[1]  # type: ignore[index]
        assert (await site.ask("GET", f"/assets/{name}")).status_code == 200

    with_console(scenario)


def test_a_viewer_is_refused_by_every_route_that_changes_something() -> None:
    async def scenario(site: ConsoleSite) -> None:
        await site.become(VIEWER)
        for endpoint in CONSOLE_ENDPOINTS:
            path = re.sub(r"\{\w+\}", "a", endpoint.path.removeprefix("/console"))
            if endpoint.scope is not None and endpoint.scope is not Scope.READ:
                form = {"kind": "cancel", "id": "m1", "sure": "1"} if endpoint.method == "POST" else None
                response = await site.ask(endpoint.method, path, form)
                assert response.status_code == 403, path
                assert (await site.ask("GET", "/messages")).status_code == 200
        assert site.gateway.changes == [] and site.gateway.sent == [] and site.gateway.drained == []

    with_console(scenario)


@pytest.mark.parametrize(("scopes", "visible"), [(VIEWER, False), (OPERATOR, True), (("read", "cancel"), False)])
def test_buttons_and_payloads_are_for_those_who_may(scopes: tuple[str, ...], visible: bool) -> None:
    async def scenario(site: ConsoleSite) -> None:
        site.gateway.found = replace(STATE, payload=b'{"amount": 12}', headers=(("trace", b"4711"),))
        await site.become(scopes)
        text = await site.page("/messages/m1")
        assert ("4711" in text) == ("&#34;amount&#34;" in text) == visible
        assert ("masked" in text) != visible
        assert ('value="cancel"' in text) == ("cancel" in scopes)
        assert ("alert(1)" in await site.page("/topics/orders")) == visible
        assert ("Drain" in await site.page("/cluster")) == ("operate" in scopes)
        assert ('href="./schedule"' in await site.page("/")) == ("send" in scopes)

    with_console(scenario)


def test_payloads_are_for_all_where_the_setting_says_so() -> None:
    async def scenario(site: ConsoleSite) -> None:
        await site.become(VIEWER)
        assert "alert(1)" in await site.page("/topics/orders")

    with_console(scenario, ConsoleSettings(mask_payloads=False))


@pytest.mark.parametrize(
    ("payload", "form", "shown"),
    [
        (b'{"a":[1]}', "", "&#34;a&#34;: [\n    1"),
        (b'{"a":[1]}', "?as=text", "{&#34;a&#34;:[1]}"),
        (b'{"a":[1]}', "?as=hex", "7b 22 61 22"),
        (b"\xff\x00A", "", "ff 00 41"),
        ("größer".encode(), "", "größer"),
        (b"{not json", "?as=json", "{not json"),
        (b"", "", "<code></code>"),
    ],
)
def test_a_payload_is_shown_as_json_text_or_hexadecimal(payload: bytes, form: str, shown: str) -> None:
    async def scenario(site: ConsoleSite) -> None:
        site.gateway.found = replace(STATE, payload=payload)
        assert shown in await site.page(f"/messages/m1{form}")

    with_console(scenario)


def test_a_message_shows_its_failed_attempts() -> None:
    attempts = (Attempt(NOW, f"policy {EVIL}"), Attempt(NOW + 1_000, "too_large"))

    async def scenario(site: ConsoleSite) -> None:
        site.gateway.found = replace(STATE, status="dead", dead_at=NOW + 1_000, reason="too_large", attempts=attempts)
        text = " ".join(re.sub(r"<[^>]+>", " ", await site.page("/messages/m1")).split())
        assert "not delivered: policy &lt;script&gt;alert(1)&lt;/script&gt;" in text
        assert "not delivered: too_large" in text

    with_console(scenario)


def test_a_message_shows_its_changes_and_who_asked_for_them() -> None:
    changes = (
        PastChange(MOVE, NOW, NOW + 1_000, NOW + 9_000, f"key:{EVIL}"), PastChange(DELIVER_NOW, NOW, NOW, NOW),
        PastChange(CANCEL, NOW + 5, by="user:ann@x"),
    )  # fmt: skip

    async def scenario(site: ConsoleSite) -> None:
        site.gateway.found = replace(
            STATE, status="cancelled", cancelled_at=NOW + 5, history=ChangeHistory(changes, left_out=2)
        )
        text = " ".join(re.sub(r"<(?!/?b>)[^>]+>", " ", await site.page("/messages/m1")).split())
        assert "moved by <b>key:&lt;script&gt;alert(1)&lt;/script&gt;</b>; it was due" in text
        assert "2 more changes, not kept" in text and "delivered now; it was due" in text
        assert text.count("cancelled by <b>user:ann@x</b>") == 1
        site.gateway.found = replace(STATE, status="cancelled", cancelled_at=NOW + 5)
        assert "<span>cancelled</span>" in await site.page("/messages/m1")

    with_console(scenario)


def test_a_long_payload_is_cut_and_says_so() -> None:
    async def scenario(site: ConsoleSite) -> None:
        site.gateway.found = replace(STATE, payload=b"x" * 100_000)
        text = await site.page("/messages/m1")
        assert "first 64 KiB" in text and len(text) < 80_000

    with_console(scenario)


def test_filters_are_in_the_url_and_pages_go_by_cursor() -> None:
    async def scenario(site: ConsoleSite) -> None:
        site.gateway.pages = [MessagePage([STATE], "next-page")]
        query = "topic=orders&key=k+1&label=a&due_from=2026-11-21T10%3A00&status=delivered&limit=25"
        text = await site.page(f"/messages?{query}&cursor=before")
        (asked,) = site.gateway.queries
        assert (asked.topic, asked.key, asked.label, asked.status) == ("orders", "k 1", "a", "delivered")
        assert (asked.due_from, asked.limit, asked.cursor) == (NOW, 25, "before")
        more = re.search(r'<a class="button" href="\./messages\?([^"]+)"', text)[1].replace("&amp;", "&")  # type: ignore[index]
        assert "cursor=next-page" in more and "before" not in more and "key=k+1" in more
        assert 'value="2026-11-21T10:00"' in text and 'value="k 1"' in text

    with_console(scenario)


def test_a_search_goes_on_until_it_finds_something_or_says_how_to_go_on() -> None:
    async def scenario(site: ConsoleSite) -> None:
        site.gateway.pages = [MessagePage([], "c1"), MessagePage([], "c2"), MessagePage([STATE], None)]
        assert "/messages/m1" in await site.page("/messages?key=k")
        assert [query.cursor for query in site.gateway.queries] == [None, "c1", "c2"]
        site.gateway.pages, site.gateway.queries = [MessagePage([], "again")], []
        text = await site.page("/messages?key=k")
        assert "Continue" in text and "cursor=again" in text

    with_console(scenario)


def test_what_is_typed_wrongly_stays_on_the_page_with_the_reason() -> None:
    async def scenario(site: ConsoleSite) -> None:
        response = await site.ask("GET", "/messages?due_from=tomorrow")
        assert response.status_code == 400
        assert "RFC 3339" in response.text and 'value="tomorrow"' in response.text
        site.gateway.found = None
        response = await site.ask("GET", "/messages?ref=order-1")
        assert response.status_code == 400 and "order-1" in response.text
        assert (await site.ask("GET", "/messages?what=1")).status_code == 400

    with_console(scenario)


def test_an_id_or_name_leads_to_its_message() -> None:
    async def scenario(site: ConsoleSite) -> None:
        response = await site.ask("GET", "/messages?ref=order-17")
        assert (response.status_code, response.headers["Location"]) == (303, "./messages/m1")

    with_console(scenario)


@pytest.mark.parametrize(
    ("kind", "command", "path"),
    [("cancel", CANCEL, "changes"), ("deliver-now", DELIVER_NOW, "changes"), ("redrive", REDRIVE, "redrives")],
)
def test_a_change_is_asked_with_its_count_and_then_made(kind: str, command: int, path: str) -> None:
    async def scenario(site: ConsoleSite) -> None:
        ids = [f"m{number}" for number in range(1, 4)]
        form = {"kind": kind, "id": ids}
        asked = await site.ask("POST", f"/{path}:confirm", form)
        assert asked.status_code == 200 and "3 messages?" in asked.text
        assert site.gateway.changes == []
        assert asked.text.count('name="id"') == 3
        report = await site.ask("POST", f"/{path}", form)
        assert report.status_code == 200 and re.search(r"3 messages \w+", report.text)
        assert {ref for _, refs, _ in site.gateway.changes for ref in refs} == set(ids)
        assert {made for made, _, _ in site.gateway.changes} == {command}
        one = await site.ask("POST", f"/{path}", {"kind": kind, "id": "m1"})
        assert (one.status_code, one.headers["Location"]) == (303, f"./messages/m1?done={kind}")

    with_console(scenario)


def test_messages_are_moved_to_a_time_in_utc_or_by_so_much_from_now() -> None:
    async def scenario(site: ConsoleSite) -> None:
        form = {"kind": "move", "id": ["m1", "m2"], "at": "2026-11-22T10:00", "after": ""}
        assert "2 messages moved" in (await site.ask("POST", "/changes", form)).text
        assert site.gateway.changes == [(MOVE, ("m1", "m2"), [NOW + 86_400_000] * 2)]
        await site.ask("POST", "/changes", {"kind": "move", "id": "m1", "after": "90s"})
        assert site.gateway.changes[1] == (MOVE, ("m1",), NOW + 90_000)
        for wrong in ({}, {"at": "soon"}, {"at": "2026-11-22T10:00", "after": "1h"}, {"after": "-1h"}):
            for ids in ("m1", ["m1", "m2"]):
                response = await site.ask("POST", "/changes", {"kind": "move", "id": ids, **wrong})
                assert response.status_code == 400, wrong
        assert len(site.gateway.changes) == 2

    with_console(scenario)


def test_all_that_match_are_counted_and_cancelled_by_the_filter_of_who_may_run_no_jobs() -> None:
    async def scenario(site: ConsoleSite) -> None:
        await site.become(("read", "cancel"))
        site.gateway.pages = [MessagePage([STATE] * 2, "c"), MessagePage([STATE], None)]
        asked = await site.ask("GET", "/changes:matching?kind=cancel&topic=orders&limit=25")
        assert "Cancel 3 messages?" in asked.text and 'action="./changes"' in asked.text
        assert site.gateway.changes == []
        assert all(query.topic == "orders" and query.limit == 1000 for query in site.gateway.queries)
        site.gateway.queries.clear()
        report = await site.ask("POST", "/changes", {"kind": "cancel", "topic": "orders"})
        assert "3 messages cancelled" in report.text
        assert (await site.ask("GET", "/changes:matching?kind=cancel")).status_code == 400
        assert (await site.ask("GET", "/changes:matching?kind=move&topic=orders")).status_code == 400
        assert (await site.ask("POST", "/changes", {"kind": "move", "topic": "orders"})).status_code == 400

    with_console(scenario)


def test_all_that_match_are_changed_by_a_job_which_is_watched_and_cancelled() -> None:
    async def scenario(site: ConsoleSite) -> None:
        for kind in ("cancel", "move", "deliver-now"):
            asked = await site.ask("GET", f"/changes:matching?kind={kind}&topic=orders")
            assert "1 message?" in asked.text and 'action="./jobs"' in asked.text
        asked = await site.ask("GET", "/redrives:matching?kind=purge&topic=orders")
        assert "Purge 1 message?" in asked.text and 'name="dead_to" value="2026-11-21T10:00:00.000Z"' in asked.text
        form = {"kind": "purge", "topic": "orders", "dead_to": "2026-11-21T10:00:00.000Z", "rate": "50"}
        begun = await site.ask("POST", "/jobs", form)
        assert begun.status_code == 303
        path = begun.headers["Location"].removeprefix(".")
        text = await site.page(path)
        assert "purge" in text and "running" in text and "50/s" in text
        for step, state in (("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")):
            assert (await site.ask("POST", path, {"step": step})).status_code == 303
            assert state in await site.page("/jobs")
        for wrong in (
            {"kind": "purge"},
            {"kind": "odd", "topic": "orders"},
            form | {"rate": "fast"},
            form | {"rate": "nan"},
        ):
            assert (await site.ask("POST", "/jobs", wrong)).status_code == 400
        assert (await site.ask("POST", path, {"step": "explode"})).status_code == 400
        assert (await site.ask("GET", "/jobs/nobody")).status_code == 404

    with_console(scenario)


def test_a_change_that_comes_too_late_is_told() -> None:
    async def scenario(site: ConsoleSite) -> None:
        site.gateway.outcome = ChangeOutcome("m1", Answer.DELIVERED, NOW)
        response = await site.ask("POST", "/changes", {"kind": "cancel", "id": "m1"})
        assert response.status_code == 409 and "has been delivered" in response.text
        report = await site.ask("POST", "/changes", {"kind": "deliver-now", "id": ["m1", "m2"]})
        assert "0 messages delivered now" in report.text and "<b>2</b> had been delivered" in report.text
        site.gateway.outcome = ChangeOutcome("m1", None)
        pending = await site.ask("POST", "/changes", {"kind": "cancel", "id": "m1"})
        assert pending.headers["Location"].endswith("?done=pending")

    with_console(scenario)


@pytest.mark.parametrize("form", [{}, {"kind": "cancel"}, {"kind": "explode", "id": "m1"}, {"id": ["x"] * 1001}])
def test_a_form_that_says_nothing_sensible_changes_nothing(form: dict[str, object]) -> None:
    async def scenario(site: ConsoleSite) -> None:
        for path in ("/changes:confirm", "/changes"):
            assert (await site.ask("POST", path, form)).status_code in (400, 413)
        assert site.gateway.changes == []

    with_console(scenario)


def test_a_message_is_scheduled_once_however_often_the_form_is_sent() -> None:
    async def scenario(site: ConsoleSite) -> None:
        page = await site.page("/schedule?topic=orders")
        once = re.search(r'name="once" value="(\w{32})"', page)[1]  # type: ignore[index]
        form = {
            "topic": "orders", "payload": " p\r\n", "after": "90s", "once": once, "key": "k", "labels": "a, b",
            "headers": "trace: 4711\n", "expires": "2026-11-22T10:00", "at": "", "name": "",
        }  # fmt: skip
        first = await site.ask("POST", "/schedule", form)
        assert (first.status_code, first.headers["Location"]) == (303, "./messages/m1?done=schedule")
        second = await site.ask("POST", "/schedule", form)
        assert second.headers["Location"] == "./messages/m1?done=duplicate"
        draft = site.gateway.sent[0]
        assert (draft.topic, draft.due, draft.key, draft.payload) == ("orders", NOW + 90_000, b"k", b" p\n")
        assert draft.labels == ("a", "b")
        wrong = await site.ask("POST", "/schedule", form | {"after": "soon", "once": "x" * 32})
        assert wrong.status_code == 400 and 'value="soon"' in wrong.text and 'aria-invalid="true"' in wrong.text
        wrong = await site.ask("POST", "/schedule", form | {"headers": "no colon"})
        assert wrong.status_code == 400

    with_console(scenario)


def test_a_drain_is_asked_first_and_a_resume_is_not() -> None:
    async def scenario(site: ConsoleSite) -> None:
        asked = await site.ask("POST", "/cluster/nodes/a:drain", {})
        assert "Drain node a?" in asked.text and "1 shard" in asked.text and site.gateway.drained == []
        done = await site.ask("POST", "/cluster/nodes/a:drain", {"sure": "1"})
        assert (done.status_code, done.headers["Location"]) == (303, "../../cluster?done=drain")
        await site.ask("POST", "/cluster/nodes/a:resume", {})
        assert site.gateway.drained == [("drain", "a"), ("resume", "a")]

    with_console(scenario)


def test_what_is_wrong_comes_first_on_the_overview_the_worst_at_the_top() -> None:
    async def scenario(site: ConsoleSite) -> None:
        assert "Everything is in order" in await site.page("/")
        gateway = site.gateway
        gateway.refusing = {"bad": "no broker leads it"}
        gateway.masters = ["a", None]
        gateway.nodes = [
            node("a", lag={"0": 5_000}),
            node("b", watermark=2),
            node("c", state="out", reason="its clock"),
        ]
        gateway.nodes_figures = [gateway.nodes_figures[0]._replace(overdue_ms=61_000)]
        gateway.not_ready = "the disk fails"
        await site.app.history.sample()
        text = await site.page("/")
        positions = [
            text.index(words)
            for words in ("the disk fails", "Shard 1 has no master", "1m 1s late", "5000 ledger entries behind",
                          "filling up (mark 2", "Node c is out: its clock", "Topic bad refuses")
        ]  # fmt: skip
        assert positions == sorted(positions)

    with_console(scenario)


def test_htmx_gets_the_content_without_the_frame() -> None:
    async def scenario(site: ConsoleSite) -> None:
        form = {"kind": "cancel", "id": "m1"}
        part = await site.ask("POST", "/changes:confirm", form, **{"HX-Request": "true"})
        assert "Cancel 1 message?" in part.text and "<html" not in part.text and "<nav" not in part.text
        assert "<html" in (await site.ask("POST", "/changes:confirm", form)).text

    with_console(scenario)


@pytest.mark.parametrize(
    ("error", "status"),
    [(Unavailable("the log is away"), 503), (OutcomeUnknown("nobody knows"), 503), (RuntimeError("a bug"), 500)],
)
def test_a_failure_is_a_page_too(error: Exception, status: int, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(site: ConsoleSite) -> None:
        site.gateway.unreadable = error
        response = await site.ask("GET", "/messages/m1")
        assert response.status_code == status and response.headers["Content-Type"].startswith("text/html")
        assert "Content-Security-Policy" in response.headers and "a bug" not in response.text
        assert (response.headers.get("Retry-After") is not None) == (status == 503)

    with_console(scenario)


def test_an_unknown_path_or_method_is_refused() -> None:
    async def scenario(site: ConsoleSite) -> None:
        assert (await site.ask("POST", "/messages", {})).status_code == 405
        assert (await site.ask("GET", "/messages/a/b")).status_code == 404
        site.gateway.found = None
        unknown = await site.ask("GET", f"/messages/{quote('../x', safe='')}")
        assert unknown.status_code == 404 and "no message has" in unknown.text, "it is a name, and no way up"

    with_console(scenario)


def test_a_name_with_a_slash_and_repeated_headers_are_kept() -> None:
    async def scenario(site: ConsoleSite) -> None:
        form = {"topic": "orders", "name": "order/17 ä", "headers": "a: 1\r\na: 2", "payload": "x", "after": "1h"}
        assert (await site.ask("POST", "/schedule", form)).status_code == 303
        (sent,) = site.gateway.sent
        assert sent.name == of_client("order/17 ä")
        pairs = (("a", b"1"), ("a", b"2"))
        assert unpack_headers(sent.headers, 0, sent.header_count, len(sent.headers)) == pairs
        site.gateway.found = replace(STATE, headers=pairs)
        assert (await site.ask("GET", "/messages?ref=order%2F17")).headers["Location"] == "./messages/m1"
        page = await site.page("/messages/order%2F17%20%C3%A4")
        assert page.count('<th scope="row" class="code">a</th>') == 2 and 'href="../schedule"' in page

    with_console(scenario)


@pytest.mark.parametrize("docs_url", ["", "https://git.example.com/docs"])
def test_each_page_says_what_it_is_about_and_where_more_is(docs_url: str) -> None:
    async def scenario(site: ConsoleSite) -> None:
        for path in (*PAGES, "/schedule", "/keys", "/trail"):
            text = await site.page(path)
            page = re.search(r'<p class="help">\S.+ More: .*docs/([a-z/-]+\.md)<', text)[1]  # type: ignore[index]
            assert (f'href="{docs_url}/{page}"' in text) is bool(docs_url)
            assert (ROOT / "docs" / page).exists(), path

    with_console(scenario, ConsoleSettings(docs_url=docs_url))


@pytest.mark.parametrize(
    "path", ["/messages", "/dlq", "/dlq/topics/orders", "/topics", "/topics/orders", "/cluster", "/jobs", "/trail"]
)
def test_a_list_looks_again_by_its_id(path: str) -> None:
    async def scenario(site: ConsoleSite) -> None:
        await site.become(ADMIN)
        await site.ask("POST", "/keys", {"name": "shop", "role": "viewer"})
        text = await site.page(path)
        for tag in re.findall(r"<\w+[^>]*data-poll[^>]*>", text):
            id_ = re.search(r' id="(\w+)"', tag)[1]  # type: ignore[index]
            part = await site.ask("GET", path, **{"HX-Request": "true"})
            assert f'id="{id_}"' in part.text and "<nav" not in part.text
        assert "data-poll" in text

    with_console(scenario)


def test_a_new_key_is_copied_by_a_button_and_fits_its_field() -> None:
    async def scenario(site: ConsoleSite) -> None:
        text = (await site.ask("POST", "/keys", {"name": "ops", "role": "admin", "sure": "1"})).text
        key = re.search(r'<textarea class="code"[^>]*>([^<]+)</textarea>', text)[1]  # type: ignore[index]
        assert f'data-copy="{key}"' in text and "<input class" not in text
        site.headers = {"X-API-Key": key}
        assert '<span class="caller" title="ops">ops</span>' in await site.page("/")

    with_console(scenario)
