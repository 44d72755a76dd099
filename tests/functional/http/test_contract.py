"""The HTTP contract of `docs/reference/api.md` against a real server, and against a proxy: what only the whole system
can show.

Codes and shapes of single answers are in `tests/unit/http/test_http.py`.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from secrets import token_hex
from typing import Any

import httpx
import orjson
import pytest

from duemq.model.messages.ids import peek
from duemq.model.timing import FIRST_MS
from tests.support.http.proxy_site import proxy_site

pytestmark = pytest.mark.xdist_group("server")
ALL_BYTES = bytes(range(256))
HOUR_MS = 3_600_000


class Api:
    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def ask(self, method: str, path: str, status: int, json: Any = None, **options: Any) -> Any:
        response = self.http.request(method, path, json=json, **options)
        assert response.status_code == status, response.text
        return response.json() if response.content else None

    def send(self, **message: Any) -> Any:
        return self.ask("POST", "/v1/messages", 201, message)

    def state(self, target: str) -> Any:
        return self.ask("GET", f"/v1/messages/{target}", 200)

    def refused(self, method: str, path: str, status: int, code: str, json: Any = None, **options: Any) -> Any:
        problem = self.ask(method, path, status, json, **options)
        assert problem["code"] == code, problem
        return problem

    def records(self, topic: str, count: int, extra: str = "300ms") -> list[Any]:
        """Exactly `count` records: none come in the time `extra` after the last one."""
        found: list[Any] = []
        query: dict[str, Any] = {"wait": "60s"}
        while len(found) < count:
            page = self.ask("GET", f"/v1/topics/{topic}/records", 200, params=query)
            assert page["records"], f"{len(found)} of {count} records came"
            found += page["records"]
            query["after"] = page["cursor"]
        found += self.ask("GET", f"/v1/topics/{topic}/records", 200, params=query | {"wait": extra})["records"]
        assert len(found) == count
        return found


@pytest.fixture(scope="session")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a proxy without a store, in front of a node."""
    with proxy_site(tmp_path_factory.mktemp("proxied") / "data") as url:
        yield url


@pytest.fixture(params=["server", "proxied"])
def api(request: pytest.FixtureRequest) -> Iterator[Api]:
    with httpx.Client(base_url=request.getfixturevalue(request.param), timeout=300) as http:
        yield Api(http)


@pytest.fixture
def topic() -> str:
    return f"contract.{token_hex(6)}"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_messages_arrive_once_in_due_order_and_never_early(api: Api, topic: str) -> None:
    start = now_ms() + 500
    items = [{"topic": topic, "payload": str(i), "deliver_at": start + i * 37 % 400} for i in range(1000)]
    answer = api.ask("POST", "/v1/messages:batch", 200, {"messages": items})
    assert answer["accepted"] == 1000
    records = api.records(topic, 1000)
    dues = [int(record["headers"]["duemq-due"]) for record in records]
    assert dues == sorted(dues) or len({record["partition"] for record in records}) > 1
    for record, due in zip(records, dues, strict=True):
        receipt = answer["results"][int(record["payload"])]
        assert (record["headers"]["duemq-id"], due) == (receipt["id"], receipt["deliver_at_ms"])
        assert record["timestamp_ms"] >= due
    state = api.state(answer["results"][0]["id"])
    assert state["status"] == "delivered" and state["delivered_at_ms"] >= start


def test_messages_of_one_key_that_are_due_together_keep_their_order(api: Api, topic: str) -> None:
    due = now_ms() + 700
    for part in range(4):
        items = [
            {"topic": topic, "payload": f"{part}-{i:02d}", "key": f"k{i % 5}", "deliver_at": due} for i in range(50)
        ]
        assert api.ask("POST", "/v1/messages:batch", 200, {"messages": items})["accepted"] == 50
    by_key: dict[str, list[str]] = {}
    for record in api.records(topic, 200):
        by_key.setdefault(record["key"], []).append(record["payload"])
    assert len(by_key) == 5
    assert all(payloads == sorted(payloads) for payloads in by_key.values())


@pytest.mark.parametrize("delay", [{}, {"deliver_after": "200ms"}, {"deliver_at": FIRST_MS}, {"delay_level": -1}])
def test_a_payload_key_and_headers_arrive_as_they_were_sent(api: Api, topic: str, delay: dict[str, Any]) -> None:
    headers = {"trace-id": "4711", "Mixed": "", "unicode": "grüße ☃"}
    encoded = base64.b64encode(ALL_BYTES).decode()
    api.send(topic=topic, payload_base64=encoded, key="k", headers=headers, labels=["a"], **delay)
    (record,) = api.records(topic, 1)
    assert (record["payload_base64"], record["key"]) == (encoded, "k")
    assert headers.items() <= record["headers"].items()
    assert record["headers"]["duemq-attempt"] == "1"


