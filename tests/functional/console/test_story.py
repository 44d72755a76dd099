"""The story of a message: what a server with destinations tells of it, by its log, names and positions alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.server import run, wait_for
from tests.support.http.mail_shop import ANSWER, MailShop, mail_shop

pytestmark = pytest.mark.xdist_group("story")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MailShop]:
    with mail_shop(tmp_path_factory.mktemp("story"), "--set", "index.topics=*") as one:
        one.declare("mail", "mails")
        one.declare("late", "mails", retry={"kind": "delays", "delays": ["1h"]})
        one.declare("idle", "mails", paused=True)
        yield one


def test_a_refused_message_is_told_with_each_attempt_up_to_the_redrive_and_its_acceptance(shop: MailShop) -> None:
    id_ = shop.send("mails")
    dead = shop.reader(id_, "destination.mail", "dead")
    story = shop.story(id_)
    assert (story["status"], story["complete"], story["hidden_readers"]) == ("delivered", True, False)
    records = shop.call("GET", "/v1/topics/mails/records")["records"]
    (record,) = [one for one in records if one["headers"]["duemq-id"] == id_]
    assert story["place"] == {"partition": record["partition"], "offset": record["offset"]}
    *failed, death = dead["events"]
    assert [one["event"] for one in failed] == ["failed"] * 3
    assert all(one["error"].startswith("500 after") and one["error"].endswith(ANSWER) for one in failed)
    assert (death["event"], death["reason"], death["topic"]) == ("dead", "retries", "dlq.destination.mail")
    letter = shop.call("GET", f"/v1/dlq/topics/dlq.destination.mail/{death['letter']}")
    assert letter["headers"]["x-duemq-id"] == id_

    late = shop.reader(id_, "destination.late", "retrying")
    assert late["retry"]["number"] == 1 and [one["event"] for one in late["events"]] == ["failed"]
    retry = shop.call("GET", f"/v1/messages/{late['retry']['id']}")
    assert (retry["topic"], retry["deliver_at_ms"]) == ("retry.destination.late", late["retry"]["deliver_at_ms"])
    assert shop.story(late["retry"]["id"])["return_of"] == id_
    idle = shop.reader(id_, "destination.idle", "waiting")
    assert (idle["detail"], idle["events"]) == ("it is paused", [])

    shown = run("get", id_, "--story", url=shop.server.url).stdout.splitlines()
    rows = [line.split("\t") for line in shown if line.startswith("destination.mail\t")]
    assert [row[2] for row in rows] == ["failed"] * 3 + ["dead", "dead"] and rows[0][3].endswith(ANSWER)

    shop.mended.set()
    job = shop.call("POST", "/v1/jobs", {
        "kind": "redrive", "source": "dlq.destination.mail", "ids": [death["letter"]], "topic": "destination.mail",
    })  # fmt: skip
    told = shop.reader(id_, "destination.mail", "accepted")
    redriven = told["events"][-1]
    assert (redriven["event"], redriven["job"], redriven["topic"]) == ("redriven", job["id"], "destination.mail")
    again = shop.story(redriven["id"])
    assert again["redriven_from"] == {"id": id_, "letter": f"dlq.destination.mail/{death['letter'].replace(':', '/')}"}
    assert [one["state"] for one in again["readers"]] == ["accepted"]
    shop.call("DELETE", f"/v1/messages/{late['retry']['id']}")
    assert shop.reader(id_, "destination.late", "cancelled")["retry"]["status"] == "cancelled"
    shop.mended.clear()


def test_accepted_is_only_what_a_position_has_passed_since_the_destination_began(shop: MailShop) -> None:
    before = shop.send("bills", "early")
    wait_for(lambda: shop.story(before)["place"], "the delivery")
    assert shop.story(before)["readers"] == []
    shop.declare("bill", "bills")
    sent = [shop.send("bills", key) for key in ("a", None, "b")]
    assert [shop.reader(id_, "destination.bill", "accepted")["events"] for id_ in sent] == [[]] * 3
    told = shop.reader(before, "destination.bill", "unknown")
    assert "before this destination began" in told["detail"]
    at_once = shop.call("POST", "/v1/messages", {"topic": "bills", "payload": "x"})["id"]
    shop.reader(at_once, "destination.bill", "accepted")
    pending = shop.send("bills", deliver_after="1h")
    assert (shop.story(pending)["place"], shop.story(pending)["readers"]) == (None, [])


def test_a_burst_of_messages_does_not_hide_the_record_of_one(shop: MailShop) -> None:
    messages = [{"topic": "many", "payload": "x" * 200, "deliver_after": "100ms"} for _ in range(6_000)]
    results = shop.call("POST", "/v1/messages:batch", {"messages": messages})["results"]
    wait_for(lambda: shop.story(results[-1]["id"])["place"], "the delivery")
    places = [shop.story(results[at]["id"])["place"]["offset"] for at in (0, 2_999, 5_999)]
    assert len(set(places)) == 3


def test_rows_that_a_reader_sent_back_are_left_out_of_lists_if_asked(shop: MailShop) -> None:
    id_ = shop.send("mails", name="mail-left-out")
    shop.reader(id_, "destination.mail", "dead")
    own = shop.call("GET", "/v1/messages?search=customer-4711&returns=false&limit=1000")["messages"]
    assert {one["topic"] for one in own} <= {"mails", "bills", "destination.mail"} and id_ in {one["id"] for one in own}
    every = shop.call("GET", "/v1/messages?search=customer-4711&limit=1000")["messages"]
    assert {"retry.destination.mail", "dlq.destination.mail"} <= {one["topic"] for one in every}


def test_a_search_finds_by_id_name_key_and_label_in_any_state_newest_first(shop: MailShop) -> None:
    named = shop.send("finds", "other", name="find-me")
    keyed = []
    for hours in range(1, 4):
        keyed.append(shop.send("finds", "find-me", deliver_after=f"{hours}h"))
        shop.call("GET", f"/v1/messages/{keyed[-1]}")  # it is applied: messages of one cycle are equally new
    shop.call("DELETE", f"/v1/messages/{keyed[1]}")
    labelled = shop.send("finds", "another", labels=["find-me"])
    wait_for(lambda: shop.call("GET", f"/v1/messages/{labelled}")["status"] == "delivered", "the delivery")

    def pages(limit: int) -> list[str]:
        ids, cursor = list[str](), ""
        while True:
            page = shop.call("GET", f"/v1/messages?search=find-me&limit={limit}{cursor}")
            assert page["indexed"]
            ids += [one["id"] for one in page["messages"]]
            if page["cursor"] is None:
                return ids
            cursor = f"&cursor={page['cursor']}"

    whole = [named, *reversed(keyed), labelled]
    assert pages(100) == whole and pages(1) == whole
    by_id = shop.call("GET", f"/v1/messages?search={keyed[0]}")["messages"]
    assert [one["id"] for one in by_id] == [keyed[0]]
    page = shop.call("GET", "/v1/messages?search=find-me&status=cancelled")
    assert [one["id"] for one in page["messages"]] == [keyed[1]]


def test_a_key_for_some_topics_is_told_of_no_reader_whose_topics_it_may_not_read(shop: MailShop) -> None:
    id_ = shop.send("mails")
    shop.reader(id_, "destination.mail", "dead")
    shop.key = shop.call("POST", "/v1/keys", {"name": "ops", "scopes": ["admin"]})["key"]
    made = {
        name: shop.call("POST", "/v1/keys", {"name": name, "scopes": ["read"], "topics": topics, "rate": rate})["key"]
        for name, topics, rate in (
            ("sender", ["mails"], 0),
            ("reader", ["mails", "*.destination.mail", "destination.mail"], 0),
            ("poor", ["mails", "*.destination.*", "destination.*"], 30),
        )
    }
    blind, seeing = shop.story(id_, made["sender"]), shop.story(id_, made["reader"])
    assert (blind["readers"], blind["hidden_readers"]) == ([], True) and blind["place"]
    assert [one["group"] for one in seeing["readers"]] == ["destination.mail"] and seeing["hidden_readers"]
    headers = {"X-API-Key": made["poor"]}
    statuses = {shop.server.http.get(f"/v1/messages/{id_}/story", headers=headers).status_code for _ in range(20)}
    assert 429 in statuses
