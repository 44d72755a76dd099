"""The overview shows each caller all problems of his topics, and says "in order" only if there are none."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from duemq.model.messages.dead_letters import MALFORMED
from duemq.model.messages.names import of_redrive
from duemq.model.messages.plain import dead_letter
from duemq.model.messages.record import pack_record
from duemq.proxy.gateway.base import Receipt
from duemq.proxy.relay_access import RelayAccess
from tests.support.http.console_site import ConsoleSite, with_console
from tests.support.http.http_site import NOW, STATE

DAY_MS = 24 * 3_600_000
ORDERLY = "Everything is in order"
FIGURES = {"results": {}, "last_accepted_at": NOW - 60_000, "last_failures": [], "trouble": ""}
FAILURE = {"at": NOW - 30_000, "id": "m1", "attempt": 2, "status": "500", "detail": "over quota", "took_ms": 41}


def problems_of(text: str) -> dict[str, str]:
    """The problems of a page, each with where it leads."""
    listed = text.partition('<ul class="problems">')[2].partition("</ul>")[0]
    return {words: page for page, words in re.findall(r'<a href="([^"]+)">([^<]+)</a></li>', listed)}


async def declare(site: ConsoleSite, figures: dict[str, Any] | None, **fields: Any) -> None:
    one = {"name": "mail", "url": "https://mail.example.com", "topics": ["mails"]}
    await site.admin.destinations.declare(one | fields, None, "test")
    site.app.service = replace(site.app.service, relay=RelayAccess(figures=lambda name: figures))


async def later(site: ConsoleSite) -> None:
    """The next reading of dead letters may be made."""
    site.gateway.now += 60_000
    await site.app.history.sample()


@pytest.mark.parametrize(
    ("figures", "problem"),
    [
        (FIGURES | {"last_failures": [FAILURE]}, "The last attempt at destination mail failed 30s ago with 500"),
        (
            FIGURES | {"last_failures": [FAILURE], "last_accepted_at": NOW},
            "An earlier attempt at destination mail failed",
        ),
        (FIGURES | {"trouble": "nobody answers"}, "gets nothing: nobody answers"),
        (None, "is served by no relay"),
        (FIGURES | {"last_failures": [FAILURE | {"at": NOW - DAY_MS}]}, None),
        (FIGURES, None),
    ],
)
def test_a_destination_in_trouble_is_a_problem(figures: dict[str, Any] | None, problem: str | None) -> None:
    async def scenario(site: ConsoleSite) -> None:
        await declare(site, figures)
        text = await site.page("/")
        assert (ORDERLY in text) is (problem is None)
        if problem:
            ((words, page),) = problems_of(text).items()
            assert problem in words and page == "destinations/mail"
            assert re.search(r'destinations">Destinations <span class="counter">1', await site.page("/jobs"))

    with_console(scenario)


def test_a_paused_and_a_disabled_destination_are_problems() -> None:
    async def scenario(site: ConsoleSite) -> None:
        await declare(site, FIGURES)
        await site.admin.destinations.pause("mail", "test")
        assert list(problems_of(await site.page("/"))) == ["Destination mail is paused"]
        await site.admin.destinations.resume("mail", "test")
        await site.admin.destinations.disable("mail", "410", "relay")
        assert list(problems_of(await site.page("/"))) == ["Destination mail is disabled: 410"]

    with_console(scenario)


def test_dead_letters_of_the_last_24_hours_are_told_until_they_are_redriven() -> None:
    async def scenario(site: ConsoleSite) -> None:
        gateway = site.gateway
        await site.bury("dlq.shop", 1)
        gateway.now = NOW + DAY_MS
        assert ORDERLY in await site.page("/"), "it died before"
        gateway.written_at = soon = NOW + 3_600_000
        await site.bury("dlq.shop", 2)
        await site.bury("dlq.destination.mail", 1)
        await later(site)
        assert problems_of(await site.page("/")) == {
            "2 dead letters of group shop in the last 24 h: retries": "dlq/topics/dlq.shop",
            "1 dead letter of destination mail in the last 24 h: retries": "dlq/topics/dlq.destination.mail",
        }
        assert re.search(r'dlq">Dead letters <span class="counter">3', await site.page("/messages"))
        for source, offset, at in (("dlq.shop", 1, 0), ("dlq.shop", 2, 1_000), ("dlq.destination.mail", 0, 2_000)):
            name = of_redrive(f"{source}/0/{offset}/{soon + at}")
            gateway.names[name] = (b"", Receipt("m9", "scheduled", "orders", NOW))
        await later(site)
        assert ORDERLY in await site.page("/")

    with_console(scenario)


def test_own_dead_letters_count_while_they_are_dead_and_malformed_records_have_a_line_each() -> None:
    async def scenario(site: ConsoleSite) -> None:
        gateway = site.gateway
        await site.bury("duemq.dlq", 1, ("duemq-id", b"m1"), ("duemq-topic", b"orders"), ("duemq-reason", b"expired"))
        frame = dead_letter(pack_record(None, (("duemq-delay", b"soon"),), b"p"), 0, 7, "duemq-topic is missing")
        await gateway.bus.append({("duemq.dlq", 0): [frame]})
        gateway.found = replace(STATE, status="dead", dead_at=NOW)
        page = f"dlq/topics/duemq.dlq?reason={MALFORMED}"
        malformed = {"1 malformed Kafka record in the last 24 h": page}
        assert problems_of(await site.page("/")) == malformed | {"1 dead letter in the last 24 h: expired": "dlq"}
        letters = await site.page(f"/{page}")
        assert "duemq-topic is missing" in letters and letters.count('name="id"') == 1
        gateway.found = replace(STATE, status="delivered")
        await later(site)
        assert problems_of(await site.page("/")) == malformed

    with_console(scenario)


def test_a_topic_with_many_is_read_in_part_and_says_so() -> None:
    async def scenario(site: ConsoleSite) -> None:
        await site.bury("dlq.shop", 60)
        assert list(problems_of(await site.page("/"))) == [
            "At least 50 dead letters of group shop in the last 24 h: retries"
        ]
        reads = 0
        read = site.gateway.bus.read

        async def counted(*arguments: Any) -> Any:
            nonlocal reads
            reads += 1
            return await read(*arguments)

        site.gateway.bus.read = counted  # type: ignore[assignment, method-assign]
        for _ in range(20):
            await site.page("/")
        assert reads == 0, "they are read once for all who look"

    with_console(scenario)


def test_what_cannot_be_counted_is_not_in_order() -> None:
    async def scenario(site: ConsoleSite) -> None:
        await site.gateway.bus.close()
        assert "Dead letters cannot be counted now" in await site.page("/")

    with_console(scenario)


def test_a_key_for_some_topics_sees_its_problems_and_no_totals() -> None:
    async def scenario(site: ConsoleSite) -> None:
        gateway = site.gateway
        await declare(site, FIGURES | {"trouble": "nobody answers"})
        await site.bury("dlq.bank", 1)
        await site.bury("duemq.dlq", 1, ("duemq-id", b"m1"), ("duemq-topic", b"orders"), ("duemq-reason", b"expired"))
        gateway.found = replace(STATE, status="dead", dead_at=NOW)
        gateway.outcomes = {"accepted": 10, "delivered": 98_765, "cancelled": 1, "dead": 1}
        await site.app.history.sample()
        made = await site.admin.keys.make({"name": "shop", "role": "viewer", "topics": ["orders"]}, "test")
        site.headers = {"X-API-Key": made["key"]}
        text = await site.page("/")
        assert list(problems_of(text)) == ["1 dead letter in the last 24 h: expired"]
        assert "98\N{NARROW NO-BREAK SPACE}765" not in text and 'data-live="pending"' not in text
        assert "your key is for" in text and ">shop</span>" in text
        site.gateway.now += 60_000
        gateway.found = replace(STATE, status="delivered")
        assert "Everything is in order with your topics." in await site.page("/")

    with_console(scenario)


def test_cards_and_counts_lead_to_what_they_count() -> None:
    async def scenario(site: ConsoleSite) -> None:
        text = await site.page("/")
        for page in ("messages?status=delivered", "messages?status=cancelled", "dlq", "files"):
            assert re.search(rf'<th scope="row"><a href="\./{re.escape(page)}">', text), page
        assert re.search(r'<a href="\./messages\?status=scheduled"><span class="name">Pending</span>', text)
        due = re.findall(r'data-due="\d" href="\./messages\?status=scheduled&amp;([^"]*)"', text)
        assert len(due) == 8 and due[-1].startswith("due_from=2036") and "due_to" not in due[-1]
        for query in due:
            await site.page(f"/messages?status=scheduled&{query.replace('&amp;', '&')}")

    with_console(scenario)