def test_a_raw_body_is_the_payload(api: Api, topic: str) -> None:
    headers = {"duemq-topic": topic, "duemq-deliver-after": "200", "duemq-labels": "a,b", "duemq-header-h": "v"}
    receipt = api.ask("POST", "/v1/messages", 201, content=ALL_BYTES, headers=headers | {"Content-Type": "image/png"})
    assert api.state(receipt["id"])["labels"] == ["a", "b"]
    (record,) = api.records(topic, 1)
    assert base64.b64decode(record["payload_base64"]) == ALL_BYTES and record["headers"]["h"] == "v"


def test_a_won_cancel_and_a_move_hold(api: Api, topic: str) -> None:
    kept, cancelled, moved, hurried = (
        api.send(topic=topic, payload=name, deliver_after=after)["id"]
        for name, after in (("kept", "15s"), ("cancelled", "15s"), ("moved", "15s"), ("hurried", "1h"))
    )
    won = api.ask("DELETE", f"/v1/messages/{cancelled}", 200)
    later = now_ms() + 16_000
    assert api.ask("PATCH", f"/v1/messages/{moved}", 200, {"deliver_at": later})["deliver_at_ms"] == later
    assert api.ask("POST", f"/v1/messages/{hurried}:deliver-now", 200)["id"] == hurried
    records = {record["payload"]: record for record in api.records(topic, 3)}
    assert records.keys() == {"hurried", "kept", "moved"}
    assert records["moved"]["headers"]["duemq-due"] == str(later) and records["moved"]["timestamp_ms"] >= later
    assert api.ask("DELETE", f"/v1/messages/{cancelled}", 200) == won
    late = api.refused("DELETE", f"/v1/messages/{kept}", 409, "already_delivered")
    assert late["delivered_at_ms"] == api.state(kept)["delivered_at_ms"]
    api.refused("PATCH", f"/v1/messages/{cancelled}", 409, "already_cancelled", {"deliver_after": "1h"})
    api.refused("POST", f"/v1/messages/{hurried}:deliver-now", 409, "already_delivered")
    told = [[one["change"] for one in api.state(id_)["changes"]] for id_ in (cancelled, moved, hurried)]
    assert told == [["cancelled"], ["moved"], ["delivered_now"]] and "changes" not in api.state(kept)


def test_many_senders_of_one_idempotency_key_make_one_message(api: Api, topic: str) -> None:
    key, message = {"Idempotency-Key": token_hex(8)}, {"topic": topic, "payload": "once", "deliver_after": "300ms"}
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: api.http.post("/v1/messages", json=message, headers=key), range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    api.records(topic, 1)
    api.refused("POST", "/v1/messages", 422, "idempotency_conflict", message | {"key": "other"}, headers=key)


def test_a_name_stands_for_its_message_everywhere(api: Api, topic: str) -> None:
    name = f"order-{token_hex(6)}"
    path, message = f"/v1/messages/{name}", {"topic": topic, "deliver_after": "1h"}
    first = api.ask("PUT", path, 201, message, headers={"If-None-Match": "*"})
    assert api.ask("PUT", path, 200, message)["id"] == first["id"]
    api.refused("PUT", path, 412, "name_taken", message, headers={"If-None-Match": "*"})
    assert api.state(name)["id"] == first["id"]
    answer = api.ask("POST", "/v1/messages:cancel", 200, {"ids": [name, "no-such-name", first["id"]]})
    assert [result["status"] for result in answer["results"]] == ["cancelled", "unknown", "cancelled"]
    assert api.state(name)["status"] == "cancelled"


