"""The page of a message tells what was changed and who did it, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.functional.console.conftest import Site
from tests.support.http.browser import EACH_SIZE, Visitor


@pytest.mark.parametrize("size", EACH_SIZE)
def test_a_message_shows_who_moved_and_who_cancelled_it(browser: Browser, axe: str, console: Site, size: str) -> None:
    id_ = console.send("history", deliver_after="1h")
    for _ in range(18):
        assert console.call("PATCH", f"/v1/messages/{id_}", {"deliver_after": "2h"}).status_code == 200
    key = {"X-API-Key": console.keys["operator"]}
    assert console.server.http.delete(f"/v1/messages/{id_}", headers=key).status_code == 200
    visitor = Visitor(browser, console.server.url, size)
    page = visitor.page
    visitor.log_in(console.keys["viewer"])
    visitor.go(f"messages/{id_}")
    history = page.locator(".history li")
    expect(history.first).to_contain_text("by key:ops")
    expect(history.nth(1)).to_have_text("3 more changes, not kept")
    expect(history.filter(has_text="cancelled by key:operator")).to_have_count(1)
    assert visitor.violations(axe) == [] and not visitor.is_too_wide() and visitor.complaints == []
    visitor.context.close()
