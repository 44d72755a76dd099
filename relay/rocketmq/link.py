"""One producer of Apache's client, which works in threads of its own, for one event loop.

Once its connection is lost it is of little use: gRPC waits up to two minutes before it connects again, and another
producer connects at once.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from typing import Any, Final

from duemq.model.destinations.destination import Credentials
from duemq.relay.base import Reply, Result
from duemq.relay.rocketmq.client import (
    ClientConfiguration,
    IllegalStateException,
    MessagingResultChecker,
    Producer,
    QueryRouteRequest,
)
from duemq.relay.rocketmq.mapping import Publication
from duemq.relay.rocketmq.replies import ACCEPTED, CLOSED, failure, lost
from duemq.relay.rocketmq.tls import secure

_ATTEMPTS: Final = 3  # of the client, for each message
_CLOSE_S: Final = 3.0


class _StoppableProducer(Producer):  # type: ignore[misc]
    """Once it stops, the client has no routes any more, and repeats each message under way: it would ask for the route,
    and wait for the answer in the one thread that can receive it, which serves all producers of the process."""

    stopping = False

    def _retrieve_topic_route_data(self, topic: str) -> Any:
        if self.stopping:
            raise IllegalStateException("the producer stops")
        return super()._retrieve_topic_route_data(topic)


class Link:
    """`configuration`: where, and who. `tls`: with those of its credentials; None = without.
    `lost_at`: when a message failed by the connection first, on the monotonic clock; None while it is of use."""

    def __init__(self, configuration: ClientConfiguration, tls: Credentials | None) -> None:
        self.began = time.monotonic()
        self.lost_at: float | None = None
        self._configuration = configuration
        self._producer = _StoppableProducer(configuration, tls_enable=tls is not None)
        if tls is not None:
            secure(self._producer, tls)
        self._loop = asyncio.get_running_loop()
        self._topics: set[str] = set()
        self._finding: dict[str, asyncio.Task[Reply | None]] = {}
        self._waiting: set[asyncio.Future[Reply]] = set()
        self._answered: deque[tuple[asyncio.Future[Reply], Future[Any]]] = deque()
        self._woken = False
        self._closed = False

    async def start(self) -> None:
        await asyncio.to_thread(self._producer.startup)

    async def publish(self, publication: Publication) -> Reply:
        topic = publication.topic
        if topic not in self._topics and (reply := await self._find(topic)) is not None:
            return reply
        if self._closed:
            return CLOSED
        reply_: asyncio.Future[Reply] = self._loop.create_future()
        self._waiting.add(reply_)
        try:
            sending = self._producer.send_async(publication)
        except Exception as error:
            self._waiting.discard(reply_)
            return failure(error)
        sending.add_done_callback(partial(self._on_answer, reply_))
        try:
            return await reply_
        finally:
            self._waiting.discard(reply_)

    async def close(self, *, patient: bool = False) -> None:
        """`patient`: what is under way is answered first, or times out. Idempotent."""
        if patient and self._waiting:
            await asyncio.wait(self._waiting, timeout=(_ATTEMPTS + 1) * self._configuration.request_timeout)
        if self._closed:
            return
        self._closed = self._producer.stopping = True
        for reply in self._waiting:
            if not reply.done():
                reply.set_result(CLOSED)
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
            asking = producer.rpc_client.query_topic_route_async(
                self._configuration.rpc_endpoints, request, metadata=producer.sign(),
                timeout=self._configuration.request_timeout,
            )  # fmt: skip
            MessagingResultChecker.check((await asyncio.wrap_future(asking)).status)
        except Exception as error:
            return self._note(failure(error))
        except asyncio.CancelledError:
            if not self._closed:
                raise
            return CLOSED  # the client cancels what was asked
        for _ in range(_ATTEMPTS):
            # An answer that is there before the client waits for it is handled in this thread, which has no event loop:
            # the client forgets it then.
            with suppress(Exception):
                await asyncio.to_thread(producer.route_manager.retrieve_topic_route_data, topic)
                self._topics.add(topic)
                return None
        return Reply(Result.AWAY, "no route", f"the client has no route to the topic {topic}")

    # --- answers ----------------------------------------------------------------------------------------------------

    def _on_answer(self, reply: asyncio.Future[Reply], sent: Future[Any]) -> None:
        """In a thread of the client. One call into the loop serves all answers that come before it runs."""
        self._answered.append((reply, sent))
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._take_answers)

    def _take_answers(self) -> None:
        self._woken = False  # before the first is taken: what comes later wakes the loop again
        while self._answered:
            reply, sent = self._answered.popleft()
            error = CancelledError() if sent.cancelled() else sent.exception()
            if error is None:
                answer, self.lost_at = ACCEPTED, None
            else:
                answer = self._note(failure(error))
            if not reply.done():  # its message was cancelled
                reply.set_result(answer)

    def _note(self, reply: Reply) -> Reply:
        if not lost(reply):
            self.lost_at = None
        elif self.lost_at is None:
            self.lost_at = time.monotonic()
        return reply