def test_a_repeat_is_answered_as_the_first_one_whatever_time_it_is(api: Api, topic: str) -> None:
    expires = now_ms() + 2_500
    message = {"topic": topic, "payload": "once", "deliver_at": expires, "expires_at": expires}
    key, name = {"Idempotency-Key": f'"{token_hex(8)}"'}, f"order-{token_hex(6)}"
    batch = {"messages": [message | {"name": f"{name}-1"}, message | {"idempotency_key": name}]}
    posted = api.ask("POST", "/v1/messages", 201, message, headers=key)
    put = api.ask("PUT", f"/v1/messages/{name}", 201, message)
    many = api.ask("POST", "/v1/messages:batch", 200, batch)
    assert api.ask("DELETE", f"/v1/messages/{put['id']}", 200)["status"] == "cancelled"
    while now_ms() <= expires:
        time.sleep(0.05)
    api.refused("POST", "/v1/messages", 400, "bad_time", message)
    again = api.ask("POST", "/v1/messages", 200, message, headers={"Idempotency-Key": key["Idempotency-Key"][1:-1]})
    assert (again["id"], again["duplicate"]) == (posted["id"], True)
    again = api.ask("PUT", f"/v1/messages/{name}", 200, message)
    assert (again["id"], again["status"], again["duplicate"]) == (put["id"], "cancelled", True)
    repeated = api.ask("POST", "/v1/messages:batch", 200, batch)
    assert [one["id"] for one in repeated["results"]] == [one["id"] for one in many["results"]]
    assert all(one["duplicate"] for one in repeated["results"]) and repeated["accepted"] == 2
    api.refused("PUT", f"/v1/messages/{name}", 409, "name_conflict", message | {"payload": "other"})
    api.refused("PUT", f"/v1/messages/{name}-new", 400, "bad_time", message)


def test_a_batch_of_names_can_be_sent_again(api: Api, topic: str) -> None:
    name = token_hex(6)
    items = [{"name": f"{name}-{n}", "topic": topic, "payload": f"{n}", "deliver_after": "1h"} for n in range(3_000)]
    items += [{"idempotency_key": f"{name}-{n}", "topic": topic, "deliver_after": "1h"} for n in range(100)]
    first = api.ask("POST", "/v1/messages:batch", 200, {"messages": items})
    assert first["accepted"] == 3_100 and not any("duplicate" in one for one in first["results"])
    assert api.state(f"{name}-7")["id"] == first["results"][7]["id"]
    items[7]["payload"] = "other"
    plain = [{"topic": topic, "deliver_after": "1h"}]
    again = api.ask("POST", "/v1/messages:batch", 200, {"messages": [*items, *items[8:10], *plain]})
    error = again["results"][7]["error"]
    assert (error["code"], error["id"]) == ("name_conflict", first["results"][7]["id"])
    assert (again["accepted"], again["rejected"]) == (3_102, 1)
    expected = [one | {"duplicate": True} for one in first["results"]]
    expected[7] = again["results"][7]
    assert again["results"][:-1] == [*expected, *expected[8:10]] and "duplicate" not in again["results"][-1]
    del items[8]["name"]
    found = api.ask("PUT", f"/v1/messages/{name}-8", 200, items[8])
    assert found["id"] == first["results"][8]["id"]


def test_many_are_moved_each_to_its_time_and_a_repeat_changes_nothing(api: Api, topic: str) -> None:
    due = now_ms() + HOUR_MS
    ids = [api.send(topic=topic, deliver_after="1h")["id"] for _ in range(20)]
    delivered = api.send(topic=topic)["id"]
    won = api.ask("DELETE", f"/v1/messages/{ids[0]}", 200)
    moves = [{"id": id_, "deliver_at": due + at} for at, id_ in enumerate([*ids, delivered, "no-such-name"])]
    for _ in range(2):
        answer = api.ask("POST", "/v1/messages:move", 200, {"moves": moves, "times": True})
        assert answer["counts"]["moved"] == 19
        results = answer["results"]
        assert results[0] == {"id": ids[0], "status": "already_cancelled"} | {
            name: won[name] for name in ("cancelled_at", "cancelled_at_ms")
        }
        assert [result["deliver_at_ms"] for result in results[1:20]] == [due + at for at in range(1, 20)]
        assert results[20]["status"] == "already_delivered" and results[20]["delivered_at_ms"] <= now_ms()
        assert results[21] == {"id": "no-such-name", "status": "unknown"}
    assert [api.state(id_)["deliver_at_ms"] for id_ in ids[1:]] == [due + at for at in range(1, 20)]
    first = api.ask("POST", "/v1/messages:cancel", 200, {"ids": [*ids, delivered], "times": True})
    assert first["results"][0]["cancelled_at_ms"] == won["cancelled_at_ms"]
    assert api.ask("POST", "/v1/messages:cancel", 200, {"ids": [*ids, delivered], "times": True}) == first
    assert first["results"][20]["delivered_at_ms"] == results[20]["delivered_at_ms"]


