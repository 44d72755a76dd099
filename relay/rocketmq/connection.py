"""Uses a producer from Apache's client in an event loop: its channels, routes and signatures.

The client works in its own threads. Its API sends one message per request, which wakes up several threads; this module
sends many messages in one request.

A producer is hardly usable once its TCP connection is lost: gRPC waits up to two minutes before it reconnects, whereas
a new producer connects at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final

from duemq.relay.base import Reply, Result, resolve
from duemq.relay.connect.shared_connect import SharedConnect
from duemq.relay.network.resolver import Resolver
from duemq.relay.rocketmq.channels import Channels
from duemq.relay.rocketmq.client import (
    ClientConfiguration,
    IllegalArgumentException,
    Producer,
    QueryRouteRequest,
    QueueSelector,
)
from duemq.relay.rocketmq.mapping import Publication
from duemq.relay.rocketmq.replies import (
    CLOSED,
    NO_ROUTE,
    answer,
    failure,
    lost,
    may_be_passed_over,
    silent,
)
from duemq.relay.rocketmq.requests import PendingSend, SendQueue, send_request

_ATTEMPTS: Final = 3  # per message, without a pause: the proxy may choose another broker
_CLOSE_S: Final = 3.0
_RENEW_S: Final = 2.0
"""How long a lost connection has time to recover before it is replaced, and how old it must at least be then."""
_TIMED_OUT: Final = "DEADLINE_EXCEEDED"
_ROUTE_ATTEMPTS, _ROUTE_PAUSE_S = 10, 0.02


class _Producer(Producer):  # type: ignore[misc]
    """A producer. `selectors`: topic -> queue selector, from the last route."""

    def __init__(self, configuration: ClientConfiguration, channels: Channels) -> None:
        super().__init__(configuration)
        self.selectors: dict[str, QueueSelector] = {}
        channels.serve(self)

    def update_queue_selector(self, topic: str, topic_route: Any) -> None:
        """Store a new route. The client calls it."""
        self.selectors[topic] = QueueSelector.producer_queue_selector(topic_route)

    def forget(self, topic: str) -> None:
        """Drop a route, so that it is requested again. The client itself reloads it only after 30 s."""
        self.selectors.pop(topic, None)
        self.route_manager.remove_topic_route_data(topic)


class RocketMqConnection:
    """A connection. `configuration`: endpoint and credentials. `known`: addresses by name, for the channels; names from
    routes are added. `timeout_s`: time limit for a message; a request may take half of it, and a check for a silent
    proxy a quarter. `requests`: limit for concurrent requests. `lost_at`: when a message first failed because of the
    connection, on the monotonic clock; None if the connection is not lost."""

    def __init__(
        self, configuration: ClientConfiguration, channels: Channels, resolver: Resolver,
        known: dict[str, list[str]], timeout_s: float, requests: int,
    ) -> None:  # fmt: skip
        self.began = time.monotonic()
        self.lost_at: float | None = None
        self._configuration, self._requests = configuration, requests
        self._request_s, self._probe_s = timeout_s / 2, timeout_s / 4
        self._resolver, self._known = resolver, known
        self._producer = _Producer(configuration, channels)
        self._probing = SharedConnect(self._probe, "RocketMQ")
        self._loop = asyncio.get_running_loop()
        self._finding: dict[str, asyncio.Task[Reply | None]] = {}
        self._batches = SendQueue()
        self._waiting: set[asyncio.Future[Reply]] = set()
        self._under_way: set[asyncio.Task[None]] = set()
        self._woken = False
        self._closed = False

    @property
    def usable(self) -> bool:
        """Whether to use the connection. True for a while after it was lost, because it may recover."""
        now = time.monotonic()
        return self.lost_at is None or min(now - self.lost_at, now - self.began) <= _RENEW_S

    async def start(self) -> None:
        await asyncio.to_thread(self._producer.startup)

    async def publish(self, publication: Publication) -> Reply:
        topic = publication.topic
        if topic not in self._producer.selectors and (reply := await self._find(topic)) is not None:
            return reply
        if self._closed:
            return CLOSED
        sending = PendingSend(publication, self._loop.create_future())
        self._waiting.add(sending.reply)
        self._batches.add(sending)
        if not self._woken:  # requests begin in the next turn of the loop, when all messages from this turn wait
            self._woken = True
            self._loop.call_soon(self._begin_requests)
        try:
            return await sending.reply
        finally:
            self._waiting.discard(sending.reply)

    async def close(self, *, patient: bool = False) -> None:
        """Close the connection. `patient`: first wait until open requests are answered or time out. Idempotent."""
        if patient and self._waiting:
            await asyncio.wait(self._waiting, timeout=(_ATTEMPTS + 1) * self._request_s)
        if self._closed:
            return
        self._closed = True
        for reply in self._waiting:
            resolve(reply, CLOSED)
        for request in self._under_way:
            request.cancel()
        with suppress(Exception):  # errors do not matter: nothing is sent on the connection any more
            async with asyncio.timeout(_CLOSE_S):
                await asyncio.to_thread(self._producer.shutdown)

    # --- the way to a topic -----------------------------------------------------------------------------------------

    async def _find(self, topic: str) -> Reply | None:
        """Find the route to a topic, only once for all waiting callers. Returns the reason if it fails."""
        finding = self._finding.get(topic)
        if finding is None:
            finding = self._finding[topic] = asyncio.create_task(self._find_once(topic), name=f"RocketMQ: find {topic}")
            finding.add_done_callback(lambda _: self._finding.pop(topic, None))
        return await asyncio.shield(finding)

    async def _find_once(self, topic: str) -> Reply | None:
        """Request the route directly, because the client does not report why it has none. Then let the client request
        it, which it does in the thread that calls it."""
        producer = self._producer
        reply = await self._ask_route(topic, min(self._configuration.request_timeout, self._request_s))
        if self._track(reply).result is not Result.ACCEPTED:
            return reply
        for _ in range(_ROUTE_ATTEMPTS):
            # If the answer arrives before the client waits for it, the client handles it in this thread, which has no
            # event loop, and loses it. On a busy machine, that happens several times in a row.
            with suppress(Exception):
                await asyncio.to_thread(producer.route_manager.retrieve_topic_route_data, topic)
                return None
            await asyncio.sleep(_ROUTE_PAUSE_S)
        return NO_ROUTE._replace(detail=f"the client has no route to the topic {topic}")

    async def _ask_route(self, topic: str, timeout_s: float) -> Reply:
        producer, request = self._producer, QueryRouteRequest()
        request.topic.name = topic
        request.endpoints.CopyFrom(self._configuration.rpc_endpoints.endpoints)
        try:
            response = await _response(producer.rpc_client.query_topic_route_async(
                self._configuration.rpc_endpoints, request, metadata=producer.sign(), timeout=timeout_s
            ))  # fmt: skip
            for queue in response.message_queues:
                for place in queue.broker.endpoints.addresses:
                    if place.host not in self._known:
                        async with asyncio.timeout(self._probe_s):
                            self._known[place.host] = await self._resolver.addresses(place.host)
            return answer(response.status)
        except Exception as error:  # if the proxy does not answer this request, no message is at fault
            return silent(failure(error))
        except asyncio.CancelledError:
            if not self._closed:
                raise
            return CLOSED  # the client cancelled the call

    async def _probe(self) -> Reply:
        """Check whether the proxy answers at all, with whatever result."""
        return await self._ask_route(next(iter(self._producer.selectors), "duemq"), self._probe_s)

    # --- requests ---------------------------------------------------------------------------------------------------

    def _begin_requests(self) -> None:
        self._woken = False
        while len(self._under_way) < self._requests and not self._closed and (batch := self._batches.next()):
            request = self._loop.create_task(self._send(batch), name="send to RocketMQ")
            self._under_way.add(request)
            request.add_done_callback(self._on_end)

    def _on_end(self, request: asyncio.Task[None]) -> None:
        self._under_way.discard(request)
        self._begin_requests()

    async def _send(self, batch: Sequence[PendingSend], attempt: int = 1) -> None:
        reply = await self._reply(batch)
        if reply.status == _TIMED_OUT and lost(await self._probing()):
            reply = silent(reply)
            for waiting in iter(self._batches.next, []):  # messages that were not sent yet
                for one in waiting:
                    resolve(one.reply, reply)
        alone = len(batch) > 1 and reply.result is Result.REJECTED  # one message is at fault: send each alone
        if attempt < _ATTEMPTS and (alone or may_be_passed_over(reply)):
            await asyncio.gather(*(self._send([one], attempt + 1) for one in batch if not one.reply.done()))
        else:
            for one in batch:
                resolve(one.reply, reply)

    async def _reply(self, batch: Sequence[PendingSend]) -> Reply:
        producer, task, topic = self._producer, asyncio.current_task(), batch[0].publication.topic
        try:
            queue = producer.selectors[topic].select_next_queue()
            request = send_request(one.publication for one in batch)
            reply = answer((await _response(
                producer.rpc_client.send_message_async(
                    queue.endpoints, request, producer.sign(), timeout=self._request_s
                )
            )).status)  # fmt: skip
        except (IllegalArgumentException, LookupError) as error:  # the route has no writable queue
            producer.forget(topic)
            reply = NO_ROUTE._replace(detail=str(error))
        except Exception as error:
            reply = failure(error)
        except asyncio.CancelledError:
            if task is not None and task.cancelling():
                raise
            reply = CLOSED  # the client has closed the channel
        return self._track(reply)

    def _track(self, reply: Reply) -> Reply:
        if not lost(reply):
            self.lost_at = None
        elif self.lost_at is None:
            self.lost_at = time.monotonic()
        return reply


async def _response(asking: Future[Any]) -> Any:
    """Wait for a response. Raises AioRpcError."""
    waiting = asyncio.wrap_future(asking)
    try:
        return await waiting
    finally:
        # The error refers to this frame, and the futures refer to the error. The reference cycle would keep the call
        # alive, and with it the channel, which would reconnect forever.
        del asking, waiting
