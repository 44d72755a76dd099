"""The proxy's `ShardReader`: reads shards in other processes through the nodes' internal HTTP."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakValueDictionary

import httpx
import orjson

from duemq.client.http.async_http import internal_http
from duemq.cluster.figures import Figures, SealedWindow
from duemq.cluster.shards.codec import (
    NAMES,
    READS_HEADER,
    import_from_json,
    named_message_from_json,
    query_to_json,
    search_part_from_json,
    state_from_json,
    token_headers,
)
from duemq.cluster.shards.shard_reader import MessageState, NamedMessage, Query, SearchPart
from duemq.cluster.shards.view import ClusterView
from duemq.election.base import Member, NodeState
from duemq.model.errors import Rejected, Unavailable
from duemq.storage.shard.records import ImportRecord
from duemq.storage.shard.topic_counts import TopicCount
from duemq.web.json_response import in_slices

_AVOID_S = 5.0  # for how long a node that did not answer is asked last
_QUEUE_S = 0.5
_POOL = httpx.Limits(max_connections=1024, max_keepalive_connections=64, keepalive_expiry=30)
# Concurrent requests to one node about one shard. Reads from a shard without a master wait until they time out; they
# must not use up the connections of all other reads.
_LANE = 64
_KEYS_TOGETHER = 1_000  # keys in one request
_STATES_TOGETHER = 8  # states at a time; each has a payload


def node_client(
    wait_s: float,
    token: str = "",
    transport: httpx.AsyncBaseTransport | None = None,
    connect_s: float = 0.5,
    tls: ssl.SSLContext | None = None,
) -> httpx.AsyncClient:
    """A client for the internal HTTP of nodes, which may delay an answer for up to `wait_s` seconds."""
    timeout = httpx.Timeout(wait_s + 1.0, connect=connect_s, pool=_QUEUE_S)
    headers = token_headers(token) | {READS_HEADER: NAMES}
    return internal_http(tls, timeout=timeout, limits=_POOL, headers=headers, transport=transport)


class RemoteReader:
    """See `ShardReader`.

    A shard's master is asked first, because it has applied all answered commands. Next are the other nodes with a
    replica, those least behind first. A node that withdrew from the cluster is never asked; a node that recently did
    not answer is asked last.
    """

    def __init__(self, view: ClusterView, http: httpx.AsyncClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._view, self._http, self._clock = view, http, clock
        self._silent: dict[str, float] = {}  # nodes that did not answer, and until when they are avoided
        # Limits on concurrent requests, by node and subject.
        self.lanes: WeakValueDictionary[tuple[str, str], asyncio.Semaphore] = WeakValueDictionary()

    async def state(self, shard: int, first_key: bytes, offset: int) -> MessageState | None:
        document = (await self._get(shard, "state", {"first_key": first_key.hex(), "offset": offset}))["state"]
        return None if document is None else state_from_json(document)

    async def messages_by_name(
        self, shard: int, names: Sequence[bytes], offset: int | None = None
    ) -> list[NamedMessage | None]:
        content = orjson.dumps({"names": [name.hex() for name in names], "offset": offset})
        return [named_message_from_json(one) for one in (await self._get(shard, "names", {}, content))["named"]]

    async def when_ended(self, shard: int, first_keys: Sequence[bytes], offset: int) -> list[int]:
        content = orjson.dumps({"first_keys": [key.hex() for key in first_keys]})
        at: list[int] = (await self._get(shard, "ended", {"offset": offset}, content))["at"]
        return at

    async def topics(self, shard: int, first_keys: Sequence[bytes], offset: int) -> list[str | None]:
        topics: list[str | None] = []
        for start in range(0, len(first_keys), _KEYS_TOGETHER):
            keys = first_keys[start : start + _KEYS_TOGETHER]
            content = orjson.dumps({"first_keys": [key.hex() for key in keys]})
            try:
                topics += (await self._get(shard, "topics", {"offset": offset}, content))["topics"]
            except Unavailable:  # perhaps the shard's nodes have an older version, which answers one key at a time
                for first in range(0, len(keys), _STATES_TOGETHER):
                    some = keys[first : first + _STATES_TOGETHER]
                    states = await asyncio.gather(*(self.state(shard, key, offset) for key in some))
                    topics += [None if state is None else state.topic for state in states]
        return topics

    async def topic_count(self, shard: int, topic: str) -> TopicCount | None:
        try:
            document = await self._get(shard, "topic-count", {"topic": topic})
        except Rejected:  # a node of an older version has no counts
            return None
        return None if document["pending"] is None else TopicCount(**document)

    async def holder(self, shard: int, name: bytes) -> bytes | None:
        first_key = (await self._get(shard, "holder", {"name": name.hex()}))["first_key"]
        return None if first_key is None else bytes.fromhex(first_key)

    async def import_record(self, shard: int, command_offset: int, offset: int) -> ImportRecord | None:
        return _import(await self._get(shard, "import", {"wanted": command_offset, "offset": offset}))

    async def import_of(self, shard: int, sha256: str, offset: int) -> ImportRecord | None:
        return _import(await self._get(shard, "import", {"sha256": sha256, "offset": offset}))

    async def imports(
        self, shard: int, state: str | None, below: str = "", limit: int | None = None, after: int | None = None
    ) -> tuple[int, list[ImportRecord]]:
        parameters = {"state": state, "below": below or None, "limit": limit}
        if after is not None:
            parameters["start"] = after + 1
        document = await self._get(
            shard, "imports", {name: value for name, value in parameters.items() if value is not None}
        )
        listed = await in_slices(document["imports"], import_from_json)
        if after is not None and listed and listed[0].offset <= after:  # a node of an older version ignores `after`
            count, records = await self.imports(shard, state, below)
            return count, [record for record in records if record.offset > after][:limit]
        return document.get("count", len(listed)), listed  # an older version returns all imports, without a count

    async def imported_ids(self, shard: int, command_offset: int, first: int, most: int) -> bytes | None:
        ids = (await self._get(shard, "imported-ids", {"wanted": command_offset, "first": first, "most": most}))["ids"]
        return None if ids is None else ids.encode()

    async def search(self, query: Query, after: Mapping[int, bytes]) -> Mapping[int, SearchPart]:
        parts_by_shard: dict[int, SearchPart] = {}
        tried: dict[int, set[str]] = {shard: set() for shard in after}
        reason: Unavailable | None = None
        while missing := after.keys() - parts_by_shard.keys():
            parts: dict[str, tuple[Member, list[int]]] = {}
            for shard in sorted(missing):
                node = next((one for one in self._nodes(shard) if one.name not in tried[shard]), None)
                if node is None:
                    raise reason or _nobody(shard)
                tried[shard].add(node.name)
                parts.setdefault(node.name, (node, []))[1].append(shard)
            answers = await asyncio.gather(
                *(
                    self._search(node, query, {shard: after[shard] for shard in shards})
                    for node, shards in parts.values()
                )
            )
            for answer in answers:
                if isinstance(answer, Unavailable):
                    reason = answer
                else:
                    parts_by_shard |= answer
        return parts_by_shard

    async def figures(self) -> list[Figures]:
        """The figures of all nodes that answer."""

        answers = await self._of_all("figures", {})
        return [Figures.from_json(one)._replace(node=name) for name, some in answers for one in some]

    async def sealed_windows(self, first: int, most: int) -> list[SealedWindow]:
        """The windows of all nodes that answer; see `Gateway.sealed_windows`."""
        answers = await self._of_all("windows", {"first": first, "most": most})
        return sorted(SealedWindow(*one) for _, some in answers for one in some)[:most]

    async def _of_all(self, what: str, query: Mapping[str, int]) -> list[tuple[str, Any]]:
        """The answers of the nodes, by name."""

        async def ask(node: Member) -> tuple[str, Any]:
            request = self._http.build_request("GET", f"{node.url}/internal/{what}", params=query)
            try:
                return node.name, await self._ask(node, what, request)
            except (Rejected, Unavailable):  # a node of an older version has none
                return node.name, ()

        return await asyncio.gather(*(ask(node) for node in self._view.members() if node.url))

    async def _search(
        self, node: Member, query: Query, after: Mapping[int, bytes]
    ) -> dict[int, SearchPart] | Unavailable:
        body = {"query": query_to_json(query), "after": {str(shard): key.hex() for shard, key in after.items()}}
        request = self._http.build_request("POST", f"{node.url}/internal/search", content=orjson.dumps(body))
        try:
            answer = await self._ask(node, "search", request)
        except Unavailable as error:
            return error
        return {int(shard): search_part_from_json(part) for shard, part in answer.items()}

    async def _get(self, shard: int, what: str, query: Mapping[str, str | int], content: bytes | None = None) -> Any:
        """The answer of the first node that gives one. Raises Unavailable if no node does."""
        method = "GET" if content is None else "POST"
        reason: Unavailable | None = None
        for node in self._nodes(shard):
            url = f"{node.url}/internal/shards/{shard}/{what}"
            request = self._http.build_request(method, url, params=query, content=content)
            try:
                return await self._ask(node, str(shard), request)
            except Unavailable as error:
                reason = error
        raise reason or _nobody(shard)

    @asynccontextmanager
    async def _place(self, node: Member, about: str) -> AsyncIterator[None]:
        """A place among the requests to a node about one subject. Raises Unavailable if no place is free in time."""
        name = node.name, about
        lane = self.lanes.get(name)
        if lane is None:
            lane = self.lanes[name] = asyncio.Semaphore(_LANE)
        try:
            async with asyncio.timeout(_QUEUE_S):
                await lane.acquire()
        except TimeoutError as error:
            raise Unavailable(f"{_LANE} requests to node {node.name} about the same shard are in flight") from error
        try:
            yield
        finally:
            lane.release()

    async def _ask(self, node: Member, about: str, request: httpx.Request) -> Any:
        """The node's answer. Raises Rejected as the node did, and Unavailable for errors that another node may not
        have."""
        try:
            async with self._place(node, about):
                response = await self._http.send(request)
        except httpx.PoolTimeout as error:
            # The request never reached the node, so this says nothing about the node.
            raise Unavailable("too many requests to the nodes are in flight here") from error
        except httpx.TransportError as error:
            now = self._clock()
            self._silent = {name: until for name, until in self._silent.items() if until > now}
            self._silent[node.name] = now + _AVOID_S
            raise Unavailable(f"node {node.name} did not answer: {error or type(error).__name__}") from error
        self._silent.pop(node.name, None)
        try:
            document = orjson.loads(response.content)
        except ValueError as error:
            raise Unavailable(f"node {node.name} answered {response.status_code} and no JSON") from error
        if response.is_success:
            return document
        if response.status_code < 500 and response.status_code != httpx.codes.UNAUTHORIZED:
            raise Rejected(document["code"], document["detail"], document.get("field"))
        raise Unavailable(f"node {node.name}: {document.get('detail', response.status_code)}")

    def _nodes(self, shard: int) -> Iterator[Member]:
        """The nodes to ask about a shard, best first. Reads the state of the cluster once, at the first step."""
        master, now = self._view.masters().get(shard), self._clock()
        holders = [
            member
            for member in self._view.members()
            if member.url and member.has(shard) and member.health.state is not NodeState.OUT
        ]

        def rank(member: Member) -> tuple[bool, bool, bool, int]:
            joining = member.health.state is NodeState.JOINING
            lag = member.health.lag.get(shard, 0)
            return self._silent.get(member.name, 0.0) > now, member.name != master, joining, lag

        return iter(sorted(holders, key=rank))


def _import(document: Any) -> ImportRecord | None:
    record = document["import"]
    return None if record is None else import_from_json(record)


def _nobody(shard: int) -> Unavailable:
    return Unavailable(f"there is no node that holds shard {shard}")
