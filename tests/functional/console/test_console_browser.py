"""The console in a real browser: every page, as each role, on a desktop and a phone, in light and dark."""

from __future__ import annotations

import re
import time
from itertools import product

import pytest
from playwright.sync_api import Browser, expect

from duemq.model.messages.message import Draft
from duemq.model.timing import WINDOW_MS
from tests.functional.console.conftest import Site
from tests.support.http.browser import EACH_SIZE, Visitor
from tests.support.shard.import_schedule import write_messages

pytestmark = pytest.mark.xdist_group("browser")  # one browser and one server for all of them

PAGES = (
    "",
    "messages",
    "dlq",
    "dlq/topics",
    "dlq/topics/dlq.billing",
    "dlq/topics/dlq.billing/0:17",
    "topics",
    "topics/delivered",
    "cluster",
    "jobs",
    "files",
    "imports",
    "messages?key=none",
)
OPERATOR_PAGES = ("schedule", "messages?topic=topic-1")
MORE_PAGES = {"viewer": (), "operator": OPERATOR_PAGES, "admin": (*OPERATOR_PAGES, "keys", "trail")}


QUICK_LOOKS = {
    ("viewer", "desktop", "dark"), ("operator", "phone", "light"), ("admin", "desktop", "light"),
    ("admin", "phone", "dark"),
}  # fmt: skip
"""Each role, and each size in both schemes. `make test` leaves out the other looks."""
LOOKS = [
    pytest.param(*look, marks=() if look in QUICK_LOOKS else pytest.mark.slow)
    for look in product(MORE_PAGES, ("desktop", "phone"), ("light", "dark"))
]


@pytest.mark.parametrize(("role", "size", "scheme"), LOOKS)
def test_every_page_is_for_everybody(
    browser: Browser, axe: str, console: Site, role: str, size: str, scheme: str
) -> None:
    visitor = Visitor(browser, console.server.url, size, scheme)
    page = visitor.page
    visitor.go("messages?topic=topic-1")
    expect(page).to_have_title("Log in · duemq")
    assert visitor.violations(axe) == []
    visitor.log_in(console.keys[role])
    (message,) = console.call("GET", "/v1/messages?key=key-1").json()["messages"]
    for path in (*PAGES, f"messages/{message['id']}", *MORE_PAGES[role]):
        visitor.go(path)
        if not path:
            expect(page.locator("#live-text")).to_have_text("live")
        assert visitor.violations(axe) == [], path
        assert not visitor.is_too_wide(), path
        assert visitor.complaints == [], path
        assert "<script>alert" not in page.content().replace("&lt;", "")
        masked = page.get_by_text("masked").count() > 0
        assert masked == (role == "viewer" and path.startswith(("messages/", "topics/", "dlq/topics/"))), path
        assert page.get_by_role("button", name="Cancel").count() == (
            1 if role != "viewer" and path.startswith("messages") and "none" not in path else 0
        ), path
    visitor.context.close()


@pytest.mark.parametrize("size", EACH_SIZE)
def test_an_operator_changes_selected_messages(browser: Browser, axe: str, console: Site, size: str) -> None:
    topic = f"chosen-{size}"
    ids = [console.send(topic, deliver_after=f"{hours}h") for hours in range(1, 8)]
    visitor = Visitor(browser, console.server.url, size)
    page = visitor.page
    visitor.log_in(console.keys["operator"])
    visitor.go(f"messages?topic={topic}")
    toolbar = page.get_by_role("toolbar")
    expect(toolbar.get_by_role("button", name="Cancel")).to_be_disabled()
    boxes = page.locator('#rows input[type="checkbox"]')
    for number in range(3):
        boxes.nth(number).check()
    expect(page.locator("#selected")).to_have_text("3 selected")
    toolbar.get_by_role("button", name="Cancel").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Cancel 3 messages?")
    assert visitor.violations(axe) == []
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert console.status(ids[0]) == "scheduled"

    toolbar.get_by_role("button", name="Cancel").click()
    dialog.get_by_role("button", name="Cancel 3 messages").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("3 messages cancelled")
    assert [console.status(id_) for id_ in ids[:4]] == ["cancelled"] * 3 + ["scheduled"]

    visitor.go(f"messages?topic={topic}")
    boxes.nth(0).check()
    toolbar.get_by_role("button", name="Move").click()
    dialog.get_by_label("or in").fill("9h")
    dialog.get_by_role("button", name="Move 1 message").click()
    expect(page.get_by_role("status").first).to_have_text("It has its new time.")

    visitor.go(f"messages?topic={topic}")
    boxes.nth(0).check()
    boxes.nth(1).check()
    toolbar.get_by_role("button", name="Deliver now").click()
    dialog.get_by_role("button", name="Deliver now 2 messages").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("2 messages delivered now")

    visitor.go(f"messages?topic={topic}")
    assert [console.status(id_) for id_ in ids].count("scheduled") == 2
    assert visitor.complaints == []
    visitor.context.close()


