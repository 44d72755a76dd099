"""Envelopes that a Kafka client made by hand: no header of a sender is taken for one of duemq's own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from duemq.bus.base import wall_clock
from duemq.bus.memory import MemoryLog
from duemq.cluster.shards.shard_reader import Query
from duemq.cluster.topics.internal_topics import BUFFER
from duemq.delay.node_backend import NodeBackend
from duemq.model.log.ledger import Answer
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.message import REDRIVE, Draft, Terms, schedule_frame
from duemq.model.messages.names import of_client
from duemq.model.messages.record import frame_of, pack_headers, unpack_record
from duemq.model.messages.row import ROW, frame_in, read_row, redriven_row, redrives_of, row_of
from duemq.proxy.gateway.gateway import CommandGateway
from tests.support.http.proxy_site import running_node

HEADERS = ("duemq-redrives", "duemq-id", "duemq-due", "duemq-attempt", "duemq-labels", "duemq-topic", "duemq-x")
VALUES = (b"x", b"7", b"", b"9" * 5_000)


@pytest.mark.parametrize("value", VALUES, ids=["text", "number", "empty", "huge"])
def test_a_senders_header_stops_no_shard_and_is_no_count_of_redrives(value: bytes, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path / "data", MemoryLog(), "", 1, 0.0) as node:
            gateway = CommandGateway(NodeBackend(node))
            await node.bus.create_topic("orders", 1)
            now = wall_clock()
            count, packed = pack_headers([*((name, value) for name in HEADERS), ("own", b"1")])
            draft = Draft("orders", b"pay", header_count=count, headers=packed, expires=now - 1_000)
            results = await node.bus.append({(BUFFER, 0): [schedule_frame(draft, now)]})
            id_ = node.ids.issue(0, now, results[BUFFER, 0].first_offset)
            await gateway.send([Draft("orders", b"other", now, name=of_client("other"), fingerprint=bytes(16))])
            state = await gateway.state(id_)
            assert state is not None and (state.status, state.redrives) == ("dead", 0)
            assert state.headers == (("own", b"1"),)
            listed = await gateway.find(Query(topic="orders", status="dead"))
            assert [one.id for one in listed.messages] == [id_]
            for terms in (None, Terms("", 3)):  # without terms its expiry stays, and it dies again
                (outcome,) = await gateway.change(REDRIVE, [id_], terms=terms)
                assert outcome.answer is Answer.OK
            state = await gateway.state(id_)
            assert state is not None and (state.status, state.redrives) == ("delivered", 2)
            records = await node.bus.read("orders", 0, 0, 10)
            (redriven,) = [record for record in (unpack_record(one.frame) for one in records) if record.value == b"pay"]
            names = [name for name, _ in redriven.headers]
            assert names == ["duemq-id", "duemq-due", "duemq-attempt", "duemq-redrives", "own"]
            assert redriven.header("duemq-redrives") == b"2"

    asyncio.run(scenario())


@pytest.mark.parametrize("value", [b"x", b"", b"-1", b"9" * 5_000], ids=["text", "empty", "negative", "huge"])
def test_a_row_that_an_older_duemq_made_of_such_an_envelope_is_read(value: bytes) -> None:
    ids = IdCodec(b"s" * 32)
    row = row_of(schedule_frame(Draft("orders", b"pay"), 5), ids.issue_bytes(0, 5, 7))
    record = unpack_record(frame_in(row))
    frame = frame_of(record.key, *pack_headers((*record.headers, ("duemq-redrives", value))), record.value)
    row = row[: ROW.size + len("orders")] + frame
    assert (redrives_of(row), read_row(row).redrives) == (0, 0)
    assert redrives_of(redriven_row(row)) == 1
