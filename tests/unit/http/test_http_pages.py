"""Pages of records are read and rendered as their client takes them, and end wherever they must with a good cursor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from duemq.bus.base import TopicInfo
from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.bus.topic_cursor import decode_cursor
from duemq.model.errors import LogFailed
from duemq.model.messages.record import StoredRecord, pack_record
from duemq.proxy.response.ending import Endings
from duemq.proxy.response.record_page import PageResponse, read_piece
from duemq.proxy.response.render import records_bytes
from duemq.proxy.response.topic_reader import TopicReader
from duemq.web.admission.admission import Admission, Share

KIB, MIB = 1 << 10, 1 << 20


class Client:
    """Asks for one page, and takes its parts; `gone` makes it leave, `on_part` is called with the bytes so far."""

    def __init__(self, version: str = "1.1", method: str = "GET") -> None:
        self.scope = {"type": "http", "http_version": version, "method": method}
        self.gone, self.closing = asyncio.Event(), asyncio.Event()
        self.on_part: Callable[[int], None] = lambda size: None
        self.headers: dict[bytes, bytes] = {}
        self.parts: list[bytes] = []
        self.ended = False

    async def receive(self) -> dict[str, str]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.headers = dict(message["headers"])
            return
        assert not self.ended
        self.parts.append(bytes(message["body"]))
        self.ended = not message.get("more_body")
        self.on_part(sum(map(len, self.parts)))

    @property
    def whole(self) -> bytes:
        assert self.ended
        return b"".join(self.parts)

    async def get(self, bus: MemoryBus, most: int = 10_000, offsets: tuple[int, ...] = ()) -> Share:
        admission = Admission()
        share = admission.enter({"path": "/v1/topics/t/records"})
        reader = TopicReader(bus, "t", offsets)
        page = PageResponse(reader, await read_piece(reader, most, share), most, share, Endings(self.closing))
        await page(self.scope, self.receive, self.send)
        return share


async def filled(*sizes: int, partitions: int = 1) -> MemoryBus:
    """Records of these sizes, in partitions by turns; each says which one it is."""
    bus = MemoryBus(MemoryLog())
    await bus.create_topic("t", partitions)
    for number, size in enumerate(sizes):
        frame = pack_record(None, (), (b"%d " % number).ljust(size, b"x"))
        await bus.append({("t", number % partitions): [frame]})
    return bus


def place(whole: bytes, partitions: int) -> list[int]:
    info = TopicInfo("t", partitions, (0,) * partitions, (1 << 30,) * partitions)
    return decode_cursor(orjson.loads(whole)["cursor"], "t", info, "after")


def numbers(whole: bytes) -> list[int]:
    return [int(record["payload"].split()[0]) for record in orjson.loads(whole)["records"]]


@pytest.mark.parametrize("sizes", [(10,) * 3, (10,) * 2_000, (1, 300_000, 2, 700_000, 100_000, 3), (64 * KIB,) * 40])
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_pages_have_every_record_once_however_large_they_are(
    sizes: tuple[int, ...], partitions: int, version: str
) -> None:
    async def run() -> list[int]:
        bus, offsets, found = await filled(*sizes, partitions=partitions), (0,) * partitions, list[int]()
        while True:
            client = Client(version)
            await client.get(bus, offsets=offsets)
            assert max(map(len, client.parts)) <= 256 * KIB
            length = client.headers.get(b"content-length")
            assert length == b"%d" % len(client.whole) or (version == "1.1" and length is None)
            page = numbers(client.whole)
            if not page:
                return found
            found += page
            offsets = tuple(place(client.whole, partitions))

    found = asyncio.run(run())
    assert sorted(found) == list(range(len(sizes)))
    for partition in range(partitions):
        assert [number for number in found if number % partitions == partition] == sorted(
            number for number in found if number % partitions == partition
        )


@pytest.mark.parametrize("most", [1, 499, 500, 501, 1_999, 2_000, 10_000])
def test_a_page_has_as_many_records_as_were_asked_for(most: int) -> None:
    async def run() -> list[int]:
        client = Client()
        await client.get(await filled(*[2 * KIB] * 2_000), most)
        return numbers(client.whole)

    assert asyncio.run(run()) == list(range(min(most, 2_000)))


def test_a_page_ends_at_8_mib() -> None:
    async def run() -> int:
        client = Client()
        await client.get(await filled(*[64 * KIB] * 200))
        return len(numbers(client.whole))

    assert 128 <= asyncio.run(run()) <= 144


def counting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of the frames that each turn rendered."""
    turns: list[int] = []

    def counted(partition: int, some: list[StoredRecord]) -> list[bytes]:
        turns.append(sum(len(one.frame) for one in some))
        return records_bytes(partition, some)

    monkeypatch.setattr("duemq.proxy.response.record_page.records_bytes", counted)
    return turns


