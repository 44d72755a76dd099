"""The SDK against a real server: the same round trip, sync and async."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice

import httpx
import pytest

from duemq.client import AlreadyDelivered, AsyncClient, Client, Draft, Message, NameTaken, UnknownMessage, Unreachable
from duemq.client.http import operations
from duemq.client.http.aio.message import AsyncMessage
from duemq.client.http.errors import IdempotencyConflict, NameConflict
from tests.e2e.server import Server


def test_round_trip(shared_server: Server) -> None:
    with Client(shared_server.url) as duemq:
        kept = duemq.send("sdk", {"order": 42}, deliver_after=timedelta(hours=1), key="k", labels=["eu"], name="sdk-42")
        assert duemq.get("sdk-42").id == kept.id
        with pytest.raises(NameTaken):
            duemq.send("sdk", "other", deliver_after="1h", name="sdk-42")
        dropped = duemq.send("sdk", b"\xff\x00", deliver_at=datetime.now(UTC) + timedelta(hours=2), idempotency_key="i")
        again = duemq.send("sdk", b"\xff\x00", deliver_at=dropped.deliver_at_ms, idempotency_key="j")
        batch = duemq.send_batch(Draft("sdk", f"b{i}", deliver_after="3h") for i in range(2_500))
        assert all(isinstance(message, Message) for message in batch)
        listed = [message.id for message in duemq.list(topic="sdk")]
        assert (listed[0], len(set(listed)), len(listed)) == (kept.id, 2_503, 2_503)

        assert dropped.cancel().id == dropped.cancel().id == dropped.id
        assert duemq.get(dropped.id).status == "cancelled"
        moved = again.reschedule(deliver_after=timedelta(milliseconds=50))
        assert moved.deliver_at_ms < kept.deliver_at_ms
        (record,) = islice(duemq.tail("sdk"), 1)
        assert duemq.committed_cursor("sdk", "billing") is None
        duemq.commit("sdk", "billing", record.cursor or "")
        assert duemq.committed_cursor("sdk", "billing") == record.cursor
        assert (record.id, record.payload, record.due_ms) == (again.id, b"\xff\x00", moved.deliver_at_ms)
        with pytest.raises(AlreadyDelivered) as told:
            again.cancel()
        assert told.value.extra["delivered_at_ms"] >= moved.deliver_at_ms
        kept.deliver_now()
        (last,) = duemq.records("sdk", after=record.cursor, wait=timedelta(seconds=60)).records
        assert (last.key, last.payload, last.headers["duemq-id"]) == ("k", b'{"order":42}', kept.id)
        report = duemq.cancel_many(filter={"topic": "sdk"})
        assert report.counts["cancelled"] == 2_500
        with pytest.raises(UnknownMessage):
            duemq.cancel("no-such-message")


class Gateway(httpx.BaseTransport):
    """In front of a server: what comes is carried out, and in place of the next `lost` answers comes this status."""

    def __init__(self, lost: int, status: int | None) -> None:
        self._behind, self.lost, self._status = httpx.HTTPTransport(), lost, status

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self._behind.handle_request(request)
        if not self.lost:
            return response
        self.lost -= 1
        response.read()
        if self._status is None:
            raise httpx.ReadError("the connection broke")
        return httpx.Response(self._status)

    def close(self) -> None:
        self._behind.close()


@pytest.mark.parametrize("status", [None, 502, 504])
def test_a_batch_whose_answer_was_lost_is_accepted_once(
    shared_server: Server, status: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "REPEAT_PAUSES_S", (0.0, 0.0))
    run = secrets.token_hex(4)
    drafts = [Draft(f"lost-{run}", f"k{n}", deliver_after="1h", idempotency_key=f"{run}-{n}") for n in range(40)]
    drafts += [Draft(f"lost-{run}", f"n{n}", deliver_after="1h", name=f"{run}-{n}") for n in range(40)]
    gateway = Gateway(2, status)
    with Client(shared_server.url, transport=gateway) as duemq:
        sent = duemq.send_batch(drafts)
        assert all(isinstance(message, Message) and message.duplicate for message in sent)
        ids = [message.id for message in sent if isinstance(message, Message)]
        assert sorted(message.id for message in duemq.list(topic=f"lost-{run}")) == sorted(ids)
        assert duemq.get(f"{run}-0").payload == b"n0"
        other = [replace(draft, payload="other") for draft in (drafts[-40], drafts[0])]
        assert [type(refused) for refused in duemq.send_batch(other)] == [NameConflict, IdempotencyConflict]

        gateway.lost = 1
        with pytest.raises(Unreachable) as unnamed:
            duemq.send_batch([Draft(f"unnamed-{run}", deliver_after="1h")])
        assert unnamed.value.outcome_unknown and len(list(duemq.list(topic=f"unnamed-{run}"))) == 1


def test_async_round_trip(shared_server: Server) -> None:
    async def scenario() -> None:
        async with AsyncClient(shared_server.url) as duemq:
            drafts = [Draft("aio", f"m{i}", deliver_after="15s") for i in range(20)]
            sent = [m for m in await duemq.send_batch(drafts) if isinstance(m, AsyncMessage)]
            await asyncio.gather(*(message.cancel() for message in sent[:5]))
            await sent[5].reschedule(deliver_after=timedelta(hours=1))
            received = []
            async with asyncio.timeout(300), aclosing(duemq.tail("aio")) as records:
                async for record in records:
                    received.append(record)
                    if len(received) == 14:
                        break
            assert {record.id for record in received} == {message.id for message in sent[6:]}
            assert all(record.timestamp_ms >= (record.due_ms or 0) for record in received)
            assert (await sent[0].refresh()).status == "cancelled"
            assert (await sent[5].deliver_now()).status == "delivered"
            with pytest.raises(AlreadyDelivered):
                await sent[6].cancel()

    asyncio.run(scenario())
