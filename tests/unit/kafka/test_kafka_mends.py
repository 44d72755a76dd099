"""What aiokafka does wrong, beside time-outs: headers, offsets that are not known yet, and the topics it asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.errors import GroupLoadInProgressError
from aiokafka.protocol.commit import OffsetFetchRequest, OffsetFetchResponse_v3
from aiokafka.protocol.fetch import FetchResponse_v4
from aiokafka.protocol.metadata import MetadataRequest, MetadataResponse_v5
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from aiokafka.structs import TopicPartition

from duemq.bus.kafka.aiokafka_internals import know_topic, mend_header_names, mend_leaders, mend_missing_offsets
from tests.support.servers.aiokafka_parts import connect, follow_metadata, topics_of

HERE = TopicPartition("t", 0)


def batch(base: int, names: Iterable[bytes], compression: int = 0) -> bytes:
    """A record for each name of a header, which is as long as `AA`."""
    builder = DefaultRecordBatchBuilder(2, compression, 0, -1, -1, -1, 1 << 20)
    for number, _ in enumerate(names):
        builder.append(number, 1_000 + number, None, b"%d" % (base + number), [(f"A{number}", b"v")])
    raw = bytearray(builder.build())
    for number, name in enumerate(names):
        raw = raw.replace(b"A%d" % number, name)
    raw[0:8] = base.to_bytes(8, "big")
    raw[17:21] = calc_crc32c(bytes(raw[21:])).to_bytes(4, "big")
    return bytes(raw)


class Broker:
    """Answers one fetch with these batches, and no other."""

    def __init__(self, raw: bytes) -> None:
        self._raw, self._loop = raw, asyncio.get_running_loop()
        self._metadata_max_age_ms = 1_000
        self.cluster = self

    def leader_for_partition(self, _: object) -> int:
        return 1

    async def send(self, node: int, request: Any) -> Any:
        raw, self._raw = self._raw, b""
        if not raw:
            await asyncio.Event().wait()
        return FetchResponse_v4(0, [("t", [(0, 0, 100, 100, [], raw)])])


async def fetched(raw: bytes, start: int, most: int) -> list[Any]:
    state = SubscriptionState()
    state.assign_from_user([HERE])
    state.seek(HERE, start)
    fetcher = Fetcher(Broker(raw), state, isolation_level="read_committed")
    mend_header_names(fetcher)
    found: list[Any] = []
    try:
        while records := (await fetcher.fetched_records([], 0.05 if found else 5, most)).get(HERE):
            found += records
        assert state.subscription.assignment.state_value(HERE).position == found[-1].offset + 1
    finally:
        await fetcher.close()
    return found


@pytest.mark.parametrize("most", [1, 2, 100])
@pytest.mark.parametrize("start", [0, 1, 3])
def test_a_header_name_that_is_not_text_takes_no_record_with_it(most: int, start: int) -> None:
    raw = b"" if start else batch(0, [b"ok"])
    raw += batch(1, [b"ok", b"\xff\xfe", b"ok"]) + batch(4, [b"ok"]) + batch(5, [b"\xffk"])
    found = asyncio.run(fetched(raw, start, most))
    names = ["ok", "ok", "\ufffd\ufffd", "ok", "ok", "\ufffdk"]
    assert [(each.offset, each.value, each.headers) for each in found] == [
        (offset, b"%d" % offset, ((names[offset], b"v"),)) for offset in range(start, 6)
    ]
    assert {each.topic for each in found} == {"t"} and found[-1].timestamp == 1_000


def test_a_coordinator_that_is_loading_does_not_say_that_there_are_no_offsets() -> None:
    class Client:
        answer = OffsetFetchResponse_v3(0, [], 14)

        async def send(self, node: int, request: Any) -> Any:
            return self.answer

    async def run() -> None:
        client: Any = Client()
        mend_missing_offsets(client)
        with pytest.raises(GroupLoadInProgressError):
            await client.send(1, OffsetFetchRequest("g", None))
        client.answer = OffsetFetchResponse_v3(0, [], 0)
        assert (await client.send(1, OffsetFetchRequest("g", None))).topics == []

    asyncio.run(run())


def test_a_producer_asks_for_all_topics_it_sends_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duemq.bus.kafka.aiokafka_internals._MANY_TOPICS", 3)
    there = ["a", "b", "c", "d"]
    asked: list[MetadataRequest] = []

    class Connection:
        async def send(self, request: MetadataRequest) -> Any:
            asked.append(request)
            known: list[Any] = [
                (0, name, False, [(0, 0, 1, [1], [1], [])]) for name in there if name in (topics_of(request) or there)
            ]
            return MetadataResponse_v5(0, [(1, "localhost", 9, None)], "cluster", 1, known)

    async def run() -> list[set[str]]:
        client: Any = AIOKafkaClient()
        mend_leaders(client)
        connect(client, connection := Connection())
        client.cluster.update_metadata(await connection.send(MetadataRequest(None)))
        following = follow_metadata(client)
        await client.force_metadata_update()
        for name in ("a", "b", "new", "a", "newer"):
            if name not in there:
                there.append(name)
            await know_topic(client, name)
            assert client.cluster.leader_for_partition(TopicPartition(name, 0)) == 1
            assert client.cluster.leader_for_partition(TopicPartition("a", 0)) == 1
            if name == "new":
                there.remove("b")
                await client.force_metadata_update()
        following.cancel()
        return [set(topics_of(request)) for request in asked[2:]]

    assert asyncio.run(run()) == [{"a", "b", "new"}, {"a", "b", "new"}, {"a", "new", "newer"}]