def test_an_operator_schedules_redrives_and_looks_for_a_message(browser: Browser, console: Site) -> None:
    visitor = Visitor(browser, console.server.url, "desktop")
    page = visitor.page
    visitor.log_in(console.keys["operator"])
    visitor.go("schedule")
    page.get_by_label("Topic").fill("made-here")
    page.get_by_label("or in").fill("2h")
    page.get_by_label("Payload", exact=True).fill('{"a": "<b>"}')
    page.get_by_text("Key, name, labels").click()
    page.get_by_label("Name", exact=False).first.fill("made-by-hand")
    page.get_by_role("button", name="Schedule").click()
    expect(page.get_by_role("status").first).to_have_text("It is scheduled.")
    expect(page.locator("pre")).to_have_text('{\n  "a": "<b>"\n}')
    page.get_by_role("button", name="Move").click()
    page.get_by_role("dialog").get_by_label("or in").fill("3h")
    page.get_by_role("dialog").get_by_role("button", name="Move 1 message").click()
    expect(page.get_by_role("status").first).to_have_text("It has its new time.")
    visitor.go("messages")
    page.get_by_label("Id, name, key or label").fill("made-by-hand")
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Message")

    visitor.go("dlq")
    before = page.locator("#rows tr").count()
    page.get_by_label("Select all on this page").check()
    expect(page.locator("#selected")).to_have_text(f"{before} selected")
    page.get_by_label("Select all on this page").uncheck()
    page.locator('#rows input[type="checkbox"]').first.check()
    page.get_by_role("button", name="Redrive").click()
    page.get_by_role("dialog").get_by_role("button", name="Redrive 1 message").click()
    page.wait_for_url("**/messages/*?done=*")
    visitor.go("dlq")
    page.get_by_role("link", name="redrive…").click()
    expect(page.get_by_role("dialog")).to_contain_text("Redrive 3 messages?")
    page.keyboard.press("Escape")
    page.get_by_role("link", name="purge…").click()
    page.get_by_role("dialog").get_by_role("button", name="Purge 3 messages").click()
    expect(page.locator("#jobs .badge")).to_have_text("done")
    visitor.go("dlq")
    expect(page.locator(".empty")).to_have_text("There are no dead letters.")
    assert visitor.complaints == []
    visitor.context.close()


@pytest.mark.parametrize("size", EACH_SIZE)
def test_all_that_match_are_done_by_a_job(browser: Browser, axe: str, console: Site, size: str) -> None:
    topic = f"jobs-{size}"
    ids = [console.send(topic, deliver_after=f"{hours}h") for hours in range(1, 6)]
    visitor = Visitor(browser, console.server.url, size)
    page, dialog = visitor.page, visitor.page.get_by_role("dialog")
    visitor.log_in(console.keys["operator"])
    visitor.go(f"messages?topic={topic}")
    page.get_by_role("link", name="move…").click()
    expect(dialog).to_contain_text("Move 5 messages?")
    dialog.get_by_label("Later by").fill("2d")
    assert visitor.violations(axe) == []
    dialog.get_by_role("button", name="Move 5 messages").click()
    expect(page.locator("#jobs")).to_contain_text("5 of 5")
    expect(page.locator("#jobs .badge")).to_have_text("done")
    assert visitor.violations(axe) == [] and not visitor.is_too_wide()
    visitor.go(f"messages?topic={topic}")
    page.get_by_role("link", name="cancel…").click()
    dialog.get_by_role("button", name="Cancel 5 messages").click()
    expect(page.locator("#jobs .badge")).to_have_text("done")
    assert {console.status(id_) for id_ in ids} == {"cancelled"}
    visitor.go("dlq?label=nobody")
    expect(page.locator(".empty")).to_have_text("No dead letter matches.")
    visitor.go("jobs")
    assert visitor.violations(axe) == [] and visitor.complaints == []
    visitor.context.close()


