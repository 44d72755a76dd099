"""Sends messages to Redis or Valkey: to streams, lists and channels, on a single server or a cluster.

All waiting messages are sent in one pipeline, and the next pipeline starts when that one is answered. As a result, many
messages share a turn of the event loop, a packet, and an fsync on the server. A pipeline may take half of the
destination's timeout, and a message waits at most that long for its pipeline. So if a server is silent, the reply is
AWAY before any message times out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis, RedisCluster
from redis.exceptions import (
    AuthenticationError,
    ConnectionError,
    NoScriptError,
    RedisClusterException,
    RedisError,
)

from duemq.client.consumer.message import Message
from duemq.model.destinations.destination import Credentials, Destination
from duemq.model.destinations.redis import RedisOptions
from duemq.relay.base import NotMapped, Reply, Result, resolve
from duemq.relay.connect.shared_connect import SharedConnect
from duemq.relay.network.resolver import Resolver
from duemq.relay.outlets import RelayPolicy
from duemq.relay.redis.client import Client, open_client
from duemq.relay.redis.commands import Commands, Words, name_of, with_script
from duemq.relay.redis.replies import (
    ADDED,
    CLOSED,
    KNOWN,
    NO_RECEIVER,
    NOT_DURABLE,
    NOT_WRITTEN,
    not_durable,
    refusal,
)
from duemq.relay.tls import UnusableCredentials

_MAX_BATCH: Final = 500  # messages in one pipeline


class _Sending(NamedTuple):
    words: Words
    answer: asyncio.Future[Reply]
    since: float


class RedisOutlet:
    concurrency = 1_000

    def __init__(self, destination: Destination, credentials: Credentials, policy: RelayPolicy) -> None:
        assert isinstance(destination.options, RedisOptions)
        self._destination, self._options, self._credentials = destination, destination.options, credentials
        self._commands = Commands(destination.options)
        self._wait = _wait(destination.options, destination.timeout // 6)  # runs twice if the script is not loaded yet
        self._batch_s = destination.timeout / 2000
        self._resolver = Resolver(policy.private_networks)
        self._client: Client | None = None
        self._old_layout = False
        self._renewed = SharedConnect(self._renew_layout, "Redis")
        self._waiting: deque[_Sending] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._closed = False

    async def send(self, message: Message) -> Reply:
        if self._closed:
            return CLOSED
        try:
            words = self._commands.words(message)
        except NotMapped as error:
            return error.reply
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Reply] = loop.create_future()
        self._waiting.append(_Sending(words, answer, loop.time()))
        if self._sender is None:
            # The task starts in the next turn of the loop, when all messages sent in this turn are waiting.
            self._sender = loop.create_task(self._send_all(), name=f"Redis of {self._destination.name}")
        return await answer

    async def close(self) -> None:
        self._closed = True
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.gather(self._sender, return_exceptions=True)
        await self._renewed.cancel()
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()
        await self._resolver.close()

    async def _send_all(self) -> None:
        """Send batches until no message waits."""
        try:
            while batch := self._next_batch():
                await self._send_batch(batch)
        finally:
            self._sender = None
            self._answer_waiting(CLOSED)  # messages wait here only if this task was cancelled

    def _next_batch(self) -> list[_Sending]:
        """The messages for the next pipeline. Leaves out cancelled messages, and those that have waited too long."""
        batch: list[_Sending] = []
        latest = asyncio.get_running_loop().time() - self._batch_s
        while self._waiting and len(batch) < _MAX_BATCH:
            sending = self._waiting.popleft()
            if sending.since < latest:
                resolve(sending.answer, NOT_WRITTEN)
            elif not sending.answer.done():
                batch.append(sending)
        return batch

    async def _send_batch(self, batch: Sequence[_Sending]) -> None:
        replies = [CLOSED] * len(batch)  # used if this task is cancelled
        try:
            replies = await self._replies([sending.words for sending in batch])
        except Exception as error:  # raised in the senders, because this task is not awaited
            for sending in batch:
                if not sending.answer.done():
                    sending.answer.set_exception(error)
        finally:
            for sending, reply in zip(batch, replies, strict=True):
                resolve(sending.answer, reply)

    def _answer_waiting(self, reply: Reply) -> None:
        for sending in self._waiting:
            resolve(sending.answer, reply)
        self._waiting.clear()

    async def _replies(self, commands: list[Words]) -> list[Reply]:
        error: Exception | None = None
        try:
            async with asyncio.timeout(self._batch_s):
                try:
                    replies = [self._reply(result) for result in await self._results(commands)]
                except (RedisError, RedisClusterException, OSError, UnusableCredentials) as failure:
                    error = await self._reason(failure)
        except TimeoutError:
            error = error or TimeoutError(f"no answer within {self._batch_s:g} s")
        if error is not None:  # neither the messages in the batch nor those waiting are at fault
            trouble = refusal(error)._replace(result=Result.AWAY)
            replies = [trouble] * len(commands)
            self._answer_waiting(trouble)
        if self._options.cluster:
            self._old_layout = any(reply.result is Result.AWAY and reply.status != NOT_DURABLE for reply in replies)
        return replies

    async def _reason(self, error: Exception) -> Exception:
        """The reason for an error. A server that requires a password closes the connection if a client sends long
        commands without one; a ping then reveals the reason."""
        if isinstance(error, ConnectionError) and isinstance(self._client, Redis):
            try:
                await self._client.ping()
            except AuthenticationError as reason:
                return reason
            except (RedisError, OSError):
                pass
        return error

    async def _results(self, commands: list[Words]) -> list[Any]:
        results = await self._pipeline(commands)
        unknown = [place for place, result in enumerate(results) if isinstance(result, NoScriptError)]
        if unknown:
            again = await self._pipeline([with_script(commands[place]) for place in unknown])
            for place, result in zip(unknown, again, strict=True):
                results[place] = result
        return results

    async def _pipeline(self, commands: list[Words]) -> list[Any]:
        if self._client is None:
            self._client = open_client(self._destination, self._options, self._credentials, self._resolver)
        if self._old_layout:
            await self._renewed()
        if self._wait is not None and isinstance(self._client, RedisCluster):
            return await self._durable_in_cluster(self._client, self._wait, commands)
        pipeline = self._client.pipeline(transaction=False)
        for words in commands:
            pipeline.execute_command(*words)
        if self._wait is None:
            return await pipeline.execute(raise_on_error=False)
        pipeline.execute_command(*self._wait)
        *results, waited = await pipeline.execute(raise_on_error=False)
        return [self._unless_missing(result, waited) for result in results]

    async def _renew_layout(self) -> None:
        """Reload the cluster's slot layout: the client loads it only once, and a pipeline does not reload it when the
        cluster loses a node. If the reload first asks a silent node, it takes longer than a batch may take, so the next
        batch waits for the same reload."""
        if isinstance(self._client, RedisCluster):
            with suppress(RedisError, RedisClusterException, OSError):
                await self._client.aclose()
                await self._client.initialize()
                self._old_layout = False

    async def _durable_in_cluster(self, client: RedisCluster, wait: Words, commands: list[Words]) -> list[Any]:
        """Execute the commands, and on each node wait until those sent to it are durable."""
        await client.initialize()
        nodes = [client.nodes_manager.get_node_from_slot(client.keyslot(name_of(words))) for words in commands]
        asked = {node.name: node for node in nodes}
        pipeline = client.pipeline()
        for words, node in zip(commands, nodes, strict=True):
            pipeline.execute_command(*words, target_nodes=node)
        for node in asked.values():
            pipeline.execute_command(*wait, target_nodes=node)
        # Without redirections: if a slot has moved, the client would send the command to another node without a WAIT.
        results = await pipeline.execute(raise_on_error=False, allow_redirections=False)
        waited = dict(zip(asked, results[len(commands) :], strict=True))
        return [
            self._unless_missing(result, waited[node.name])
            for result, node in zip(results[: len(commands)], nodes, strict=True)
        ]

    def _unless_missing(self, result: Any, waited: Any) -> Any:
        missing = not_durable(waited, self._options.fsync, self._options.replicas)
        return result if missing is None or isinstance(result, Exception) else missing

    def _reply(self, result: Any) -> Reply:
        if isinstance(result, Exception):
            return refusal(result, cluster=self._options.cluster, by_key=self._commands.by_key)
        if isinstance(result, Reply):
            return result
        if result is None:
            return KNOWN
        if result == 0 and self._options.require_receiver:
            return NO_RECEIVER
        return ADDED


def _wait(options: RedisOptions, timeout_ms: int) -> Words | None:
    """The last command in each pipeline, or None. The node answers it once the commands before it are on disk or on
    replicas."""
    if options.fsync:
        return "WAITAOF", 1, options.replicas, timeout_ms
    return ("WAIT", options.replicas, timeout_ms) if options.replicas else None
