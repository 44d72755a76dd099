"""The pages of administrators: keys and trail; and that of delay files."""

from __future__ import annotations

import re
from dataclasses import replace

from duemq.proxy.gateway.base import MessagePage
from tests.support.http.console_site import ADMIN, OPERATOR, ConsoleSite, with_console
from tests.support.http.http_site import STATE

KEY = re.compile(r"duemq_[a-z0-9]{12}_[0-9a-f]{48}_[0-9a-f]{8}")


def test_the_first_key_is_an_admins_and_is_made_after_a_question() -> None:
    async def scenario(site: ConsoleSite) -> None:
        assert '<option value="admin" selected>' in await site.page("/keys")
        refused = await site.ask("POST", "/keys", {"name": "wall", "role": "viewer"})
        assert refused.status_code == 400 and "must be an admin" in refused.text
        form = {"name": "ops", "role": "admin"}
        asked = await site.ask("POST", "/keys", form)
        assert "Make the first key ops?" in asked.text and "requests without a key in the last minute" in asked.text
        assert not KEY.search(asked.text) and site.admin.keys.count == 0
        hidden = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', asked.text))
        assert KEY.search((await site.ask("POST", "/keys", hidden)).text)
        (ops,) = site.admin.keys.described()
        assert (ops["name"], ops["scopes"]) == ("ops", ["admin"])

    with_console(scenario)


def test_a_key_is_made_and_its_text_is_shown_once() -> None:
    async def scenario(site: ConsoleSite) -> None:
        await site.become(ADMIN)
        form = {"name": "shop", "role": "sender", "topics": "orders.*, mail", "rate": "50", "expires_after": "90d"}
        made = await site.ask("POST", "/keys", form)
        (text,) = set(KEY.findall(made.text))
        assert made.headers["Cache-Control"] == "no-store"
        site.headers = {"X-API-Key": text}
        assert (await site.ask("GET", "/keys")).status_code == 403
        await site.become(ADMIN)
        listed = await site.page("/keys")
        assert not KEY.search(listed) and "orders.*, mail" in listed and "send, cancel" in listed
        (shop,) = [key for key in site.admin.keys.described() if key["name"] == "shop"]
        assert (shop["scopes"], shop["topics"], shop["rate"]) == (["send", "cancel"], ["orders.*", "mail"], 50)

    with_console(scenario)


def test_a_key_that_cannot_be_made_is_told_beside_what_was_typed() -> None:
    async def scenario(site: ConsoleSite) -> None:
        await site.become(ADMIN)
        for wrong in (
            {"name": "<i>"},
            {"rate": "many"},
            {"role": "king"},
            {"expires_after": "soon"},
            {"topics": "a b/c"},
        ):
            response = await site.ask("POST", "/keys", {"name": "shop", "role": "viewer"} | wrong)
            assert response.status_code == 400 and 'role="alert"' in response.text, wrong
            assert "<i>" not in response.text
        assert len(site.admin.keys.described()) == 1

    with_console(scenario)


def test_keys_are_rotated_and_revoked_after_a_question() -> None:
    async def scenario(site: ConsoleSite) -> None:
        await site.become(ADMIN)
        made = await site.admin.keys.make({"name": "old", "scopes": ["read"]}, "test")
        path = f"/keys/{made['id']}"
        asked = await site.ask("POST", f"{path}:rotate", {})
        assert "Rotate key old?" in asked.text and not KEY.search(asked.text)
        rotated = KEY.findall((await site.ask("POST", f"{path}:rotate", {"sure": "1", "overlap": "0s"})).text)[0]
        assert rotated != made["key"]
        assert "Revoke key old?" in (await site.ask("POST", f"{path}:revoke", {})).text
        done = await site.ask("POST", f"{path}:revoke", {"sure": "1"})
        assert (done.status_code, done.headers["Location"]) == (303, "../keys?done=revoke")
        assert "revoked" in await site.page("/keys?done=revoke")
        site.headers = {"X-API-Key": rotated}
        assert (await site.ask("GET", "/messages")).status_code == 303
        await site.become(ADMIN)
        assert (await site.ask("POST", "/keys/nobody:revoke", {})).status_code == 404

    with_console(scenario)


def test_the_trail_says_who_did_and_was_denied_what() -> None:
    async def scenario(site: ConsoleSite) -> None:
        await site.become(OPERATOR)
        await site.ask("POST", "/cluster/nodes/a:drain", {"sure": "1"})
        await site.become(ADMIN)
        await site.ask("POST", "/keys", {"name": "shop", "role": "viewer"})
        text = await site.page("/trail")
        assert "POST /console/cluster/nodes/{node}:drain" in text and "POST /console/keys" in text
        await site.become(OPERATOR)
        assert (await site.ask("GET", "/trail")).status_code == 403

    with_console(scenario)


def test_no_value_turns_the_letters_beside_it() -> None:
    async def scenario(site: ConsoleSite) -> None:
        state = replace(STATE, key="invoice\u202egnp.exe".encode(), labels=("a\u2066b",))
        site.gateway.pages, site.gateway.found = [MessagePage([state], None)], state
        for path in ("/messages", "/messages/m1"):
            text = await site.page(path)
            assert "invoice\\u202egnp.exe" in text and "\u202e" not in text and "\u2066" not in text

    with_console(scenario)


def test_delay_files_are_shown_by_window_and_page_by_page() -> None:
    async def scenario(site: ConsoleSite) -> None:
        first = await site.page("/files")
        assert first.count("<tr><td>") == 300 and "7 messages in 2 files" in first
        later = re.search(r'href="\./files\?(from=\d+)"', first)[1]  # type: ignore[index]
        second = await site.page(f"/files?{later}")
        assert second.count("<tr><td>") == 100 and "Later windows" not in second
        assert "No window" in await site.page("/files?from=2099-01-01T00:00")
        assert (await site.ask("GET", "/files?from=soon")).status_code == 400

    with_console(scenario)


def test_the_trail_names_the_messages_and_the_person_of_what_was_done_in_the_console() -> None:
    async def scenario(site: ConsoleSite) -> None:
        await site.become(OPERATOR)
        (operator,) = [key["id"] for key in site.admin.keys.described()]
        await site.ask("POST", "/changes", {"kind": "cancel", "id": "m1"})
        await site.ask("POST", "/changes", {"kind": "cancel", "id": [f"several-{n}" for n in range(30)]})
        await site.ask("POST", "/redrives", {"kind": "redrive", "id": ["m2", "m3"]})
        await site.become(ADMIN)
        text = await site.page("/trail")
        rows = [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in re.findall(r"<tr><td>.*?</tr>", text, re.S)]
        assert (
            "Deliver a dead letter again m2 m3 POST /console/redrives POST /v1/dlq/m2:redrive, POST /v1/dlq/m3"
            in rows[0]
        )
        assert "Cancel many messages, by id or by filter several-0 several-1" in rows[1] and "and 15 more" in rows[1]
        assert "Cancel a message m1 POST /console/changes DELETE /v1/messages/m1 done" in rows[2]
        assert 'href="./messages/m1"' in text and f'href="./keys#{operator}">test</a>' in text
        assert f'<tr id="{operator}">' in await site.page("/keys")

    with_console(scenario)
