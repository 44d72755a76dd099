"""A connection to RabbitMQ, with channels that publish many messages at once.

pika's callbacks become futures. Errors from the broker are never raised: the future for a publication gets a `Reply`.
Each caller that waits for a message has one future.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from pika import ConnectionParameters, spec
from pika.adapters.asyncio_connection import AsyncioConnection

from duemq.relay.base import Reply
from duemq.relay.network.resolver import Resolver
from duemq.relay.rabbitmq.io_services import IoServices
from duemq.relay.rabbitmq.mapping import Publication
from duemq.relay.rabbitmq.replies import ACCEPTED, NACK, SILENT, blocked, closed, no_route
from duemq.relay.rabbitmq.shared_reply import SharedReply

_CLOSE_S: Final = 5.0


class Publisher:
    """A channel in confirm mode. `on_late`: called with the id of a message that the broker accepted after the callers
    had stopped waiting."""

    def __init__(
        self, channel: Any, mandatory: bool, on_late: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._channel, self._mandatory, self._on_late = channel, mandatory, on_late
        self._tag, self._lowest = 0, 1  # the last published delivery tag; the first one that may be unanswered
        self._by_tag: dict[int, SharedReply] = {}
        self._by_id: dict[str, SharedReply] = {}
        self._returned: dict[str, Reply] = {}
        self.open = True
        channel.add_on_close_callback(self._on_close)
        channel.add_on_return_callback(self._on_return)

    async def start(self) -> None:
        """Put the channel into confirm mode."""
        ready = asyncio.Event()
        self._channel.add_on_close_callback(lambda *_: ready.set())
        self._channel.confirm_delivery(self._on_answer, lambda _: ready.set())
        await ready.wait()

    def publish(self, id_: str, publication: Publication) -> asyncio.Future[Reply]:
        """Publish a message, unless one with the same id is still unanswered. Returns a future for the broker's
        answer."""
        confirm = self._by_id.get(id_)
        if confirm is None:
            self._channel.basic_publish(
                publication.exchange, publication.routing_key, publication.body, publication.properties, self._mandatory
            )
            self._tag += 1
            confirm = self._by_tag[self._tag] = self._by_id[id_] = SharedReply(id_)
        return confirm.wait()

    def close(self) -> None:
        if self.open and self._channel.is_open:
            self._channel.close()

    def answer_all(self, reply: Reply) -> None:
        """Give every waiting caller this reply. The messages still count as unanswered by the broker."""
        for confirm in self._by_tag.values():
            confirm.answer(reply)

    def _on_answer(self, frame: Any) -> None:
        method = frame.method
        tag: int = method.delivery_tag
        reply = ACCEPTED if type(method) is spec.Basic.Ack else NACK
        if not method.multiple:
            self._resolve(tag, reply)
            while self._lowest <= self._tag and self._lowest not in self._by_tag:
                self._lowest += 1
            return
        for each in range(self._lowest, (tag or self._tag) + 1):
            self._resolve(each, reply)
        self._lowest = max(self._lowest, (tag or self._tag) + 1)

    def _resolve(self, tag: int, reply: Reply) -> None:
        confirm = self._by_tag.pop(tag, None)
        if confirm is None:
            return
        del self._by_id[confirm.id]
        if self._returned:
            reply = self._returned.pop(confirm.id, reply)
        if not confirm.answer(reply) and reply is ACCEPTED:
            self._on_late(confirm.id)

    def _on_return(self, _: Any, method: Any, properties: Any, body: bytes) -> None:
        """Store the reply until the message's confirm arrives: the broker sends the return before the confirm."""
        id_ = properties.message_id
        if id_ in self._by_id:
            self._returned[id_] = no_route(method)

    def _on_close(self, _: Any, reason: Any) -> None:
        self.open = False
        reply = closed(reason)
        self.answer_all(reply)
        self._by_tag.clear()
        self._by_id.clear()