def test_lists_are_complete_in_order_and_what_a_filter_cancels_is_gone(api: Api, topic: str) -> None:
    due = now_ms() + HOUR_MS
    for i in range(12):
        api.send(
            topic=topic, deliver_at=due + i * 5 % 12, labels=["even" if i % 2 == 0 else "odd"], key=f"{topic}-{i % 3}"
        )
    seen: list[int] = []
    query: dict[str, Any] = {"topic": topic, "limit": 5}
    while True:
        page = api.ask("GET", "/v1/messages", 200, params=query)
        seen += [message["deliver_at_ms"] for message in page["messages"]]
        if page["cursor"] is None:
            break
        query["cursor"] = page["cursor"]
    assert seen == [due + i for i in range(12)]
    assert len(api.ask("GET", "/v1/messages", 200, params={"key": f"{topic}-0"})["messages"]) == 4
    window = {"topic": topic, "due_from": due + 2, "due_to": due + 5}
    assert len(api.ask("GET", "/v1/messages", 200, params=window)["messages"]) == 3
    by_shard: list[str] = []
    for shard in range(len(api.ask("GET", "/v1/cluster", 200)["shards"])):
        query = {"topic": topic, "limit": 2, "shard": shard}
        while True:
            page = api.ask("GET", "/v1/messages", 200, params=query)
            assert {peek(message["id"]).shard for message in page["messages"]} <= {shard}
            by_shard += [message["id"] for message in page["messages"]]
            if page["cursor"] is None:
                break
            query["cursor"] = page["cursor"]
    assert len(by_shard) == len(set(by_shard)) == 12
    for wrong in (shard + 1, "-1", "x", 65_536):
        api.refused("GET", "/v1/messages", 400, "bad_query", params={"shard": wrong})
    assert api.ask("GET", "/v1/dlq", 200, params={"topic": topic, "shard": 0})["messages"] == []
    answer = api.ask("POST", "/v1/messages:cancel", 200, {"filter": {"topic": topic, "label": "even"}})
    assert answer["counts"]["cancelled"] == 6
    assert len(api.ask("GET", "/v1/messages", 200, params={"topic": topic})["messages"]) == 6
    ended = api.ask("GET", "/v1/messages", 200, params={"topic": topic, "status": "cancelled"})["messages"]
    assert {message["labels"][0] for message in ended} == {"even"}


def test_an_id_that_was_changed_in_any_place_is_unknown(api: Api, topic: str) -> None:
    real = api.send(topic=topic, deliver_after="1h")["id"]
    for at, char in enumerate(real):
        forged = real[:at] + ("A" if char != "A" else "B") + real[at + 1 :]
        api.refused("GET", f"/v1/messages/{forged}", 404, "unknown_message")
        api.refused("DELETE", f"/v1/messages/{forged}", 404, "unknown_message")
    assert api.state(real)["status"] == "scheduled"


def test_an_event_stream_brings_what_was_and_what_comes(api: Api, topic: str) -> None:
    api.send(topic=topic, payload="old")
    api.send(topic=topic, payload="new", deliver_after="500ms")
    payloads = []
    with api.http.stream("GET", f"/v1/topics/{topic}/records", headers={"Accept": "text/event-stream"}) as response:
        for line in response.iter_lines():
            if line.startswith("data: "):
                payloads.append(orjson.loads(line.removeprefix("data: "))["payload"])
                if len(payloads) == 2:
                    break
    assert payloads == ["old", "new"]


def test_what_is_refused_leaves_nothing_behind(api: Api, topic: str) -> None:
    wrong: list[dict[str, Any]] = [
        {"deliver_after": -1},
        {"deliver_after": "soon"},
        {"deliverAfter": "1h"},
        {"deliver_at": "2031-01-01T00:00:00"},
    ]
    answer = api.ask("POST", "/v1/messages:batch", 200, {"messages": [{"topic": topic, **change} for change in wrong]})
    assert answer["accepted"] == 0
    assert api.ask("GET", "/v1/messages", 200, params={"topic": topic})["messages"] == []
    api.refused("GET", f"/v1/topics/{topic}", 404, "unknown_topic")


@pytest.mark.parametrize("api", ["server"], indirect=True)  # a proxy delivers nothing: its nodes have the metrics
def test_metrics_have_what_a_dashboard_needs(api: Api, topic: str) -> None:
    api.send(topic=topic, deliver_after="50ms")
    api.records(topic, 1)
    names = {line.split("{")[0].split(" ")[0] for line in api.http.get("/metrics").text.splitlines() if line[:1] != "#"}
    for word in ("lateness_seconds_bucket", "pending", "overdue", "cancel", "cycle"):
        assert any(name.startswith("duemq_") and word in name for name in names), word


