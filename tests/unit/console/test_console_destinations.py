"""The pages of destinations: what operators see and do, and never a secret."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from duemq.model.destinations.destination import Credentials, Destination
from duemq.proxy.relay_access import RelayAccess, SystemReply
from tests.support.http.console_site import ADMIN, OPERATOR, VIEWER, ConsoleSite, with_console
from tests.support.http.http_site import NOW

SECRET = "s3cret-of-the-shop"
SHOP = {
    "name": "shop", "url": "https://shop.example.com/<hook>", "topics": ["orders"], "timeout": "90s",
    "retry": {"kind": "delays", "delays": ["1s", "2m"]}, "options": {"headers": {"x-a": "<b>"}},
}  # fmt: skip
FIGURES = {
    "lag": 77, "in_flight": 3, "limit": 10, "in_hand": 5, "statuses": {"500": 2}, "trouble": "<nobody> answers",
    "results": {"accepted": 1234, "failed": 2, "rejected": 0, "away": 0, "gone": 0},
    "lateness_ms": {"p50": 5, "p99": 20}, "took_ms": {"p50": 2, "p99": None}, "last_accepted_at": NOW,
    "last_failures": [{"at": NOW, "id": "m1", "attempt": 2, "status": "500", "detail": "<script>", "took_ms": 41}],
}  # fmt: skip


async def declare(site: ConsoleSite, figures: dict[str, Any] | None = None, reply: SystemReply | None = None) -> None:
    await site.admin.destinations.declare(SHOP, {"username": "u", "password": SECRET}, "test")

    async def test(destination: Destination, credentials: Credentials) -> SystemReply:
        assert reply is not None and credentials.password.get_secret_value() == SECRET
        return reply

    relay = RelayAccess(test, lambda name: figures)
    site.app.service = replace(site.app.service, relay=relay)


@pytest.mark.parametrize("figures", [FIGURES, {}, None])
def test_a_list_and_a_page_for_each(figures: dict[str, Any] | None) -> None:
    async def scenario(site: ConsoleSite) -> None:
        await site.become(VIEWER)
        assert "There are no destinations" in await site.page("/destinations")
        await declare(site, figures)
        listed, one = await site.page("/destinations"), await site.page("/destinations/shop")
        for text in (listed, one):
            assert "https://shop.example.com/&lt;hook&gt;" in text and SECRET not in text and "active" in text
            assert ("<button" in text.split("<main")[1]) is False, "who may only look has no buttons"
        assert "password, username" in one and "1m30s" in one and "2 times, after 1s, 2m" in one
        assert "x-a: &lt;b&gt;" in one and 'href="../topics/destination.shop"' in one
        if figures is FIGURES:
            assert "1\N{NARROW NO-BREAK SPACE}234" in listed and "1\N{NARROW NO-BREAK SPACE}234" in one
            assert "script&gt;" not in one and "masked" in one and "500" in listed and "41 ms" in one
            assert "Lateness p99</dt><dd>20 ms" in one and "An answer p99" not in one and ">Gone<" not in one
            assert "&lt;nobody&gt; answers" in listed and "&lt;nobody&gt; answers" in one
        else:
            assert ("No relay of this process" in one) is (figures is None)
        assert (await site.ask("GET", "/destinations/nobody")).status_code == 404
        assert (await site.ask("POST", "/destinations/shop", {"step": "pause"})).status_code == 403
        await site.become(OPERATOR)
        assert ("&lt;script&gt;" in await site.page("/destinations/shop")) is (figures is FIGURES)

    with_console(scenario)


def test_operators_pause_resume_and_test() -> None:
    async def scenario(site: ConsoleSite) -> None:
        await declare(site, None, SystemReply("failed", "500", "<out of order>", 12.0))
        await site.become(OPERATOR)
        for step, state in (("pause", "paused"), ("resume", "active")):
            done = await site.ask("POST", "/destinations/shop", {"step": step})
            assert (done.status_code, done.headers["Location"]) == (303, "../destinations/shop")
            page = await site.page("/destinations/shop")
            assert f'<span class="badge {state}">' in page
            assert ("until it is resumed" in page) is (step == "pause")
        tested = await site.ask("POST", "/destinations/shop", {"step": "test"})
        assert "Test message failed after 12 ms: 500, &lt;out of order&gt;" in tested.text
        await site.admin.destinations.disable("shop", "410 <Gone>", "relay")
        gone = await site.page("/destinations/shop")
        assert "410 &lt;Gone&gt;" in gone and ">Resume<" in gone and ">Pause<" not in gone
        assert (await site.ask("POST", "/destinations/shop", {"step": "remove"})).status_code == 400
        await site.become(ADMIN)
        assert "POST /console/destinations/{name}" in await site.page("/trail")

    with_console(scenario)
