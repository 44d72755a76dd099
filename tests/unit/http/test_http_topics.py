"""Reading topics over HTTP: pages, cursors, places, long polls and event streams, on the memory bus."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import httpx
import orjson
import pytest
from prometheus_client import CollectorRegistry

from duemq.bus.base import TopicInfo
from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.bus.topic_cursor import MAX_PARTITIONS, decode_cursor, encode_cursor
from duemq.model.errors import Rejected
from duemq.model.messages.record import StoredRecord, pack_record
from duemq.proxy.app import create_app
from duemq.proxy.gateway.base import Gateway
from duemq.proxy.request.ingress import Ingress, MessageLimits
from duemq.proxy.response.render import records_bytes
from duemq.storage.shard.topic_counts import TopicCount
from duemq.web.settings import HttpSettings
from tests.support.patience import WITHIN_S

ID = "Aa0-_" + "z" * 27
SYSTEM = {"duemq-id": ID, "duemq-due": "1795255200000", "duemq-attempt": "1"}
Get = Callable[..., Awaitable[httpx.Response]]
Scenario = Callable[["Site"], Awaitable[None]]


class Site:
    """An application over a memory bus with the topic `t` of three partitions."""

    def __init__(self) -> None:
        self.bus, self.closing = MemoryBus(MemoryLog()), asyncio.Event()
        self.troubles: dict[str, str] = {}
        self.counts: dict[str, TopicCount] = {}
        gateway = SimpleNamespace(
            bus=self.bus,
            topic_lateness=lambda topic: {"count": 0},
            trouble=lambda topic: self.troubles.get(topic),
            pending=self.pending,
        )
        settings = HttpSettings(max_wait_s=60)
        self.app = create_app(
            cast(Gateway, gateway), Ingress(MessageLimits()), settings, CollectorRegistry(), lambda: 0, self.closing
        )
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app=self.app), base_url="http://duemq")

    async def pending(self, topic: str) -> TopicCount | None:
        return self.counts.get(topic)

    async def append(self, partition: int, *payloads: str) -> None:
        frames = [
            pack_record(None, ((name, value.encode()) for name, value in SYSTEM.items()), p.encode()) for p in payloads
        ]
        await self.bus.append({("t", partition): frames})

    async def page(self, **query: Any) -> tuple[list[str], str]:
        response = await self.http.get("/v1/topics/t/records", params=query)
        assert response.status_code == 200, response.text
        return [record["payload"] for record in response.json()["records"]], response.json()["cursor"]

    async def stream(self, sent: asyncio.Queue[bytes], gone: asyncio.Event) -> None:
        """What a server does with an event stream: `sent` gets the body, `gone` says that the client went."""
        headers = [(b"accept", b"text/event-stream")]
        path = "/v1/topics/t/records"
        scope = {"type": "http", "method": "GET", "path": path, "headers": headers, "query_string": b""}

        async def receive() -> dict[str, Any]:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message.get("body") or not message.get("more_body"):
                sent.put_nowait(message.get("body", b""))

        await cast(Any, self.app)(scope, receive, send)


async def someone_waits() -> None:
    while not any(task.get_name() == "topic growth" for task in asyncio.all_tasks()):  # noqa: ASYNC110
        await asyncio.sleep(0)


def with_site(scenario: Scenario) -> None:
    async def run() -> None:
        site = Site()
        await site.bus.create_topic("t", 3)
        async with asyncio.timeout(WITHIN_S), site.http:
            await scenario(site)

    asyncio.run(run())


def test_pages_follow_on_one_another_across_partitions() -> None:
    async def scenario(site: Site) -> None:
        await site.append(0, *(f"a{i}" for i in range(50)))
        await site.append(2, "c0", "c1")
        first, cursor = await site.page(max=10)
        assert first == ["c0", "c1", *(f"a{i}" for i in range(8))]  # the short partition leaves its share to the long
        rest: list[str] = []
        while True:
            more, cursor = await site.page(max=7, after=cursor)
            if not more:
                break
            rest += more
        assert rest == [f"a{i}" for i in range(8, 50)]
        topic = (await site.http.get("/v1/topics/t")).json()
        assert (topic["records"], topic["end_offsets"], topic["cursor"]) == (52, [50, 0, 2], cursor)

    with_site(scenario)


def test_a_cursor_is_not_stored_over_one_that_another_process_stored() -> None:
    async def scenario(site: Site) -> None:
        await site.append(0, "a", "b")
        place = "/v1/topics/t/consumers/billing"
        (_, first), (_, second) = await site.page(max=1), await site.page(max=2)

        async def put(cursor: str, expected: str | None) -> httpx.Response:
            headers = {} if expected is None else {"x-duemq-last-cursor": expected}
            return await site.http.put(place, json={"cursor": cursor}, headers=headers)

        assert (await put(first, second)).status_code == 204  # there is none yet
        assert (await put(second, first)).status_code == 204
        refused = await put(second, first)
        assert (refused.status_code, refused.json()["code"]) == (409, "consumer_in_use")
        assert (await site.http.get(place)).json() == {"cursor": second}
        assert (await put(first, None)).status_code == 204  # whoever takes over

    with_site(scenario)


def test_a_consumer_goes_on_at_its_place_and_after_wins() -> None:
    async def scenario(site: Site) -> None:
        await site.append(0, "a", "b", "c")
        _, cursor = await site.page(max=1)
        place = "/v1/topics/t/consumers/billing"
        none = await site.http.get(place)
        assert (none.status_code, none.content) == (204, b"")
        assert (await site.http.put(place, json={"cursor": cursor})).status_code == 204
        assert (await site.http.get(place)).json() == {"cursor": cursor}
        assert (await site.http.get("/v1/topics/t/consumers/no name")).json()["code"] == "bad_field"
        for _ in range(2):
            assert (await site.page(consumer="billing"))[0] == ["b", "c"]
        _, end = await site.page()
        assert (await site.page(consumer="billing", after=end))[0] == []
        assert len((await site.page(consumer="other"))[0]) == 3
        for body in ({"cursor": "nonsense"}, {"cursor": encode_cursor("other", [0])}):
            assert (await site.http.put(place, json=body)).json()["code"] == "bad_cursor"

    with_site(scenario)


def test_a_topic_nobody_wrote_to_is_empty_and_can_be_waited_for() -> None:
    async def scenario(site: Site) -> None:
        answer = (await site.http.get("/v1/topics/none/records")).json()
        assert answer["records"] == []
        assert (await site.http.get("/v1/topics/none")).json()["code"] == "unknown_topic"
        waiting = asyncio.create_task(
            site.http.get("/v1/topics/none/records", params={"after": answer["cursor"], "wait": "10s"})
        )
        await someone_waits()
        await site.bus.create_topic("none", 1)
        await site.bus.append({("none", 0): [pack_record(b"\xff", (), b"x")]})
        (record,) = (await waiting).json()["records"]
        assert (record["payload"], record["key_base64"], record["headers"]) == ("x", "/w==", {})

    with_site(scenario)


def test_a_poll_ends_at_its_time_and_when_the_server_closes() -> None:
    async def scenario(site: Site) -> None:
        assert (await site.page(wait="20ms"))[0] == []
        waiting = asyncio.create_task(site.page(wait="60s"))
        await someone_waits()
        assert not waiting.done()
        site.closing.set()
        assert (await waiting)[0] == []

    with_site(scenario)


@pytest.mark.parametrize("end", ["client", "server"])
def test_an_event_stream_carries_records_with_their_cursors(end: str) -> None:
    async def scenario(site: Site) -> None:
        await site.append(0, "old", "line\nfeed")
        sent: asyncio.Queue[bytes] = asyncio.Queue()
        gone = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(site.stream(sent, gone), name="stream")
            assert await sent.get() == b""
            first, second, _ = (await sent.get()).decode().split("\n\n")
            await site.append(1, "new")
            third = (await sent.get()).decode()
            (gone if end == "client" else site.closing).set()
        assert await sent.get() == b"" and sent.empty()
        payloads = []
        for event in (first, second, third):
            id_, data = event.strip().split("\n")
            payloads.append(orjson.loads(data.removeprefix("data: "))["payload"])
        assert payloads == ["old", "line\nfeed", "new"]
        assert (await site.page(after=first.split("\n")[0].removeprefix("id: ")))[0] == ["line\nfeed", "new"]
        assert id_.removeprefix("id: ") == (await site.page())[1]

    with_site(scenario)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/v1/topics/t/records?max=0", "bad_query"),
        ("/v1/topics/t/records?max=10001", "bad_query"),
        ("/v1/topics/t/records?wait=soon", "bad_query"),
        ("/v1/topics/t/records?consumer=a%20b", "bad_query"),
        ("/v1/topics/t/records?after=%21%21", "bad_cursor"),
        ("/v1/topics/t/records?after=", "bad_cursor"),
        ("/v1/topics/a%20b/records", "bad_topic"),
        ("/v1/topics/duemq.ledger/records", "forbidden"),
    ],
)
def test_a_read_that_is_not_understood_is_refused(path: str, code: str) -> None:
    async def scenario(site: Site) -> None:
        assert (await site.http.get(path)).json()["code"] == code

    with_site(scenario)


def test_a_cursor_is_good_for_its_topic_only() -> None:
    info = TopicInfo("t", 3, (0, 0, 0), (9, 9, 2**47))
    text = encode_cursor("t", [5, 0, 2**40])
    assert decode_cursor(text, "t", info, "after") == [5, 0, 2**40]
    assert decode_cursor(encode_cursor("t", [5]), "t", info, "after") == [5, 0, 0]
    beyond, padded = encode_cursor("t", [10, 0, 0]), text + "="
    for wrong in (
        encode_cursor("u", [5, 0, 0]),
        beyond,
        padded,
        text[:-1],
        text + "AAAA",
        "é",
        "",
        text[:6] + "!" + text[7:],
    ):
        with pytest.raises(Rejected, match=r"cursor|recreated"):
            decode_cursor(wrong, "t", info, "after")


@pytest.mark.parametrize("key", [None, b"", b'quo"te', b"\xfe"])
@pytest.mark.parametrize("payload", [b"", 'a"\n\u2028☃'.encode(), b"\xff\x00"])
@pytest.mark.parametrize(
    "system",
    [
        SYSTEM,
        SYSTEM | {"duemq-attempt": "12"},
        SYSTEM | {"own": "grüße", "own2": ""},
        SYSTEM | {"duemq-id": '"' * 32},
        {"duemq-due": "1"},
        {},
    ],
)
def test_a_record_reads_the_same_by_template_and_by_dict(
    key: bytes | None, payload: bytes, system: dict[str, str]
) -> None:
    frame = pack_record(key, ((name, value.encode()) for name, value in system.items()), payload)
    (text,) = records_bytes(3, [StoredRecord(7, 1_795_255_200_000, frame)])
    record = orjson.loads(text)
    assert (record["partition"], record["offset"], record["timestamp_ms"]) == (3, 7, 1_795_255_200_000)
    assert record["headers"] == system
    if payload == b"\xff\x00":
        assert record["payload_base64"] == "/wA="
    else:
        assert record["payload"].encode() == payload
    if key == b"\xfe":
        assert record["key_base64"] == "/g=="
    else:
        assert record["key"] == (None if key is None else key.decode())


@pytest.mark.parametrize("more", [(), (("own", None), ("own2", b""))])
@pytest.mark.parametrize("system", [SYSTEM, {}])
def test_null_and_empty_are_told_apart(system: dict[str, str], more: tuple[tuple[str, bytes | None], ...]) -> None:
    for value, shown in ((None, None), (b"", "")):
        frame = pack_record(None, [*((name, text.encode()) for name, text in system.items()), *more], value)
        record = orjson.loads(records_bytes(0, [StoredRecord(0, 0, frame)])[0])
        assert record["payload"] == shown
        assert record["headers"] == system | {name: None if text is None else "" for name, text in more}


def test_a_header_that_is_not_text_is_escaped() -> None:
    frame = pack_record(None, (("h", b"a\xff"),), b"")
    assert orjson.loads(records_bytes(0, [StoredRecord(0, 0, frame)])[0])["headers"] == {"h": "a\\xff"}


def test_a_topic_says_what_is_wrong_with_it_and_is_not_read_where_its_ends_are_unknown() -> None:
    async def scenario(site: Site) -> None:
        assert (await site.http.get("/v1/topics/t")).json()["trouble"] is None
        assert (await site.http.get("/v1/topics/forbidden")).json()["trouble"] is None
        site.troubles["forbidden"] = "duemq's user may not make it"
        said = (await site.http.get("/v1/topics/forbidden")).json()
        assert (said["code"], said["trouble"]) == ("unknown_topic", site.troubles["forbidden"])
        assert site.troubles["forbidden"] in said["detail"]  # which is what `duemq topic get` shows
        site.troubles["t"] = "it is compacted and accepts only messages with a key"
        said = (await site.http.get("/v1/topics/t")).json()
        assert (said["trouble"], said["records"]) == (site.troubles["t"], 0)

        async def leaderless(topic: str) -> TopicInfo:
            return TopicInfo("t", 3, (), (), "no broker leads partition: 1")

        site.bus.topic = leaderless  # type: ignore[method-assign]
        said = (await site.http.get("/v1/topics/t")).json()
        assert (said["trouble"], said["records"], said["cursor"]) == ("no broker leads partition: 1", None, None)
        answer = await site.http.get("/v1/topics/t/records")
        assert answer.status_code == 503 and "no broker leads partition: 1" in answer.json()["detail"]

    with_site(scenario)


def test_a_topic_that_no_cursor_could_speak_of_is_refused_and_the_largest_other_one_is_read() -> None:
    async def scenario(site: Site) -> None:
        for name, partitions in (("most", MAX_PARTITIONS), ("more", MAX_PARTITIONS + 1)):
            await site.bus.create_topic(name, partitions)
        page = (await site.http.get("/v1/topics/most/records")).json()
        again = await site.http.get("/v1/topics/most/records", params={"after": page["cursor"]})
        assert again.json() == page
        for path in ("/v1/topics/more/records", f"/v1/topics/more/records?after={page['cursor']}"):
            answer = await site.http.get(path)
            assert (answer.status_code, answer.json()["code"]) == (409, "not_supported")
        assert (await site.http.get("/v1/topics/more")).json()["cursor"] is None

    with_site(scenario)


def test_a_list_of_many_topics_is_made_in_short_turns() -> None:
    async def scenario(site: Site) -> None:
        for number in range(500):
            await site.bus.create_topic(f"many-{number:03}", 1)
        asked = asyncio.create_task(site.http.get("/v1/topics"))
        turns = 0
        while not asked.done():
            turns += 1
            await asyncio.sleep(0)
        names = [topic["topic"] for topic in (await asked).json()["topics"]]
        assert names == [*(f"many-{number:03}" for number in range(500)), "t"]
        assert turns > 500 // 20

    with_site(scenario)


def test_a_topic_says_how_many_messages_wait_also_before_it_exists() -> None:
    async def scenario(site: Site) -> None:
        async def shown(topic: str) -> Any:
            return (await site.http.get(f"/v1/topics/{topic}")).json()

        assert (await shown("t"))["pending"] is None, "not known"
        site.counts |= {"t": TopicCount(7, 2), "new": TopicCount(3, 0), "none": TopicCount(0, 0)}
        assert (await shown("t")).items() >= {"pending": 7, "pending_unread": 2}.items()
        new = {"partitions": 0, "records": 0, "cursor": None, "pending": 3, "pending_unread": 0}
        assert (await shown("new")).items() >= new.items()
        assert (await shown("none"))["code"] == "unknown_topic"

    with_site(scenario)
