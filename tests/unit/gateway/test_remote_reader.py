"""The proxy's reader: which node is asked, and what becomes of those that do not answer."""

from __future__ import annotations

import asyncio
import gc
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

import httpx
import orjson
import pytest

from duemq.cluster.shards.codec import (
    NAMES,
    READS_HEADER,
    TOKEN_HEADER,
    query_from_json,
    query_to_json,
    search_part_from_json,
    search_part_to_json,
    state_from_json,
    state_to_json,
)
from duemq.cluster.shards.paging import merge, shorten
from duemq.cluster.shards.shard_reader import MessageState, Query, SearchPart
from duemq.election.base import Member, NodeHealth, NodeState
from duemq.model.errors import Rejected, Unavailable
from duemq.model.messages.key import make_key
from duemq.proxy.gateway.remote_reader import RemoteReader, node_client

KEY = make_key(1000, 7, 0)
READY, OUT, JOINING = NodeState.READY, NodeState.OUT, NodeState.JOINING
DOWN = httpx.Response(503, json={"code": "unavailable", "detail": "shard 0 is catching up"})


class Nodes:
    """A cluster whose nodes answer as `answers` says, by name: a response, or an error to raise."""

    def __init__(self, *members: Member, masters: Mapping[int, str] | None = None) -> None:
        self._members, self._masters = members, masters or {}
        self.answers: dict[str, httpx.Response | Exception] = {}
        self.asked: list[str] = []
        self.requests: list[httpx.Request] = []
        self.now = 0.0

    def members(self) -> Sequence[Member]:
        return self._members

    def masters(self) -> Mapping[int, str]:
        return self._masters

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.host)
        self.requests.append(request)
        answer = self.answers.get(request.url.host, httpx.Response(200, json={"at": [5]}))
        if isinstance(answer, Exception):
            raise answer
        return answer


def node(name: str, state: NodeState = READY, lag: int = 0, holds: frozenset[int] | None = None) -> Member:
    return Member(name, f"http://{name}", holds=holds, health=NodeHealth(state, lag={0: lag}))


def reading(nodes: Nodes, scenario: Callable[[RemoteReader], Awaitable[None]]) -> None:
    async def run() -> None:
        async with node_client(1.0, "secret", httpx.MockTransport(nodes.answer)) as http:
            await scenario(RemoteReader(nodes, http, lambda: nodes.now))

    asyncio.run(run())


def test_the_master_is_asked_then_those_that_follow_most_closely_and_never_who_is_out() -> None:
    nodes = Nodes(
        node("far", lag=9), node("near", lag=1), node("new", JOINING), node("out", OUT),
        node("other", holds=frozenset()), node("master"), masters={0: "master"},
    )  # fmt: skip
    nodes.answers = dict.fromkeys(("master", "near", "far", "new"), DOWN)

    async def scenario(reader: RemoteReader) -> None:
        with pytest.raises(Unavailable, match="new: shard 0 is catching up"):
            await reader.when_ended(0, [KEY], 7)
        assert nodes.asked == ["master", "near", "far", "new"]
        assert nodes.requests[0].headers[TOKEN_HEADER] == "secret"
        with pytest.raises(Unavailable, match="no node that holds shard 1"):
            await RemoteReader(Nodes(node("a", holds=frozenset((0,)))), httpx.AsyncClient()).holder(1, b"n:x")

    reading(nodes, scenario)


def test_a_node_that_does_not_answer_is_asked_last_for_a_while() -> None:
    nodes = Nodes(node("a"), node("b"), masters={0: "a"})
    nodes.answers["a"] = httpx.ConnectError("refused")

    async def scenario(reader: RemoteReader) -> None:
        assert [await reader.when_ended(0, [KEY], 7) for _ in range(3)] == [[5]] * 3
        assert nodes.asked == ["a", "b", "b", "b"]
        nodes.now += 10
        del nodes.answers["a"]
        assert await reader.when_ended(0, [KEY], 7) == [5]
        assert nodes.asked[4:] == ["a"]

    reading(nodes, scenario)


def test_a_request_that_had_to_wait_here_does_not_make_its_node_silent() -> None:
    nodes = Nodes(node("a"), node("b"), masters={0: "a"})
    nodes.answers = {"a": httpx.PoolTimeout("no connection is free"), "b": httpx.PoolTimeout("no connection is free")}

    async def scenario(reader: RemoteReader) -> None:
        with pytest.raises(Unavailable, match="too many requests"):
            await reader.when_ended(0, [KEY], 5)
        nodes.answers.clear()
        nodes.asked.clear()
        assert await reader.when_ended(0, [KEY], 5) == [5]
        assert nodes.asked == ["a"]

    reading(nodes, scenario)


def test_a_shard_that_holds_its_readers_back_takes_no_connections_from_others() -> None:
    nodes = Nodes(node("a"), masters={0: "a", 1: "a"})
    go, waiting = asyncio.Event(), 0

    async def answer(request: httpx.Request) -> httpx.Response:
        nonlocal waiting
        if "/shards/0/" in request.url.path:
            waiting += 1
            await go.wait()
        return httpx.Response(200, json={"at": [5]})

    async def run() -> None:
        async with node_client(60.0, transport=httpx.MockTransport(answer)) as http:
            reader = RemoteReader(nodes, http)
            stuck = [asyncio.create_task(reader.when_ended(0, [KEY], 5)) for _ in range(300)]
            while waiting < 64:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert await reader.when_ended(1, [KEY], 5) == [5]
            refused = [task for task in asyncio.as_completed(stuck[64:])]
            for one in refused:
                with pytest.raises(Unavailable, match="about the same shard"):
                    await one
            assert waiting == 64
            go.set()
            assert await asyncio.gather(*stuck[:64]) == [[5]] * 64
            del stuck, refused, one  # their errors hold on to what they came from
            gc.collect()
            assert not reader.lanes

    asyncio.run(run())


