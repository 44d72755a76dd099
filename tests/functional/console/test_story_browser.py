"""A support person in a browser: from a customer to the fate of his mail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.support.http.browser import EACH_SIZE, Visitor
from tests.support.http.mail_shop import ANSWER, CUSTOMER, MailShop, mail_shop

pytestmark = pytest.mark.xdist_group("browser")  # as the other tests with one

_COUNT = "addEventListener('click', () => sessionStorage.clicks = 1 + Number(sessionStorage.clicks || 0), true)"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MailShop]:
    with mail_shop(tmp_path_factory.mktemp("support"), "--set", "index.topics=*") as one:
        one.declare("mail", "mails")
        one.declare("archive", "mails", retry={"kind": "delays", "delays": ["2h"]})
        for number in range(4690, 4730):
            one.send("mails", f"customer-{number}", labels=["mail"])
        one.send("mails", deliver_after="2h", name="reminder-4711")
        yield one


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", EACH_SIZE)
def test_from_a_customer_to_the_truth_about_his_mail_in_four_clicks(
    browser: Browser, axe: str, shop: MailShop, size: str, scheme: str
) -> None:
    found = shop.call("GET", f"/v1/messages?search={CUSTOMER}&status=delivered&topic=mails")["messages"]
    shop.reader(found[0]["id"], "destination.mail", "dead")
    visitor = Visitor(browser, shop.server.url, size, scheme)
    page = visitor.page
    page.add_init_script(_COUNT)
    visitor.go("")
    if size == "phone":
        page.get_by_text("Menu").click()
    page.get_by_role("navigation").get_by_role("link", name="Messages").click()
    page.get_by_label("Id, name, key or label").fill(CUSTOMER)
    page.get_by_role("button", name="Find").click()
    rows = page.locator("#rows tr")
    expect(rows).to_have_count(2)  # the mail and the reminder: no rows of retries and dead letters
    assert visitor.violations(axe) == [] and not visitor.is_too_wide()
    rows.filter(has_text="delivered").get_by_role("link", name=CUSTOMER).click()
    expect(page.locator(".notice.bad")).to_contain_text("Destination mail refused it 3 times. It is a dead letter")
    assert int(page.evaluate("sessionStorage.clicks")) <= 4

    story = page.locator("#readers")
    expect(page.get_by_role("heading", level=1)).to_contain_text("delivered to topic mails")
    expect(story.get_by_text("refused: 500 after")).to_have_count(4)  # three of mail, one of archive
    expect(story).to_contain_text(ANSWER)
    expect(story).to_contain_text("given up (retries)")
    expect(page.locator("pre")).to_contain_text("anna@example.com")  # of the record in its topic
    expect(story.get_by_role("link", name="retry 1")).to_be_visible()
    assert visitor.violations(axe) == [] and not visitor.is_too_wide() and visitor.complaints == []
    story.get_by_role("link", name="dead letter 0:").click()
    expect(page.get_by_role("table", name="How it died")).to_contain_text(ANSWER)
    visitor.go(f"messages?search={CUSTOMER}&returns=1")
    expect(page.get_by_text("dlq.destination.mail")).to_have_count(1)
    visitor.go("messages?search=reminder-4711")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Message")
    visitor.context.close()
