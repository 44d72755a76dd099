"""Questions that htmx puts into a page: their forms lead to where they should from each page that shows them."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from urllib.parse import urljoin

import pytest

from duemq.model.messages.names import consumer_cursor
from tests.support.http.console_site import ADMIN, ConsoleSite, with_console
from tests.support.http.http_site import STATE


@pytest.mark.parametrize(
    ("page", "asks"),
    [
        ("/messages?topic=orders", "./changes:confirm"),
        ("/messages?topic=orders", "./changes:matching?kind=cancel&topic=orders"),
        ("/messages/m1", "../changes:confirm"),
        ("/cluster", "./cluster/nodes/a:drain"),
        ("/keys", "./keys/ID:rotate"),
        ("/dlq", "./redrives:matching?kind=purge"),
        ("/dlq/topics/dlq.shop/0:1", "../../../dlq/topics/dlq.shop:confirm"),
    ],
)
def test_a_form_in_a_dialog_is_sent_to_a_route_whatever_page_shows_it(page: str, asks: str) -> None:
    async def scenario(site: ConsoleSite) -> None:
        await site.bury("dlq.shop", 2)
        await site.become(ADMIN)
        asking = asks.replace("ID", site.admin.keys.described()[0]["id"])
        text, at = await site.page(page), f"http://x/console{page}"
        assert f'hx-{"get" if "matching" in asks else "post"}="' in text
        said = json.loads(html.unescape(re.search(r"hx-headers='([^']+)'", text)[1]))  # type: ignore[index]
        path = urljoin(at, asking).removeprefix("http://x/console")
        headers = {name.lower(): value for name, value in said.items()} | {"hx-request": "true"}
        if "matching" in asks:
            part = await site.ask("GET", path, **headers)
        else:
            part = await site.ask(
                "POST", path, {"kind": "redrive" if "dlq" in asks else "cancel", "id": "0:1"}, **headers
            )
        assert part.status_code == 200, part.text
        action = re.search(r'<form[^>]* action="([^"]+)"', part.text)[1]  # type: ignore[index]
        sent = await site.ask("POST", urljoin(at, action).removeprefix("http://x/console"), {})
        assert urljoin(at, action).startswith("http://x/console/") and sent.status_code not in (404, 405), action

    with_console(scenario)


@pytest.mark.parametrize(("scopes", "visible"), [(ADMIN, True), (("read", "cancel"), False)])
def test_a_question_names_what_it_is_about(scopes: tuple[str, ...], visible: bool) -> None:
    async def scenario(site: ConsoleSite) -> None:
        await site.become(scopes)
        site.gateway.found = replace(STATE, key=b"customer-<4711>", payload=b"over <b>quota</b>")
        asked = await site.ask("POST", "/changes:confirm", {"kind": "cancel", "id": ["m1", *map(str, range(9))]})
        assert '<b>orders</b> key <b class="code">customer-&lt;4711&gt;</b>' in asked.text
        assert asked.text.count("due <time datetime=") == 5 and "and 5 more" in asked.text
        assert ("over &lt;b&gt;quota" in asked.text) is visible and ("masked" in asked.text) is not visible
        site.gateway.found = None
        assert "m1" in (await site.ask("POST", "/changes:confirm", {"kind": "cancel", "id": "m1"})).text

    with_console(scenario)


def test_a_redrive_says_who_else_reads_the_topic_and_goes_to_the_destination_alone() -> None:
    async def scenario(site: ConsoleSite) -> None:
        await site.bury("dlq.destination.mail", 1)
        await site.bury("dlq.shop", 1)
        for name, topics in (("mail", ["orders"]), ("billing", ["orders", "bills"]), ("other", ["bills"])):
            one = {"name": name, "url": "https://a.example.com", "topics": topics}
            await site.admin.destinations.declare(one, None, "test")
        await site.gateway.bus.set_consumer_cursor("orders", consumer_cursor("reports"), b"1")
        await site.gateway.bus.begin_group("orders", "destination.mail", ())
        form = {"kind": "redrive", "id": "0:0"}
        text = (await site.ask("POST", "/dlq/topics/dlq.destination.mail:confirm", form)).text
        assert 'name="to" value="destination.mail"' in text and "to <b>destination mail</b> alone" in text
        assert "<b>destination billing</b>, <b>destination mail</b>, <b>consumer reports</b>, and any others" in text
        assert "other</b>" not in text
        text = (await site.ask("POST", "/dlq/topics/dlq.shop:confirm", form)).text
        assert 'name="to" value=""' in text and "All readers of <b>orders</b> get it again" in text
        assert "<b>destination mail</b>, <b>consumer reports</b>, <b>group shop</b>, and any others" in text
        assert 'key <b class="code">k0</b>' in text and "died <time" in text

    with_console(scenario)
