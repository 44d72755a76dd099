"""The pages of dead letters in topics: what they list, which they redrive and purge, and who sees what of them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from duemq.model.messages.names import of_redrive
from duemq.proxy.console.pages import topic_letters
from duemq.proxy.gateway.base import MessagePage, Receipt
from tests.support.http.console_site import OPERATOR, VIEWER, ConsoleSite, with_console
from tests.support.http.http_site import NOW, STATE

TOPIC = "dlq.shop"
LIST = f"/dlq/topics/{TOPIC}"
NOW_TEXT = "2026-11-21T10:00:00.000Z"


def places(text: str) -> list[str]:
    return re.findall(r'name="id" value="(\d+:\d+)"', text)


def jobs(site: ConsoleSite) -> list[Any]:
    return [job.order for job in site.admin.jobs.listed()]


def test_topics_of_groups_are_listed_and_another_one_is_found_by_its_name() -> None:
    async def scenario(site: ConsoleSite) -> None:
        assert "No consumer group has dead letters" in await site.page("/dlq/topics")
        await site.bury(TOPIC, 3)
        text = await site.page("/dlq/topics")
        assert f'href="../dlq/topics/{TOPIC}">shop</a>' in text and '"../dlq/topics/orders"' not in text
        found = await site.ask("GET", "/dlq/topics?topic=payments.DLT")
        assert (found.status_code, found.headers["Location"]) == (303, "../dlq/topics/payments.DLT")
        assert (await site.ask("GET", "/dlq/topics/payments.DLT")).status_code == 404
        for wrong in ("duemq.ledger", "a b"):
            response = await site.ask("GET", f"/dlq/topics/{wrong}")
            assert response.status_code in (400, 403), wrong

    with_console(scenario)


def test_a_topic_is_listed_page_by_page() -> None:
    async def scenario(site: ConsoleSite) -> None:
        await site.bury(TOPIC, 30)
        first = await site.page(f"{LIST}?limit=25")
        assert places(first) == [f"0:{n}" for n in range(25)]
        more = re.search(r'class="button" href="\.\./\.\./dlq/topics/dlq\.shop\?([^"]+)"', first)[1]  # type: ignore[index]
        assert places(await site.page(f"{LIST}?{more.replace('&amp;', '&')}")) == [f"0:{n}" for n in range(25, 30)]

    with_console(scenario)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("key=k3", [3]),
        ("reason=retries&topic=orders", range(10)),
        ("reason=retried", []),
        ("topic=order", []),
        (
            "dead_from=2026-11-21T09:00:05Z",
            range(5, 10),
        ),  # the first died at 09:00:00, the next ones a second later each
        ("dead_to=2026-11-21T09:00:05Z", range(5)),
        ("dead_from=2026-11-21T09:00:02Z&dead_to=2026-11-21T09:00:04Z", [2, 3]),
    ],
)
def test_what_a_page_lists_by_a_filter_is_what_a_redrive_takes(query: str, found: Any) -> None:
    async def scenario(site: ConsoleSite) -> None:
        await site.bury(TOPIC, 10)
        text = await site.page(f"{LIST}?{query}")
        assert places(text) == [f"0:{n}" for n in found]
        if not found:
            assert "No dead letter matches" in text
        asked = await site.page(f"{LIST}:matching?kind=redrive&{query}")
        assert f"Redrive {len(found)} message{'s' if len(found) != 1 else ''}?" in asked
        form = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', asked))
        assert form["source"] == TOPIC and form["dead_to"] <= NOW_TEXT
        dry = await site.ask("POST", "/jobs", form | {"dry_run": "1", "rate": "5", "to": "again"})
        assert dry.status_code == 200 and "Nothing was done" in dry.text and jobs(site) == []
        assert f"it would apply to {len(found)} message" in dry.text
        assert 'value="5"' in dry.text and 'value="again"' in dry.text
        await site.ask("POST", "/jobs", form | {"rate": "5", "to": "again"})
        (order,) = jobs(site)
        assert (order.kind, order.source, order.topic, order.rate) == ("redrive", TOPIC, "again", 5)

    with_console(scenario)


def test_a_filter_goes_on_over_pages_that_have_nothing_or_says_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(site: ConsoleSite) -> None:
        await site.bury(TOPIC, 100)
        assert places(await site.page(f"{LIST}?key=k99&limit=25")) == ["0:99"]
        monkeypatch.setattr(topic_letters, "PATIENCE_S", 0)
        text = await site.page(f"{LIST}?key=k99&limit=25")
        assert "Go on" in text and "cursor=0%3A25" in text and places(text) == []
        monkeypatch.setattr(topic_letters, "COUNT_S", 0)
        await site.bury("dlq.more", 1_001)
        assert "Redrive at least 1\N{NARROW NO-BREAK SPACE}000 messages?" in await site.page(
            "/dlq/topics/dlq.more:matching?kind=redrive"
        )

    with_console(scenario)


def test_selected_letters_are_redriven_by_a_job() -> None:
    async def scenario(site: ConsoleSite) -> None:
        await site.bury(TOPIC, 3)
        asked = await site.ask("POST", f"{LIST}:confirm", {"kind": "redrive", "id": ["0:0", "0:2"]})
        assert "Redrive 2 messages?" in asked.text and jobs(site) == []
        form = {"kind": "redrive", "source": TOPIC, "id": ["0:0", "0:2"]}
        begun = await site.ask("POST", "/jobs", form)
        assert begun.status_code == 303
        (order,) = jobs(site)
        assert (order.kind, order.source, order.filter) == ("redrive", TOPIC, {"ids": 2})
        for wrong in ({"kind": "redrive"}, {"kind": "purge", "id": "0:0"}, {"kind": "cancel", "id": "0:0"}):
            assert (await site.ask("POST", f"{LIST}:confirm", wrong)).status_code == 400, wrong

    with_console(scenario)


def test_a_topic_is_purged_up_to_a_time_and_by_nothing_else() -> None:
    async def scenario(site: ConsoleSite) -> None:
        await site.bury(TOPIC, 10)
        until = "dead_to=2026-11-21T09:00:05Z"
        assert "kind=purge" in await site.page(f"{LIST}?{until}")
        assert "kind=purge" not in await site.page(f"{LIST}?{until}&key=k1")
        asked = await site.page(f"{LIST}:matching?kind=purge&{until}")
        assert "Purge 5 messages?" in asked and "cannot be undone" in asked
        assert "Purge 10 messages?" in await site.page(f"{LIST}:matching?kind=purge")
        assert (await site.ask("GET", f"{LIST}:matching?kind=purge&key=k1")).status_code == 400
        form = {"kind": "purge", "source": TOPIC, "dead_to": "2026-11-21T09:00:05Z"}
        assert (await site.ask("POST", "/jobs", form)).status_code == 303
        assert [(order.kind, order.source) for order in jobs(site)] == [("purge", TOPIC)]

    with_console(scenario)


@pytest.mark.parametrize(("scopes", "visible"), [(VIEWER, False), (OPERATOR, True)])
def test_payload_headers_and_error_are_for_those_who_may_and_so_are_buttons(
    scopes: tuple[str, ...], visible: bool
) -> None:
    async def scenario(site: ConsoleSite) -> None:
        await site.bury(TOPIC, 1)
        await site.become(scopes)
        letter, listed = await site.page(f"{LIST}/0:0"), await site.page(LIST)
        assert ("4711" in letter) == ("&#34;amount&#34;" in letter) == visible
        for text in (letter, listed):
            assert ("ValueError: &lt;b&gt;" in text) == visible and ("masked" in text) != visible
            assert ("Redrive" in text.replace("Redrives", "").replace("Redriven", "")) == visible
        assert ("retries" in letter and "redrive…" in listed.lower()) or not visible
        assert ("kind=purge" in listed) == visible

    with_console(scenario)


def test_a_letter_that_does_not_say_where_it_came_from_is_shown() -> None:
    async def scenario(site: ConsoleSite) -> None:
        await site.bury(TOPIC, 1, ("trace", b"<i>"), ("trace", b"again"), ("trace", b"\xff\x00"))
        text = await site.page(f"{LIST}/0:0")
        assert "again" in text and "/wA= <small>base64</small>" in text, "each of them"
        assert "a topic that you name" in text and "&lt;i&gt;" in text and "<i>" not in text
        assert "not said" in await site.page(LIST)
        assert (await site.ask("GET", f"{LIST}/0:1")).status_code == 404

    with_console(scenario)


def test_what_is_typed_wrongly_stays_on_the_page() -> None:
    async def scenario(site: ConsoleSite) -> None:
        await site.bury(TOPIC, 1)
        response = await site.ask("GET", f"{LIST}?dead_from=soon")
        assert response.status_code == 400 and 'value="soon"' in response.text and "RFC 3339" in response.text
        for wrong in ("limit=many", "cursor=x", "what=1"):
            assert (await site.ask("GET", f"{LIST}?{wrong}")).status_code == 400, wrong

    with_console(scenario)


def test_a_key_for_some_topics_sees_the_dead_letters_of_these() -> None:
    async def scenario(site: ConsoleSite) -> None:
        await site.bury(TOPIC, 1)
        await site.bury("dlq.bank", 1)
        made = await site.admin.keys.make({"name": "shop", "role": "operator", "topics": [TOPIC]}, "test")
        site.headers = {"X-API-Key": made["key"]}
        text = await site.page("/dlq/topics")
        assert TOPIC in text and "dlq.bank" not in text
        assert (await site.ask("GET", LIST)).status_code == 200
        for path in ("", "/0:0", ":matching?kind=redrive"):
            assert (await site.ask("GET", f"/dlq/topics/dlq.bank{path}")).status_code == 403, path
        form = {"kind": "purge", "source": "dlq.bank", "dead_to": NOW_TEXT}
        assert (await site.ask("POST", "/jobs", form)).status_code == 403
        assert jobs(site) == [] and site.gateway.written_at < NOW

    with_console(scenario)


def test_a_letter_shows_that_it_was_redriven_and_is_not_redriven_again() -> None:
    async def scenario(site: ConsoleSite) -> None:
        await site.bury(TOPIC, 2)
        name = of_redrive(f"{TOPIC}/0/0/{NOW - 3_600_000}")
        site.gateway.names[name] = (b"", Receipt("m9", "delivered", "orders", NOW))
        letter, other = await site.page(f"{LIST}/0:0"), await site.page(f"{LIST}/0:1")
        assert "It was redriven as message" in letter and 'messages/m9"' in letter and "Redrive…" not in letter
        assert "It was redriven" not in other and "Redrive…" in other
        listed = await site.page(LIST)
        assert listed.count('messages/m9">redriven</a>') == 1 and listed.count("<td>no</td>") == 1

    with_console(scenario)


def test_own_letters_are_found_by_reason_and_time_of_death() -> None:
    dead = [replace(STATE, id=f"m{n}", status="dead", reason=("expired", "too_large")[n % 2], dead_at=NOW + n * 1_000)
            for n in range(6)]  # fmt: skip

    async def scenario(site: ConsoleSite) -> None:
        site.gateway.pages = [MessagePage(dead, None)]
        for query, found in (
            ("", "012345"), ("reason=expired", "024"), ("dead_from=2026-11-21T10:00:02Z", "2345"),
            ("dead_to=2026-11-21T10:00:03&reason=too_large", "1"),
        ):  # fmt: skip
            site.gateway.queries.clear()
            text = await site.page(f"/dlq?topic=orders&{query}")
            assert re.findall(r'name="id" value="m(\d)"', text) == list(found), query
            assert site.gateway.queries[0].topic == "orders" and site.gateway.queries[0].status == "dead"
        site.gateway.queries.clear()
        site.gateway.now += 60_000
        asked = await site.page("/redrives:matching?kind=redrive&reason=expired")
        assert "Redrive 3 messages?" in asked and 'name="reason" value="expired"' in asked
        begun = await site.ask("POST", "/jobs", {"kind": "redrive", "reason": "expired", "dead_to": NOW_TEXT})
        assert begun.status_code == 303 and jobs(site)[0].filter["reason"] == "expired"
        wrong = await site.ask("GET", "/dlq?dead_from=soon")
        assert wrong.status_code == 400 and 'value="soon"' in wrong.text

    with_console(scenario)
