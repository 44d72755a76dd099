"""Questions that htmx puts into a page: their forms lead to where they should from each page that shows them."""

from __future__ import annotations

import html
import json
import re
from urllib.parse import urljoin

import pytest

from tests.support.http.console_site import ADMIN, ConsoleSite, with_console


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
