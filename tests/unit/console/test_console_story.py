"""The story on the page of a message, in every state that a reader can be in."""

from __future__ import annotations

from typing import Any

import pytest

from duemq.proxy.console.views import render_text
from duemq.proxy.response.render import times
from tests.support.http.http_site import NOW

_FAILED = {"event": "failed", **times("at", NOW), "error": "500 after 3 ms: <b>full</b>"}
_DEAD = {
    "event": "dead", **times("at", NOW), "reason": "retries", "error": "500", "topic": "dlq.destination.mail",
    "letter": "0:7",
}  # fmt: skip
_REDRIVEN = {
    "event": "redriven", **times("at", NOW), "id": "m2" * 16, "topic": "destination.mail", "status": "delivered",
    "job": "j1", "by": "key:ops",
}  # fmt: skip
_RETRY = {"id": "r1" * 16, "number": 3, "status": "scheduled", **times("deliver_at", NOW + 60_000)}
_READER: Any = {
    "group": "destination.mail",
    "destination": "mail",
    "detail": "",
    "events": [],
    "retry": None,
}


def rendered(*, visible: bool = True, untold: str = "", readers: Any = (), **fields: Any) -> str:
    story = {
        "place": {"partition": 1, "offset": 21}, "readers": list(readers), "hidden_readers": False, "complete": True,
        "return_of": None, "redriven_from": None,
    } | fields  # fmt: skip
    values = {
        "story": None if untold else story, "untold": untold, "visible": visible, "root": "./", "now": NOW,
        "message": {"status": "delivered", "topic": "mails"},
    }  # fmt: skip
    notices = "" if untold else render_text("parts/story_notices.html", **values)
    return " ".join((notices + render_text("parts/story.html", **values)).split())


@pytest.mark.parametrize(
    ("reader", "texts"),
    [
        (
            {"state": "dead", "events": [_FAILED | {"left_out_after": 2}, _FAILED, _FAILED, _DEAD]},
            ("Destination mail refused it 5 times", "500 after 3 ms: &lt;b&gt;full", "2 more, not kept",
             'href="./dlq/topics/dlq.destination.mail/0:7"'),
        ),
        (
            {"state": "retrying", "events": [_FAILED], "retry": _RETRY},
            ("refused it once", "tried again", "retry 3", "is due in 1m"),
        ),
        ({"state": "cancelled", "retry": _RETRY | {"status": "cancelled"}}, ("retry 3</a> was cancelled",)),
        ({"state": "accepted"}, ("accepted at the first attempt",)),
        ({"state": "accepted", "events": [_DEAD | {"letter": None}, _REDRIVEN]},
         ("not kept any more", "redriven by <b>key:ops</b>", 'href="./jobs/j1"', "accepted</span>")),
        ({"state": "waiting", "detail": "it is paused"}, ("not sent yet: it is paused",)),
        ({"state": "unknown", "detail": "it began later"}, ("it began later",)),
        ({"state": "dead", "group": "shop", "destination": None, "events": [_DEAD]}, ("Group shop", "gave it up")),
    ],
)  # fmt: skip
def test_each_state_of_a_reader_is_told(reader: dict[str, Any], texts: tuple[str, ...]) -> None:
    page = rendered(readers=[_READER | reader])
    assert [text for text in texts if text not in page] == [], page


def test_what_is_not_known_is_said() -> None:
    assert "no longer kept, or was not found" in rendered(place=None)
    assert "No destination reads topic mails" in rendered()
    assert "cannot see" in rendered(hidden_readers=True) and "This is incomplete" in rendered(complete=False)
    assert "is unavailable now: the shard" in rendered(untold="the shard has no master")
    back = rendered(return_of="m1" * 16, redriven_from={"id": "m0" * 16, "letter": "dlq.shop/0/4"})
    assert "m1m1m1m1…" in back and 'href="./dlq/topics/dlq.shop/0:4"' in back


def test_answers_are_masked_for_roles_that_see_no_payloads() -> None:
    page = rendered(visible=False, readers=[_READER | {"state": "dead", "events": [_FAILED, _DEAD]}])
    assert "full" not in page and "masked" in page and "retries" in page
