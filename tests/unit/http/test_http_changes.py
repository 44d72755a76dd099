"""Who asked for a change, on each route that changes messages; and the history that the API tells."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from duemq.cluster.shards.codec import state_from_json, state_to_json
from duemq.model.messages.message import CANCEL, DELIVER_NOW, MOVE
from duemq.model.messages.row_notes import UNCHANGED, Attempt, ChangeHistory, PastChange
from duemq.proxy.gateway.base import MessagePage
from tests.support.http.http_site import NOW, STATE
from tests.unit.http.test_http_access import Site, with_site

LATER: dict[str, Any] = {"deliver_after": "1h"}
CHANGES: tuple[tuple[str, str, Any], ...] = (
    ("PATCH", "/v1/messages/m1", LATER),
    ("DELETE", "/v1/messages/m1", None),
    ("POST", "/v1/messages/m1:deliver-now", None),
    ("POST", "/v1/messages:cancel", {"ids": ["m1"]}),
    ("POST", "/v1/messages:cancel", {"filter": {"topic": "orders"}}),
    ("POST", "/v1/messages:move", {"moves": [{"id": "m1", **LATER}]}),
    ("POST", "/v1/dlq/m1:redrive", None),
    ("POST", "/v1/dlq/m1:purge", None),
)
HISTORY = ChangeHistory(
    (
        PastChange(MOVE, NOW, NOW + 1, NOW + 2, "key:shop"),
        PastChange(DELIVER_NOW, NOW + 3, NOW + 2, NOW + 3),
        PastChange(CANCEL, NOW + 4, by="job:ab"),
    ),
    7,
)


@pytest.mark.parametrize("topics", [(), ("orders",)], ids=["all topics", "one topic"])
def test_every_change_carries_its_caller(topics: tuple[str, ...]) -> None:
    async def scenario(site: Site) -> None:
        site.gateway.pages *= len(CHANGES)
        for method, path, body in CHANGES:
            await site.ask(method, path, "", body)
        assert site.gateway.callers == [""] * len(CHANGES), "nobody has to present a key"
        site.gateway.callers = []
        key = await site.key("read", "cancel", "operate", name="shop 2", topics=list(topics))
        for method, path, body in CHANGES:
            answer = await site.ask(method, path, key, body)
            assert answer.status_code in (200, 202), answer.text
        assert site.gateway.callers == ["key:shop 2"] * len(CHANGES)

    with_site(scenario)


def test_a_message_tells_its_changes_and_a_list_does_not() -> None:
    async def scenario(site: Site) -> None:
        assert "changes" not in (await site.ask("GET", "/v1/messages/m1")).json()
        site.gateway.found = state = replace(STATE, history=HISTORY)
        site.gateway.pages = [MessagePage([state], None)]
        shown = (await site.ask("GET", "/v1/messages/m1")).json()
        moved, sent, cancelled = shown["changes"]
        assert (moved["change"], moved["by"]) == ("moved", "key:shop")
        assert (moved["at_ms"], moved["from_ms"], moved["to_ms"]) == (NOW, NOW + 1, NOW + 2)
        assert moved["at"].endswith("Z") and moved["from"] < moved["to"]
        assert sent["change"] == "delivered_now" and "by" not in sent
        assert cancelled.keys() == {"change", "at", "at_ms", "by"} and cancelled["by"] == "job:ab"
        assert shown["changes_left_out"] == 7
        (listed,) = (await site.ask("GET", "/v1/messages")).json()["messages"]
        assert not listed.keys() & {"changes", "changes_left_out"}

    with_site(scenario)


def test_a_history_passes_between_processes_and_costs_nothing_where_there_is_none() -> None:
    state = replace(STATE, history=HISTORY, attempts=(Attempt(NOW, "expired"),))
    assert state_from_json(orjson.loads(orjson.dumps(state_to_json(state, names=True)))) == state
    plain = orjson.loads(orjson.dumps(state_to_json(STATE, names=True)))
    assert "history" not in plain and state_from_json(plain).history == UNCHANGED
