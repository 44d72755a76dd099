"""The pages of topics: which are listed, and which records of one are shown."""

from __future__ import annotations

import re

import pytest

from duemq.model.messages.record import pack_record
from tests.support.http.console_site import VIEWER, ConsoleSite, with_console
from tests.support.http.http_site import NOW


async def write(site: ConsoleSite, count: int) -> None:
    """Records of the topic `t`, each a second after the other, but for the last ones, which come together."""
    await site.gateway.bus.create_topic("t", 1)
    for number in range(count):
        headers = (("duemq-id", b"m%d" % number), ("trace", b"<4711>"))
        await site.gateway.bus.append({("t", 0): [pack_record(b"k%d" % (number % 7), headers, b"p")]})
        site.gateway.written_at += 1_000 if number < 50 else 0


def offsets(text: str) -> list[int]:
    return [int(one) for one in re.findall(r'<td class="figure">0</td><td class="figure">(\d+)</td>', text)]


def test_topics_of_retries_and_dead_letters_are_shown_when_asked_for() -> None:
    async def scenario(site: ConsoleSite) -> None:
        for topic in ("retry.shop", "dlq.shop", "duemq.dlq"):
            await site.gateway.bus.create_topic(topic, 1)
        text = await site.page("/topics")
        assert "retry.shop" not in text and "Show 3 more" in text
        assert 'href="./messages?topic=orders">5</a>' in text, "pending messages, linked"
        text = await site.page("/topics?all=1")
        assert "retry.shop" in text and "dlq.shop" in text and "Hide those" in text

    with_console(scenario)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", range(59, 9, -1)),
        ("?offset=5", range(5, 55)),
        ("?from=2026-11-21T09:00:20", range(20, 60)),
        ("?key=k3", range(59, 0, -7)),
        ("?key=k3&offset=30", range(31, 60, 7)),
        ("?offset=4711", ()),
    ],
)
def test_records_are_the_latest_or_begin_where_it_is_said(query: str, found: range) -> None:
    async def scenario(site: ConsoleSite) -> None:
        await write(site, 60)
        expected = [one for one in found if "key" not in query or one % 7 == 3]
        assert offsets(await site.page(f"/topics/t{query}")) == expected

    with_console(scenario)


def test_later_records_are_a_page_further() -> None:
    async def scenario(site: ConsoleSite) -> None:
        await write(site, 60)
        text = await site.page("/topics/t?offset=5")
        later = re.search(r'href="\.\./topics/t\?(after=[^"]+)">Later', text)[1]  # type: ignore[index]
        text = await site.page(f"/topics/t?{later}")
        assert offsets(text) == list(range(55, 60)) and "Later" not in text
        for wrong in ("offset=x", "from=soon", "after=x", "what=1"):
            assert (await site.ask("GET", f"/topics/t?{wrong}")).status_code == 400, wrong

    with_console(scenario)


def test_a_record_has_its_headers_and_its_message() -> None:
    async def scenario(site: ConsoleSite) -> None:
        await write(site, 1)
        text = await site.page("/topics/t")
        assert "trace: &lt;4711&gt;" in text and 'href="../messages/m0"' in text
        await site.become(VIEWER)
        text = await site.page("/topics/t")
        assert "4711" not in text and "trace" in text and "masked" in text and 'href="../messages/m0"' in text
        assert NOW > site.gateway.written_at

    with_console(scenario)


@pytest.mark.parametrize("form", ["", "?as=json", "?as=text"])
def test_a_payload_that_is_nested_as_deep_as_one_likes_is_shown(form: str) -> None:
    payload = b'{"a":' * 100_000 + b"1" + b"}" * 100_000

    async def scenario(site: ConsoleSite) -> None:
        await site.gateway.bus.create_topic("dlq.shop", 1)
        await site.gateway.bus.append({("dlq.shop", 0): [pack_record(b"k", (), payload)]})
        assert "{&#34;a&#34;:{&#34;a&#34;" in (await site.page(f"/dlq/topics/dlq.shop/0:0{form}"))
        for path in ("/topics/dlq.shop", "/dlq/topics/dlq.shop"):
            await site.page(path)
        question = {"kind": "redrive", "id": "0:0"}
        assert (await site.ask("POST", "/dlq/topics/dlq.shop:confirm", question)).status_code == 200

    with_console(scenario)
