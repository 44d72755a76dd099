"""A row whose time is none, or long past, is refused alone: the SDK would refuse its whole batch."""

from __future__ import annotations

import time
from collections.abc import Sequence

import httpx
import orjson
import pyarrow as pa

from duemq.client import Admin, Draft, Message
from duemq.client.http.values import MessageState
from duemq.pipeline.bulk_change.requests import MOVE_SCHEMA, ChangeClient, moving
from duemq.pipeline.bulk_change.slots import Slots
from duemq.pipeline.columns.instants import LONG_PAST
from duemq.pipeline.logs.server import Server
from duemq.pipeline.spark_source.options import WriteOptions
from duemq.pipeline.spark_source.posting import ACCEPTED, REFUSED, PostResult, answered

SECONDS, MS, PAST = 1_924_992_000, 1_924_992_000_000, 978_307_200_000
LOST = "1924992000 looks like seconds; ms are 1924992000000"


class Scripted(ChangeClient):
    """Its server moves whatever comes."""

    def client(self) -> Admin:
        return Admin("http://duemq.test", transport=httpx.MockTransport(self._answer))

    @staticmethod
    def _answer(request: httpx.Request) -> httpx.Response:
        moves = orjson.loads(request.content)["moves"]
        results = [{"id": one["id"], "status": "moved", "deliver_at_ms": one["deliver_at"]} for one in moves]
        return httpx.Response(200, json={"results": results, "counts": {"moved": len(moves)}})


def test_a_row_to_send() -> None:
    def send(drafts: Sequence[Draft]) -> list[Message]:
        state = MessageState.from_json({"id": "m", "status": "scheduled", "topic": "t", "deliver_at_ms": MS})
        return [Message(Admin("http://duemq.test"), state) for _ in drafts]

    row = {"name": "a", "topic": "t", "payload": b"x", "due_ms": MS, "expires_ms": None}
    rows = [row, row | {"name": "b", "due_ms": SECONDS}, row | {"name": "c", "expires_ms": SECONDS}]
    now = int(time.time() * 1000)
    rows += [row | {"name": "d", "due_ms": PAST}, row | {"name": "e", "due_ms": now - 3_600_000}]
    batch = pa.RecordBatch.from_pylist(rows)
    found = list(answered([batch], send, WriteOptions(Server())))
    assert found == [
        ("a", PostResult(ACCEPTED)),
        ("b", PostResult(REFUSED, f"due_ms: {LOST}")),
        ("c", PostResult(REFUSED, f"expires_ms: {LOST}")),
        ("d", PostResult(REFUSED, f"due_ms: {PAST} {LONG_PAST}")),
        ("e", PostResult(ACCEPTED)),
    ]
    meant = list(answered([batch], send, WriteOptions(Server(), past=True)))
    assert [answer.status for _, answer in meant] == [ACCEPTED, REFUSED, REFUSED, ACCEPTED, ACCEPTED]


def test_a_row_to_move() -> None:
    rows = [{"id": "a", "due_ms": MS}, {"id": "b", "due_ms": SECONDS}, {"id": "c", "due_ms": MS, "refused": "no time"},
            {"id": "d", "due_ms": PAST}]  # fmt: skip
    batch, slots = pa.RecordBatch.from_pylist(rows, schema=MOVE_SCHEMA), Slots("times of rows", 1)
    (answers,) = moving(Scripted("http://duemq.test"), slots)(iter([batch]))
    assert [tuple(one.values()) for one in answers.to_pylist()] == [
        ("a", "moved", MS, None), ("b", "refused", None, LOST), ("c", "refused", None, "no time"),
        ("d", "refused", None, f"{PAST} {LONG_PAST}"),
    ]  # fmt: skip
    (meant,) = moving(Scripted("http://duemq.test"), slots, past=True)(iter([batch]))
    assert meant["status"].to_pylist() == ["moved", "refused", "refused", "moved"]