def test_a_refusal_is_passed_on_and_a_wrong_token_is_no_refusal_of_the_request() -> None:
    nodes = Nodes(node("a"), node("b"), masters={0: "a"})
    nodes.answers["a"] = httpx.Response(400, json={"code": "bad_query", "detail": "no", "field": "f"})

    async def scenario(reader: RemoteReader) -> None:
        with pytest.raises(Rejected) as raised:
            await reader.when_ended(0, [KEY], 7)
        assert (raised.value.code, raised.value.field) == ("bad_query", "f")
        nodes.answers["a"] = httpx.Response(401, json={"code": "unauthorised", "detail": "no"})
        assert await reader.when_ended(0, [KEY], 7) == [5]

    reading(nodes, scenario)


def state(number: int) -> MessageState:
    return MessageState(
        f"m{number}", "scheduled", "t", number, b"\xff", ("a", "b"), (("h", b"\x00"), ("h", b"")), payload=b"\xfe"
    )


def test_topics_are_asked_for_in_parts_and_an_older_node_tells_one_at_a_time() -> None:
    nodes = Nodes(node("new"), masters={0: "new"})
    nodes.answers["new"] = httpx.Response(200, json={"topics": ["t"] * 1_000})
    older = Nodes(node("old"), masters={0: "old"})
    state = state_to_json(MessageState("i", "scheduled", "t", 5, payload=b"p"), names=True)

    def answer_of_older(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/topics"):
            return httpx.Response(404, text="Not Found")
        older.requests.append(request)
        return httpx.Response(200, json={"state": state})

    older.answer = answer_of_older  # type: ignore[method-assign]

    async def new_node(reader: RemoteReader) -> None:
        assert await reader.topics(0, [KEY] * 2_000, 7) == ["t"] * 2_000

    async def old_node(reader: RemoteReader) -> None:
        assert await reader.topics(0, [KEY] * 20, 7) == ["t"] * 20

    reading(nodes, new_node)
    reading(older, old_node)
    assert len(nodes.requests) == 2 and len(older.requests) == 20


def test_a_search_goes_to_each_master_and_what_one_does_not_answer_to_another() -> None:
    found = {shard: SearchPart([(make_key(shard, 0, 0), state(shard))], KEY if shard else None) for shard in range(3)}

    def answer(request: httpx.Request) -> httpx.Response:
        nodes.asked.append(request.url.host)
        if request.url.host == "a":
            return DOWN
        document = orjson.loads(request.content)
        assert query_from_json(document["query"]) == Query("t", key="k")
        return httpx.Response(
            200, json={shard: search_part_to_json(found[int(shard)], names=True) for shard in document["after"]}
        )

    nodes = Nodes(node("a"), node("b"), node("c", holds=frozenset((0,))), masters={0: "a", 1: "b", 2: "a"})

    async def run() -> None:
        async with node_client(1.0, transport=httpx.MockTransport(answer)) as http:
            reader = RemoteReader(nodes, http)
            assert await reader.search(Query("t", key="k"), dict.fromkeys(range(3), KEY)) == found
            with pytest.raises(Unavailable, match="catching up"):
                await RemoteReader(Nodes(node("a")), http).search(Query("t"), {0: KEY})

    asyncio.run(run())
    assert sorted(nodes.asked) == ["a", "a", "b", "b"]


def test_values_come_back_as_they_were() -> None:
    for found in (SearchPart([(KEY, state(1)), (KEY, state(2))], KEY), SearchPart([], None)):
        assert search_part_from_json(orjson.loads(orjson.dumps(search_part_to_json(found, names=True)))) == found
    query = Query("t", "dead", "k", "l", 1, 2, 3, "c")
    assert query_from_json(orjson.loads(orjson.dumps(query_to_json(query)))) == query


def test_an_older_node_is_asked_as_before_and_sees_a_prefix_that_it_must_refuse() -> None:
    assert not query_to_json(Query("t")).keys() & {"newest", "topic_prefix", "name_prefix", "caller"}
    query = Query(topic_prefix="orders.", name_prefix="o-", caller="me")
    assert query_from_json(query_to_json(query)) == query


def test_names_come_to_a_proxy_that_says_it_reads_them_and_unknown_fields_are_left_out() -> None:
    named = replace(state(1), name=b"n:order-42")
    document = orjson.loads(orjson.dumps(state_to_json(named, names=True)))
    assert state_from_json(document | {"of_a_later_version": 1}) == named
    assert "name" not in state_to_json(named, names=False), "0.1 refuses a state with a field that it does not know"
    assert node_client(0.1).headers[READS_HEADER] == NAMES


def test_null_comes_back_and_an_older_process_reads_it_as_empty() -> None:
    null = replace(state(1), headers=(("h", None), ("e", b"")), payload=None, has_null=True)
    document = orjson.loads(orjson.dumps(state_to_json(null, names=True)))
    assert state_from_json(document) == null
    assert [b64decode(document["payload"]), *(b64decode(value) for _, value in document["headers"])] == [b""] * 3


def test_what_is_surely_not_on_the_page_is_left_out_and_the_page_is_the_same() -> None:
    dues = {0: [1, 4, 5, 9], 1: [2, 3, 4, 4, 8], 2: [4, 7]}
    found = {
        shard: SearchPart([(make_key(due, at, 0), state(due)) for at, due in enumerate(of)], None)
        for shard, of in dues.items()
    }
    for limit in range(1, 12):
        short = shorten(found, limit)
        assert merge(list(short.values()), limit)[0] == merge(list(found.values()), limit)[0]
        assert sum(len(part.messages) for part in short.values()) <= limit + 1