def test_the_cluster_says_who_is_master_and_how_far_the_shards_are(api: Api, topic: str) -> None:
    before = now_ms()
    api.send(topic=topic, deliver_after="1ms")
    api.records(topic, 1)
    cluster = api.ask("GET", "/v1/cluster", 200)
    (node,) = cluster["nodes"]
    shards = cluster["shards"]
    assert (node["state"], node["master_of"]) == ("ready", [shard["shard"] for shard in shards])
    assert {shard["master"] for shard in shards} == {node["name"]}
    moved = [shard for shard in shards if shard.get("cursor_ms", 0) >= before]
    assert moved and all(shard["entry_age_ms"] < 60_000 for shard in moved)
    api.refused("POST", f"/v1/cluster/nodes/{node['name']}:drain", 409, "not_supported")


def test_a_message_is_not_moved_behind_its_expiry_unless_that_moves_along(api: Api, topic: str) -> None:
    now = now_ms()
    expires = now + 2 * HOUR_MS
    sent = [api.send(topic=topic, deliver_at=now + HOUR_MS, expires_at=expires)["id"] for _ in range(3)]
    path, later = f"/v1/messages/{sent[0]}", {"deliver_at": expires + HOUR_MS}
    assert api.refused("PATCH", path, 400, "bad_time", later)["id"] == sent[0]
    assert api.state(sent[0])["deliver_at_ms"] == now + HOUR_MS
    api.ask("PATCH", path, 200, {"deliver_at": expires})
    moved = api.ask("PATCH", path, 200, later | {"shift_expiry": True})
    assert (moved["deliver_at_ms"], moved["expires_at_ms"]) == (expires + HOUR_MS, expires + HOUR_MS)
    moves = {"moves": [{"id": sent[1], **later}, {"id": sent[2], "deliver_at": expires}]}
    report = api.ask("POST", "/v1/messages:move", 200, moves)
    assert report["results"][0]["error"]["code"] == "bad_time"
    assert (report["counts"]["moved"], report["counts"]["rejected"]) == (1, 1)
    report = api.ask("POST", "/v1/messages:move", 200, moves | {"shift_expiry": True})
    assert report["counts"]["moved"] == 2
    state = api.state(sent[1])
    assert (state["deliver_at_ms"], state["expires_at_ms"]) == (later["deliver_at"], expires + 2 * HOUR_MS)
    assert [change["change"] for change in state["changes"]] == ["moved"]
    assert api.state(sent[2])["expires_at_ms"] == expires
    for wrong in ({"shift_expiry": True}, later | {"shift_expiry": "yes"}):
        api.refused("PATCH", path, 400, "bad_field", wrong)


def test_a_topic_counts_what_waits_and_prefixes_choose_among_it(api: Api, topic: str) -> None:
    items = [
        {"topic": f"{topic}.{'ab'[n % 2]}", "name": f"{topic}-{n}", "deliver_after": "30d", "payload": ""}
        for n in range(12)
    ]
    assert api.ask("POST", "/v1/messages:batch", 200, {"messages": items})["accepted"] == 12

    def pending(end: str) -> tuple[int, int]:
        shown = api.ask("GET", f"/v1/topics/{topic}.{end}", 200)
        return shown["pending"], shown["pending_unread"]

    assert (pending("a"), pending("b")) == ((6, 0), (6, 0)), "before anything was delivered there"

    def listed(**chosen: str) -> int:
        return len(api.ask("GET", "/v1/messages", 200, params=chosen)["messages"])

    assert listed(topic_prefix=topic) == listed(name_prefix=f"{topic}-") == 12
    assert listed(topic_prefix=f"{topic}.a", name_prefix=f"{topic}-1") == 1  # 10; 1 and 11 are of b
    messages = api.ask("GET", "/v1/messages", 200, params={"topic_prefix": topic})["messages"]
    assert {one["name"] for one in messages} == {f"{topic}-{n}" for n in range(12)}
    assert api.ask("GET", f"/v1/messages/{topic}-1", 200)["name"] == f"{topic}-1"
    nameless = api.send(topic=f"{topic}.c", deliver_after="30d")["id"]
    assert "name" not in api.state(nameless) and api.ask("DELETE", f"/v1/messages/{nameless}", 200)
    chosen = {"topic_prefix": f"{topic}.", "name_prefix": f"{topic}-1"}
    assert api.ask("POST", "/v1/messages:cancel", 200, {"filter": chosen})["counts"]["cancelled"] == 3
    assert (pending("a"), pending("b")) == ((5, 0), (4, 0))
    api.refused("POST", "/v1/messages:cancel", 400, "bad_field", {"filter": {"topic_prefix": ""}})
    assert api.ask("POST", "/v1/messages:cancel", 200, {"filter": {"topic_prefix": topic}})["counts"]["cancelled"] == 9
