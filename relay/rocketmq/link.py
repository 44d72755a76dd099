"""One producer of Apache's client, for one event loop: its channels, routes and signatures.

The client works in threads of its own. What it offers for sending takes one message a request, and costs several
wake-ups of threads for each; here a request has many.

Once its connection is lost it is of little use: gRPC waits up to two minutes before it connects again, and another
producer connects at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final

from duemq.model.destinations.destination import Credentials
from duemq.relay.base import Reply, Result
from duemq.relay.rocketmq.client import (
    ClientConfiguration,
    IllegalArgumentException,
    Producer,
    QueryRouteRequest,
    QueueSelector,
)
from duemq.relay.rocketmq.mapping import Publication
from duemq.relay.rocketmq.replies import CLOSED, NO_ROUTE, answer, failure, lost, may_be_passed_over
from duemq.relay.rocketmq.requests import Batches, Sending, send_request
from duemq.relay.rocketmq.tls import secure

_ATTEMPTS: Final = 3  # for each message, without a pause: the proxy may choose another broker
_CLOSE_S: Final = 3.0
_ROUTE_ATTEMPTS, _ROUTE_PAUSE_S = 10, 0.02


class _Producer(Producer):  # type: ignore[misc]
    """`selectors`: topic -> where to send its messages, as the last route says."""

    def __init__(self, configuration: ClientConfiguration, tls: Credentials | None) -> None:
        super().__init__(configuration, tls_enable=tls is not None)
        self.selectors: dict[str, QueueSelector] = {}
        if tls is not None:
            secure(self, tls)

    def update_queue_selector(self, topic: str, topic_route: Any) -> None:
        """The client calls it with each new route."""
        self.selectors[topic] = QueueSelector.producer_queue_selector(topic_route)

    def forget(self, topic: str) -> None:
        """The client itself asks for a route again after 30 s."""
        self.selectors.pop(topic, None)
        self.route_manager.remove_topic_route_data(topic)


class Link:
    """`configuration`: where, and who. `tls`: with those of its credentials; None = without.
    `timeout_s`: of a request. `requests`: that may be under way at once.
    `lost_at`: when a message failed by the connection first, on the monotonic clock; None while it is of use."""

    def __init__(
        self, configuration: ClientConfiguration, tls: Credentials | None, timeout_s: float, requests: int
    ) -> None:
        self.began = time.monotonic()
        self.lost_at: float | None = None
        self._configuration, self._timeout_s, self._requests = configuration, timeout_s, requests
        self._producer = _Producer(configuration, tls)
        self._loop = asyncio.get_running_loop()
        self._finding: dict[str, asyncio.Task[Reply | None]] = {}
        self._batches = Batches()
        self._waiting: set[asyncio.Future[Reply]] = set()
        self._under_way: set[asyncio.Task[None]] = set()
        self._woken = False
        self._closed = False

    async def start(self) -> None:
        await asyncio.to_thread(self._producer.startup)

    async def publish(self, publication: Publication) -> Reply:
        topic = publication.topic
        if topic not in self._producer.selectors and (reply := await self._find(topic)) is not None:
            return reply
        if self._closed:
            return CLOSED
        sending = Sending(publication, self._loop.create_future())
        self._waiting.add(sending.reply)
        self._batches.add(sending)
        if not self._woken:  # it begins in the next turn of the loop, when all that are sent in this one wait
            self._woken = True
            self._loop.call_soon(self._begin_requests)
        try:
            return await sending.reply
        finally:
            self._waiting.discard(sending.reply)

    async def close(self, *, patient: bool = False) -> None:
        """`patient`: what is under way is answered first, or times out. Idempotent."""
        if patient and self._waiting:
            await asyncio.wait(self._waiting, timeout=(_ATTEMPTS + 1) * self._timeout_s)
        if self._closed:
            return
        self._closed = True
        for reply in self._waiting:
            _resolve(reply, CLOSED)
        for request in self._under_way:
            request.cancel()
        with suppress(Exception):  # whatever it says: nothing is sent by it any more
            async with asyncio.timeout(_CLOSE_S):
                await asyncio.to_thread(self._producer.shutdown)

    # --- the way to a topic -----------------------------------------------------------------------------------------

    async def _find(self, topic: str) -> Reply | None:
        """Once for all who wait. Returns why it did not work."""
        finding = self._finding.get(topic)
        if finding is None:
            finding = self._finding[topic] = asyncio.create_task(self._find_once(topic), name=f"RocketMQ: find {topic}")
            finding.add_done_callback(lambda _: self._finding.pop(topic, None))
        return await asyncio.shield(finding)

    async def _find_once(self, topic: str) -> Reply | None:
        """Ask for the route, for the client does not tell why it has none; then have the client ask, which it does in
        the thread of its caller."""
        producer = self._producer
        request = QueryRouteRequest()
        request.topic.name = topic
        request.endpoints.CopyFrom(self._configuration.rpc_endpoints.endpoints)
        try:
            reply = await _answer(producer.rpc_client.query_topic_route_async(
                self._configuration.rpc_endpoints, request, metadata=producer.sign(),
                timeout=self._configuration.request_timeout,
            ))  # fmt: skip
        except Exception as error:
            reply = failure(error)
        except asyncio.CancelledError:
            if not self._closed:
                raise
            return CLOSED  # the client cancels what was asked
        if self._note(reply).result is not Result.ACCEPTED:
            return reply
        for _ in range(_ROUTE_ATTEMPTS):
            # An answer that is there before the client waits for it is handled in this thread, which has no event loop:
            # the client forgets it then. On a busy machine that happens several times in a row.
            with suppress(Exception):
                await asyncio.to_thread(producer.route_manager.retrieve_topic_route_data, topic)
                return None
            await asyncio.sleep(_ROUTE_PAUSE_S)
        return NO_ROUTE._replace(detail=f"the client has no route to the topic {topic}")

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

    async def _send(self, batch: Sequence[Sending], attempt: int = 1) -> None:
        reply = await self._reply(batch)
        alone = len(batch) > 1 and reply.result is Result.REJECTED  # one of them is at fault
        if attempt < _ATTEMPTS and (alone or may_be_passed_over(reply)):
            await asyncio.gather(*(self._send([one], attempt + 1) for one in batch if not one.reply.done()))
        else:
            for one in batch:
                _resolve(one.reply, reply)

    async def _reply(self, batch: Sequence[Sending]) -> Reply:
        producer, task, topic = self._producer, asyncio.current_task(), batch[0].publication.topic
        try:
            queue = producer.selectors[topic].select_next_queue()
            request = send_request(one.publication for one in batch)
            reply = await _answer(
                producer.rpc_client.send_message_async(
                    queue.endpoints, request, producer.sign(), timeout=self._timeout_s
                )
            )
        except (IllegalArgumentException, LookupError) as error:  # no queue that takes messages
            producer.forget(topic)
            reply = NO_ROUTE._replace(detail=str(error))
        except Exception as error:
            reply = failure(error)
        except asyncio.CancelledError:
            if task is not None and task.cancelling():
                raise
            reply = CLOSED  # the client has closed the channel
        return self._note(reply)

    def _note(self, reply: Reply) -> Reply:
        if not lost(reply):
            self.lost_at = None
        elif self.lost_at is None:
            self.lost_at = time.monotonic()
        return reply


async def _answer(asking: Future[Any]) -> Reply:
    """Raises AioRpcError."""
    waiting = asyncio.wrap_future(asking)
    try:
        return answer((await waiting).status)
    finally:
        # An error knows this frame, and a future the error: in a circle they would keep the call, and with it the
        # channel, which would connect for ever.
        del asking, waiting


def _resolve(reply: asyncio.Future[Reply], with_: Reply) -> None:
    if not reply.done():  # its message was cancelled
        reply.set_result(with_)