class RabbitMqConnection:
    """A connection. `silent_s`: if no data arrives for this time, the connection counts as lost; heartbeats are more
    frequent.

    `blocked`: why the broker accepts no messages (it is short of memory or disk); empty if it accepts them."""

    def __init__(self, resolver: Resolver, silent_s: float) -> None:
        self._loop, self._silent_s = asyncio.get_running_loop(), silent_s
        self._opened: asyncio.Future[Any] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._io = IoServices(self._loop, resolver)
        self._connection: Any = None
        self._publishers: list[Publisher] = []
        self.blocked = ""
        self.publisher: Publisher | None = None
        """The channel for all messages that do not need a separate channel."""

    @property
    def usable(self) -> bool:
        return self.publisher is not None and self.publisher.open

    @property
    def open(self) -> bool:
        return self._connection is not None and bool(self._connection.is_open)

    @property
    def frame_bytes(self) -> int:
        """The size of the largest frame payload that the broker accepts."""
        return int(self._connection.params.frame_max) - 8

    async def connect(self, parameters: ConnectionParameters) -> None:
        """Connect. If that fails, raises the error that pika reports."""
        self._connection = AsyncioConnection(
            parameters, on_open_callback=lambda _: self._opened_with(None), on_open_error_callback=self._on_failure,
            on_close_callback=self._on_close, custom_ioloop=self._io,
        )  # fmt: skip
        self._connection.add_on_connection_blocked_callback(self._on_blocked)
        self._connection.add_on_connection_unblocked_callback(self._on_unblocked)
        try:
            reason = await self._opened
        except asyncio.CancelledError:
            self._io.abort()  # pika cannot close a connection while it is connecting
            raise
        if reason is not None:
            raise reason
        self._watch()

    async def new_publisher(self, mandatory: bool, on_late: Callable[[str], None]) -> Publisher:
        """Open a channel. It may already be closed again when this returns."""
        opened: asyncio.Future[Any] = self._loop.create_future()

        def done(channel: Any, *_: Any) -> None:
            if not opened.done():
                opened.set_result(channel)

        channel = self._connection.channel(on_open_callback=done)
        channel.add_on_close_callback(done)
        publisher = Publisher(channel, mandatory, on_late)
        await opened
        if publisher.open:
            await publisher.start()
        self._publishers = [*(each for each in self._publishers if each.open), publisher]
        return publisher

    async def close(self) -> None:
        """Close the connection. Takes a few seconds at most."""
        if not self.open:
            return
        self._connection.close()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._closed
        except TimeoutError:
            self._io.abort()

    def _watch(self, due: float = 0.0) -> None:
        """End the connection if the broker is silent. `due`: the time for which this call was scheduled. If it runs
        late, this process was busy and may not have read the broker's data yet."""
        if not self.open:
            return
        now, pause_s = self._loop.time(), self._silent_s / 4
        if now - self._io.heard_at > self._silent_s and now - due < pause_s:
            for publisher in self._publishers:
                publisher.answer_all(SILENT)
            self._io.abort(SILENT.detail)
        else:
            self._loop.call_later(pause_s, self._watch, now + pause_s)

    def _opened_with(self, reason: Any) -> None:
        """The attempt to connect has ended. `reason`: why it failed; None if the connection is open."""
        if not self._opened.done():
            self._opened.set_result(reason)

    def _on_failure(self, _: Any, reason: Any) -> None:
        self._opened_with(reason)
        self._on_close(_, reason)

    def _on_close(self, _: Any, reason: Any) -> None:
        self._opened_with(reason)
        if not self._closed.done():
            self._closed.set_result(None)

    def _on_blocked(self, _: Any, frame: Any) -> None:
        self.blocked = frame.method.reason or "blocked"
        for publisher in self._publishers:
            publisher.answer_all(blocked(self.blocked))

    def _on_unblocked(self, *_: Any) -> None:
        self.blocked = ""