def test_for_a_client_that_does_not_read_one_piece_is_rendered_and_none_is_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = counting(monkeypatch)

    async def run() -> int:
        client, never = Client(), asyncio.Event()
        admission = Admission()
        share = admission.enter({"path": "/v1/topics/t/records"})

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body" and not message["body"]:  # as a transport that is full
                await never.wait()

        reader = TopicReader(await filled(*[64 * KIB] * 100), "t", [0])
        page = PageResponse(reader, await read_piece(reader, 10_000, share), 10_000, share, Endings(client.closing))
        task = asyncio.create_task(page(client.scope, client.receive, send))
        await asyncio.sleep(0.05)
        task.cancel()
        return admission.bytes

    assert asyncio.run(run()) == 0
    assert len(turns) == 1 and turns[0] <= 256 * KIB


def test_turns_are_short_and_others_get_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of 500 records was one of 8 MiB where each had 256 KiB: 10 ms in which nothing was delivered."""
    turns = counting(monkeypatch)

    async def run() -> int:
        client, others = Client(), 0
        bus = await filled(*[64 * KIB] * 40)

        async def other() -> None:
            nonlocal others
            while not client.ended:
                others += 1
                await asyncio.sleep(0)

        await asyncio.gather(client.get(bus), other())
        return others

    assert asyncio.run(run()) >= len(turns) >= 10
    assert max(turns) <= 256 * KIB


def test_the_page_of_a_client_that_has_gone_is_not_read_on() -> None:
    async def run() -> int:
        client = Client()
        client.on_part = lambda size: client.gone.set() if size > MIB else None
        await client.get(await filled(*[64 * KIB] * 100))
        return sum(map(len, client.parts))

    assert asyncio.run(run()) < 2 * MIB


def test_a_page_ends_early_when_the_server_closes() -> None:
    async def run() -> bytes:
        client = Client()
        client.on_part = lambda size: client.closing.set()
        await client.get(await filled(*[64 * KIB] * 100))
        return client.whole

    whole = asyncio.run(run())
    found = numbers(whole)
    assert 0 < len(found) < 40 and found == list(range(len(found)))
    assert place(whole, 1) == [len(found)]


def test_a_page_whose_rest_cannot_be_read_ends_with_the_cursor_of_what_was_sent() -> None:
    async def run() -> bytes:
        bus, client = await filled(*[64 * KIB] * 100, partitions=2), Client()
        read, calls = bus.read, 0

        async def failing(*arguments: Any) -> list[StoredRecord]:
            nonlocal calls
            calls += 1
            if calls > 3:  # the second partition of the second piece, after the place in the first one moved
                raise LogFailed("the disk is gone")
            return await read(*arguments)

        bus.read = failing  # type: ignore[method-assign, assignment]
        share = await client.get(bus, offsets=(0, 0))
        assert share.bytes <= MIB
        return client.whole

    whole = asyncio.run(run())
    places = [0, 0]
    for number in numbers(whole):
        places[number % 2] += 1
    assert sum(places) > 0 and place(whole, 2) == places


def test_the_head_of_a_long_page_comes_without_its_records() -> None:
    async def run() -> tuple[bytes, dict[bytes, bytes]]:
        client = Client(method="HEAD")
        await client.get(await filled(*[64 * KIB] * 40))
        return client.whole, client.headers

    whole, headers = asyncio.run(run())
    assert whole == b"" and headers[b"content-type"] == b"application/json"