@pytest.mark.parametrize("size", EACH_SIZE)
def test_dead_letters_of_a_consumer_group_are_redriven_and_purged(
    browser: Browser, axe: str, console: Site, size: str
) -> None:
    group, topic = f"shop-{size}", f"dlq.shop-{size}"
    console.bury(topic, 30)
    visitor = Visitor(browser, console.server.url, size)
    page, dialog = visitor.page, visitor.page.get_by_role("dialog")
    ended = page.locator("#jobs .badge")
    visitor.log_in(console.keys["operator"])
    visitor.go("dlq")
    page.get_by_role("link", name="Of consumers").click()
    page.get_by_role("link", name=group).click()
    visitor.open_filters()
    page.get_by_label("Rows").select_option("25")
    page.get_by_role("button", name="Find").click()
    rows = page.locator("#rows tr")
    expect(rows).to_have_count(25)
    page.locator("#more a").click()
    expect(rows).to_have_count(30)
    for number in (3, 27):
        page.get_by_label(f"Select 0:{number}", exact=True).check()
    page.get_by_role("button", name="Redrive").click()
    expect(dialog).to_contain_text("Redrive 2 messages?")
    dialog.get_by_label("To another topic").fill(f"again-{size}")
    assert visitor.violations(axe) == [] and not visitor.is_too_wide()
    dialog.get_by_role("button", name="Redrive 2 messages").click()
    expect(ended).to_have_text("done")

    visitor.go(f"dlq/topics/{topic}?key=i-4")
    expect(rows).to_have_count(1)
    page.get_by_role("link", name="0:4").click()
    expect(page.locator("pre")).to_contain_text('"invoice": 17')
    expect(page.get_by_role("table", name="How it died")).to_contain_text("no amount in <b>17</b>")
    page.get_by_role("button", name="Redrive").click()
    dialog.get_by_role("button", name="Redrive 1 message").click()
    expect(ended).to_have_text("done")

    visitor.go(f"dlq/topics/{topic}?reason=retries")
    expect(page.get_by_role("link", name="purge…")).to_have_count(0)
    page.get_by_role("link", name="redrive…").click()
    dialog.get_by_label("Rate").fill("1000")
    dialog.get_by_role("button", name="Dry run").click()
    expect(dialog.get_by_role("status")).to_contain_text("it would apply to 30 messages")
    expect(dialog.get_by_label("Rate")).to_have_value("1000")
    assert visitor.violations(axe) == [] and not visitor.is_too_wide()
    dialog.get_by_role("button", name="Redrive 30 messages").click()
    expect(ended).to_have_text("done")
    expect(page.locator("#jobs")).to_contain_text("3 already redriven")
    assert len(console.call("GET", f"/v1/topics/again-{size}/records").json()["records"]) == 2

    visitor.go(f"dlq/topics/{topic}")
    page.get_by_role("link", name="purge…").click()
    dialog.get_by_role("button", name="Purge 30 messages").click()
    expect(ended).to_have_text("done")
    visitor.go(f"dlq/topics/{topic}")
    expect(page.locator(".empty")).to_have_text("There are no dead letters in this topic.")
    assert visitor.violations(axe) == [] and visitor.complaints == []
    visitor.context.close()


