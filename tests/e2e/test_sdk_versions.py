"""An SDK and a server of different versions: senders and readers see the same with either."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.server import Server, environment
from tests.support.node.earlier_version import unpack
from tests.support.patience import PROCESS_S

pytestmark = pytest.mark.servers

PROGRAM = """
import json, sys
from datetime import UTC, datetime, timedelta
from itertools import islice
from duemq.client import Client, Draft, errors

def refusal(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except errors.RejectedError as error:
        return [type(error).__name__, error.code, error.field]

later = datetime.now(UTC) + timedelta(hours=1)
with Client() as client:
    order = dict(name="kept", key="k", labels=["eu"], headers={"h": "v"}, deliver_at=later)
    kept = client.send("t", {"order": 17}, **order)
    again = client.send("t", {"order": 17}, **order, if_new=False)
    once = [client.send("t", b"x", deliver_after="1h", idempotency_key="once").duplicate for _ in range(2)]
    batch = client.send_batch(Draft("t", f"b{n}", deliver_after="3h", labels=["batch"]) for n in range(20))
    moved = client.send("t", b"\\xff", deliver_at=later).reschedule(deliver_after=timedelta(milliseconds=1))
    (record,) = islice(client.tail("t", consumer="shop"), 1)
    client.commit("t", "shop", record.cursor)
    kept.deliver_now()
    page = client.records("t", consumer="shop", wait=timedelta(seconds=60))
    state = client.get("kept").state
    print(json.dumps({
        "duplicate": [again.duplicate, again.id == kept.id, *once],
        "batch": [message.status for message in batch],
        "listed": sum(1 for _ in client.list(topic="t", label="batch", due_from=datetime.now(UTC), page_size=7)),
        "moved": [record.id == moved.id, record.payload.hex(), record.due_ms == moved.deliver_at_ms],
        "next": [[one.id == kept.id, one.key, one.headers["h"], one.json()] for one in page.records],
        "committed": client.committed_cursor("t", "shop") == record.cursor,
        "state": [state.status, state.topic, state.key, list(state.labels)],
        "cancelled": [batch[0].cancel().id == batch[0].id],
        "many": client.cancel_many([one.id for one in batch[:3]]).counts["cancelled"],
        "filter": client.cancel_many(filter={"topic": "t", "label": "batch"}).counts["cancelled"],
        "refused": [
            refusal(client.send, "t", name="kept"), refusal(client.cancel, "kept"), refusal(client.get, "no-such"),
            refusal(client.send, "t", deliver_after="soon"), refusal(client.send, "bad topic"),
        ],
        "topics": "t" in [topic.name for topic in client.topics()],
        "shards": client.limits().shards,
    }))
"""
SEEN = {
    "duplicate": [True, True, False, True],
    "batch": ["scheduled"] * 20,
    "listed": 20,
    "moved": [True, "ff", True],
    "next": [[True, "k", "v", {"order": 17}]],
    "committed": True,
    "state": ["delivered", "t", "k", ["eu"]],
    "cancelled": [True],
    "many": 3,
    "filter": 17,
    "refused": [
        ["NameTaken", "name_taken", "name"],
        ["AlreadyDelivered", "already_delivered", None],
        ["UnknownMessage", "unknown_message", None],
        ["BadTime", "bad_time", "deliver_after"],
        ["BadTopic", "bad_topic", "topic"],
    ],
    "topics": True,
    "shards": 1,
}


@pytest.mark.parametrize("older", ["sdk", "server"])
def test_senders_and_readers_of_one_version_work_with_a_server_of_the_other(tmp_path: Path, older: str) -> None:
    earlier = unpack(tmp_path)
    with Server(tmp_path / "data") as server:
        server.environment = earlier if older == "server" else {}
        server.start()
        variables = environment() | {"DUEMQ_URL": server.url} | (earlier if older == "sdk" else {})
        command = [sys.executable, "-P", "-W", "error", "-c", PROGRAM]
        program = subprocess.run(command, capture_output=True, text=True, timeout=PROCESS_S, env=variables)
        assert program.stderr == ""
        assert json.loads(program.stdout) == SEEN
        assert server.stop() == 0, server.log
