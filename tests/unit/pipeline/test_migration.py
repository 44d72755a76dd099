"""Documents of other systems as messages: what real servers wrote, and what is rejected with which reason."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.support.examples import example

rows, rabbitmq, rocketmq = map(example, ("pending_rows", "from_rabbitmq", "from_rocketmq"))
PendingRow, RabbitMQ, RocketMQ = rows.PendingRow, rabbitmq.RabbitMQ, rocketmq.RocketMQ
SAMPLES = Path(__file__).parents[2] / "samples" / "imports"
TAKEN = 1_795_326_100_000


def documents(name: str) -> list[Any]:
    text = (SAMPLES / name).read_text()
    return orjson.loads(text) if name.endswith(".json") else [orjson.loads(line) for line in text.splitlines()]


def rejected(read: Any, document: Any) -> str:
    with pytest.raises(rows.NotPending) as caught:
        read(document)
    return str(caught.value)


def test_what_rabbitmqs_plug_in_holds() -> None:
    first, second, third = map(RabbitMQ().read, documents("rabbitmq_delayed.jsonl"))
    assert (first.topic, first.payload, first.name) == ("reminders.eu", b'{"order": 17}', "m-1")
    assert first.headers == {
        "content-type": "application/json", "correlation-id": "c-1", "message-id": "m-1", "customer": "17",
        "score": "1.5", "tries": "3", "vip": "true",
    }  # fmt: skip
    assert second == PendingRow(1_795_497_429_898, "reminders.us", b"\x00\x01\xff\x80") and first.expires_ms is None
    assert (third.payload.decode(), third.expires_ms) == ("grüß", third.due_ms + 3_600_000)


def test_what_rabbitmqs_queues_hold() -> None:
    by_ttl, by_delay, none = documents("rabbitmq_get_waiting.json")
    read = RabbitMQ("orders").read
    stamp = 1_795_255_200_000
    assert read(by_ttl) == PendingRow(stamp + 604_800_000, "orders", b"by ttl", headers={"a": "b"})
    assert (read(by_delay).due_ms, read(by_delay).payload) == (stamp + 5000, b"\x00\xff")
    written: dict[Any, int] = {200.0: 200, 1687.5: 1688, "200": 200, "2E2": 200}
    for delay, ms in written.items():  # doubles, as .NET writes them
        properties = by_delay["properties"] | {"headers": {"x-delay": delay}}
        assert read(by_delay | {"properties": properties}).due_ms == stamp + ms
    assert "x-delay is negative" in rejected(read, by_delay | {"properties": {"headers": {"x-delay": -5000.0}}})
    assert "no x-delay, no expiration, and no --ttl" in rejected(read, none)
    assert "say --taken-at" in rejected(RabbitMQ("orders", ttl_ms=5).read, none)
    assert RabbitMQ("orders", TAKEN, 600_000).read(none).due_ms == TAKEN + 600_000
    assert RabbitMQ("orders", TAKEN, 600_000).read(by_ttl).due_ms == stamp + 600_000
    assert "negative" in rejected(read, documents("rabbitmq_get_reminders.json")[0])
    assert "not base64" in rejected(read, by_delay | {"payload": "?"})
    assert "x-delay is no number" in rejected(
        RabbitMQ("t", TAKEN).read, {"payload": "", "properties": {"headers": {"x-delay": "soon"}}}
    )
    assert "no payload" in rejected(read, {})


def test_what_rocketmqs_timer_holds() -> None:
    at, after, soon, taken, back = documents("rocketmq_timer.jsonl")
    read = RocketMQ(TAKEN).read
    first = read(at)
    assert first == PendingRow(
        1_795_412_500_218, "orders", b'{"order": 17}', "order-17", {"customer": "17"}, ("reminder",), None,
        "FD000000000000000000000000000002263A1DBD16A66D5E5D530000", first.twin,
    )  # fmt: skip
    # Asked for 7200 s after it was stored at ...301045: never earlier than that, and less than two seconds later.
    assert read(after).due_ms == 1_795_333_302_000 and read(after).payload == b"\x00\xff\x80"
    assert read(soon).due_ms == 1_795_326_103_000
    assert "RocketMQ has delivered it" in rejected(RocketMQ(TAKEN + 10_000).read, soon)
    assert read(back).ends == read(taken).twin and read(taken).ends is None
    newer = orjson.loads(orjson.dumps(back))
    newer["properties"]["TIMER_DEL_UNIQKEY"] = read(taken).twin
    assert read(newer).ends == read(taken).twin


def test_what_rocketmqs_levels_hold() -> None:
    long, short = documents("rocketmq_levels.jsonl")
    read = RocketMQ(TAKEN).read
    assert (read(long).due_ms, read(long).topic, read(long).key) == (1_795_326_101_129 + 7_200_000, "orders", "lvl")
    assert RocketMQ(TAKEN, "mine", "1s 2s").read(long).due_ms == 1_795_326_103_129
    assert read(short).due_ms == 1_795_326_102_138
    del long["storeTimestamp"]
    assert "storeTimestamp" in rejected(read, long)
    assert "no DELAY" in rejected(read, {"properties": {"REAL_TOPIC": "t"}})
    assert "no REAL_TOPIC" in rejected(read, {"properties": {}})
    assert "no properties" in rejected(read, {"beginOffset": 0, "endOffset": 5})
    json = {"body": {"a": 1}, "bodyFormat": "json", "properties": {"REAL_TOPIC": "t", "TIMER_OUT_MS": str(2 * TAKEN)}}
    assert read(json).payload == b'{"a":1}'
    assert read(json | {"body": "ä", "bodyFormat": "string"}).payload == "ä".encode()
    assert "not base64" in rejected(read, json | {"body": "?", "bodyFormat": "base64"})


def task(**headers: Any) -> dict[str, Any]:
    about = {"delivery_info": {"exchange": "", "routing_key": "celery"}, "priority": 3, "body_encoding": "base64"}
    body = base64.b64encode(b"[[], {}, {}]").decode()
    return {"body": body, "headers": {"id": "t1", "task": "t", **headers}, "properties": about}


@pytest.fixture
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose zone is not UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("tokyo")
def test_celery_tasks_and_what_is_none() -> None:
    read = example("from_celery").Celery("held").read
    found = read(task(eta="2031-01-01T08:00:00.000100+01:00", retries=2, expires="2031-01-02T00:00:00"))
    assert (found.due_ms, found.topic, found.key, found.name) == (1_925_017_200_001, "held", "t1", "held:t1:2")
    fields = orjson.loads(found.payload)
    assert (fields["body"], fields["headers"]["eta"], fields["priority"]) == ("[[], {}, {}]", None, 3)
    assert (fields["expires"], fields["properties"]) == ("2031-01-02T00:00:00+00:00", {})
    old = {"id": "t2", "task": "t", "eta": "2031-01-01T08:00:00", "retries": 0}
    first = task() | {"headers": {}, "body": base64.b64encode(orjson.dumps(old)).decode()}
    assert orjson.loads(orjson.loads(read(first).payload)["body"]) == old | {"eta": None}
    assert "no eta" in rejected(read, task())
    assert "eta is no time" in rejected(read, task(eta="soon"))
    assert "not a message of Celery's" in rejected(read, {"body": "x"})
    assert "first protocol" in rejected(read, task() | {"headers": {}})


def written(files: dict[str, str], read: Any, folder: Path) -> tuple[list[Any], dict[str, str]]:
    """The rows of files, and the reasons for the others by where they are."""
    for name, text in files.items():
        (folder / name).write_text(text)
    paths = [str(folder / name) for name in files]
    rows.write_rows(lambda: rows.read_documents(paths), read, folder / "out.jsonl")
    lines, rejects = (
        [orjson.loads(line) for line in (folder / name).read_text().splitlines()]
        for name in ("out.jsonl", "out-rejects.jsonl")
    )
    return lines, {Path(one["source"]).name: one["reason"] for one in rejects}


def test_each_document_is_found_and_each_reject_says_where_it_was(tmp_path: Path) -> None:
    good = {"payload": "p", "routing_key": "t", "due_ms": TAKEN, "properties": {"message_id": "m"}}
    line = orjson.dumps(good).decode()
    files = {
        "list": orjson.dumps([good, {}]).decode(), "texts": orjson.dumps([line, "{broken"]).decode(), "one": line,
        "lines": f"{line}\n\n{{broken", "a.jsonl": f"[]\n\n{line}",
    }  # fmt: skip
    found, rejects = written(files, RabbitMQ().read, tmp_path)
    assert len(found) == 5 and found[0] == {
        "due_ms": TAKEN, "topic": "t", "payload": "cA==", "key": None, "headers": '{"message-id": "m"}', "labels": [],
        "expires_ms": None, "name": "m",
    }  # fmt: skip
    none = "not a message of RabbitMQ: it has no payload"
    assert rejects == {"list[1]": none, "texts[1]": "not JSON", "lines:3": "not JSON", "a.jsonl:1": none}
    with pytest.raises(FileExistsError):
        written(files, RabbitMQ().read, tmp_path)


def test_rocketmqs_log_is_settled(tmp_path: Path) -> None:
    """What was put off once more is there twice; a message without a unique key is like no other."""
    log = (SAMPLES / "rocketmq_timer.jsonl").read_text()
    again = log.splitlines()[0].replace('"queueOffset":0', '"queueOffset":9')
    without = orjson.dumps({"properties": {"REAL_TOPIC": "orders", "TIMER_OUT_MS": "1900000000000"}, "body": "AA=="})
    text = "\n".join([log.strip(), again, without.decode(), without.decode()])
    found, rejects = written({"log.jsonl": text}, RocketMQ(1_795_326_200_000).read, tmp_path)
    assert sorted(base64.b64decode(row["payload"]) for row in found) == [
        b"\0", b"\0", b"\x00\xff\x80", b'{"order": 17}'
    ]  # fmt: skip
    assert rejects == {
        "log.jsonl:1": "the same message stands there again",
        "log.jsonl:3": "it was due before the export was made: RocketMQ has delivered it",
        "log.jsonl:4": "it was taken back",
        "log.jsonl:5": "no message: it takes back another one",
    }


def test_options_of_times_have_a_zone() -> None:
    assert rows.instant("2026-11-22T05:18:00Z") == rows.instant("1795324680000") == 1_795_324_680_000
    with pytest.raises(ValueError, match="no zone"):
        rows.instant("2026-11-22T05:18:00")