@pytest.mark.parametrize("size", EACH_SIZE)
def test_an_operator_imports_a_file_and_sees_what_becomes_of_it(
    browser: Browser, axe: str, console: Site, size: str
) -> None:
    window = (int(time.time() * 1000) // WINDOW_MS + 5) * WINDOW_MS
    command = write_messages(console.shared / f"{size}.parquet", [Draft("imported", size.encode(), window)])
    visitor = Visitor(browser, console.server.url, size)
    page = visitor.page
    visitor.log_in(console.keys["operator"])
    visitor.go("imports")
    page.get_by_label("Path", exact=False).last.fill("/elsewhere/a.parquet")
    page.get_by_text("Known metadata").click()
    page.get_by_label("Size").fill("17")
    page.get_by_role("button", name="Import").click()
    expect(page.get_by_role("alert")).to_contain_text("rows is missing")
    expect(page.get_by_label("Messages")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("Size")).to_have_value("17")
    assert visitor.violations(axe) == [] and not visitor.is_too_wide()
    page.get_by_label("Size").fill("")
    page.get_by_role("button", name="Import").click()
    path = page.get_by_label("Path", exact=False).last
    expect(path).to_have_attribute("aria-invalid", "true")
    path.fill(command.path)
    page.get_by_role("button", name="Import").click()
    expect(page.get_by_role("status")).to_contain_text("The file is submitted")
    expect(page.locator("#import .badge")).to_have_text("imported")
    assert visitor.violations(axe) == [] and not visitor.is_too_wide()
    visitor.go("imports?state=imported")
    page.get_by_role("link", name=command.path).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Import")
    assert visitor.complaints == []
    visitor.context.close()


def test_lists_go_on_page_by_page(browser: Browser, console: Site) -> None:
    visitor = Visitor(browser, console.server.url, "desktop")
    visitor.log_in(console.keys["viewer"])
    visitor.go("messages?limit=50&label=vip")
    rows, more = visitor.page.locator("#rows tr"), visitor.page.locator("#more a")
    expect(rows).to_have_count(50)
    more.click()
    expect(rows).to_have_count(100)
    more.click()
    expect(rows).to_have_count(120)
    expect(more).to_have_count(0)
    visitor.context.close()


def test_times_are_in_utc_local_or_relative_everywhere_and_lists_poll(browser: Browser, console: Site) -> None:
    due = (int(time.time()) // 3600 + 48) * 3_600_000
    console.send("timely", deliver_at=due, key="k-1")
    visitor = Visitor(browser, console.server.url, "desktop")
    page, rows = visitor.page, visitor.page.locator("#rows tr")
    page.clock.install()
    visitor.log_in(console.keys["operator"])
    visitor.go("messages?topic=timely&due_from=2026-01-01T10:00")
    shown, field = page.locator("#rows time"), page.get_by_label("Due from")
    stamp = time.strftime("%Y-%m-%d %H:%M", time.gmtime(due / 1000))
    expect(shown).to_have_text(f"{stamp}:00.000 UTC")
    page.get_by_role("button", name="Times are in UTC").click()
    expect(shown).not_to_contain_text("UTC")
    expect(shown).to_have_attribute("title", re.compile(f"{stamp}:00.000 UTC, in \\d+ (hr|days)"))
    expect(field).to_have_value("2026-01-01T11:00")  # of Berlin
    page.get_by_role("button", name="Find").click()
    assert "due_from=2026-01-01T10%3A00" in page.url
    expect(field).to_have_value("2026-01-01T11:00")
    page.get_by_role("button", name="Times are in").click()
    expect(shown).to_have_text(re.compile(r"in \d+ (hr|days)"))
    visitor.go("messages?topic=timely")
    expect(shown).to_have_text(re.compile(r"in \d+ (hr|days)"))
    rows.first.get_by_role("checkbox").check()
    console.send("timely", deliver_at=due, key="k-2")
    asked = list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.clock.run_for(30_000)  # three turns
    assert asked == []
    rows.first.get_by_role("checkbox").uncheck()
    page.get_by_role("heading", level=1).click()
    page.clock.run_for(10_000)
    expect(rows).to_have_count(2)
    assert visitor.complaints == []
    visitor.context.close()


@pytest.mark.parametrize("size", EACH_SIZE)
def test_a_letter_of_a_destination_goes_back_to_it_alone(browser: Browser, axe: str, console: Site, size: str) -> None:
    name, topic = f"mail-{size}", f"dlq.destination.mail-{size}"
    console.bury(topic, 2)
    for one in (name, f"billing-{size}"):
        body = {"name": one, "url": "https://127.0.0.1:9", "topics": ["invoices"], "paused": True}
        assert console.call("POST", "/v1/destinations", body).status_code == 201
    visitor = Visitor(browser, console.server.url, size)
    page, dialog = visitor.page, visitor.page.get_by_role("dialog")
    visitor.log_in(console.keys["operator"])
    page.get_by_role("link", name=f"2 dead letters of destination {name}").click()
    page.get_by_role("link", name="0:0").click()
    page.get_by_role("button", name="Redrive").click()
    expect(dialog).to_contain_text("invoices key i-0")
    expect(dialog).to_contain_text('{"invoice": 17}')
    expect(dialog).to_contain_text(f"It goes to destination {name} alone")
    expect(dialog).to_contain_text(f"destination billing-{size}, destination mail-")
    expect(dialog.get_by_label("To another topic")).to_have_value(f"destination.{name}")
    assert visitor.violations(axe) == [] and not visitor.is_too_wide()
    dialog.get_by_role("button", name="Redrive 1 message").click()
    expect(page.locator("#jobs .badge")).to_have_text("done")
    visitor.go(f"dlq/topics/{topic}/0:0")
    expect(page.get_by_role("status").first).to_contain_text("It was redriven as message")
    expect(page.get_by_role("button", name="Redrive")).to_have_count(0)
    page.get_by_role("status").first.get_by_role("link").click()
    expect(page.get_by_role("table", name="About this message")).to_contain_text(f"destination.{name}")
    visitor.go(f"dlq/topics/{topic}")
    expect(page.get_by_role("link", name="redriven", exact=True)).to_have_count(1)
    assert visitor.violations(axe) == [] and not visitor.is_too_wide() and visitor.complaints == []
    visitor.context.close()


def test_a_phone_shows_topic_and_key_first_and_filters_when_asked(browser: Browser, axe: str, console: Site) -> None:
    visitor = Visitor(browser, console.server.url, "phone")
    page = visitor.page
    visitor.log_in(console.keys["operator"])
    visitor.go("messages?topic=topic-1")
    key = page.locator('#rows td[data-label="Key"]').first
    box, topic = key.bounding_box(), page.locator('#rows td[data-label="Topic"]').first.bounding_box()
    assert box is not None and topic is not None
    assert box["x"] + box["width"] <= 390 and topic["y"] < 500 and box["y"] < 500, "without scrolling"
    expect(page.get_by_label("Label", exact=True)).to_be_hidden()
    visitor.open_filters()
    expect(page.get_by_label("Label", exact=True)).to_be_visible()
    assert visitor.violations(axe) == [] and not visitor.is_too_wide()
    visitor.context.close()


def test_the_overview_lives_and_colours_are_kept(browser: Browser, console: Site) -> None:
    visitor = Visitor(browser, console.server.url, "desktop")
    page = visitor.page
    visitor.log_in(console.keys["viewer"])
    pending = page.locator('[data-live="pending"]')
    expect(page.locator("#live-text")).to_have_text("live")
    count = pending.inner_text()
    console.send("lives", deliver_after="1d")
    expect(pending).not_to_have_text(count)
    assert page.locator("#rates canvas").count() == 1
    page.get_by_role("button", name="24 h").click()
    page.get_by_role("button", name="Use dark colours").click()
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    visitor.go("messages")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == ground == "rgb(15, 19, 24)"
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#content")).to_be_focused()
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url("**/login")
    visitor.go("messages")
    expect(page).to_have_title("Log in · duemq")
    assert visitor.complaints == []
    visitor.context.close()


def test_forms_work_without_scripts(browser: Browser, console: Site) -> None:
    id_ = console.send("plain", deliver_after="5h")
    visitor = Visitor(browser, console.server.url, "phone", java_script_enabled=False)
    page = visitor.page
    visitor.log_in(console.keys["operator"])
    page.get_by_text("Menu").click()
    page.get_by_role("link", name="Messages").click()
    page.get_by_text("Filters", exact=True).click()
    page.get_by_label("Topic", exact=True).fill("plain")
    page.get_by_role("button", name="Find").click()
    page.locator('#rows input[type="checkbox"]').check()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Cancel 1 message?")
    page.get_by_role("button", name="Cancel 1 message").click()
    expect(page.locator(".notice")).to_contain_text("cancelled")
    assert console.status(id_) == "cancelled"
    visitor.context.close()
