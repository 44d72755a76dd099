"""Publishes messages to a RabbitMQ stream over the stream protocol. Publishing ids let the broker drop repeats.

The outlet is a `Watcher` of the consumer (`client/consumer/base.py`), because which ids are safe depends on which
records were pulled and which have ended (`numbering`). A message that was not reported as pulled is written without an
id.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote, urlsplit

from duemq.client.consumer.base import Partition
from duemq.client.consumer.message import KafkaRecord, Message
from duemq.model.destinations.destination import Credentials, Destination
from duemq.model.destinations.rabbitmq import RabbitMqOptions
from duemq.relay.base import Reply, Result
from duemq.relay.connect.connected_outlet import ConnectedOutlet
from duemq.relay.outlets import RelayPolicy
from duemq.relay.rabbitmq.stream.connection import Login, StreamConnection
from duemq.relay.rabbitmq.stream.mapping import encoded
from duemq.relay.rabbitmq.stream.producers import Producers
from duemq.relay.rabbitmq.stream.replies import ACCEPTED, CLOSED, UNCONFIRMED, ConnectionLost, refused, unreachable
from duemq.relay.tls import client_context

_PORT: Final = 5552
_TLS_PORT: Final = 5551
_MAX_CONNECT_S: Final = 5.0
_MAX_UNSENT_BYTES: Final = 16 << 20  # reached if the broker reads nothing, because it is short of memory or disk
_MAX_UNCONFIRMED_BYTES: Final = 64 << 20  # reached if a stream has no majority: messages that timed out are kept


class StreamOutlet(ConnectedOutlet[StreamConnection]):
    """See `relay/base.py`."""

    concurrency = 1000

    def __init__(self, destination: Destination, credentials: Credentials, policy: RelayPolicy) -> None:
        super().__init__("RabbitMQ", policy)
        options = destination.options
        assert isinstance(options, RabbitMqOptions)
        self._stream, self._start_id = options.stream, destination.start_id
        self._secure = destination.url.startswith("amqps:")
        parts = urlsplit(destination.url)
        self._place = parts.hostname or "", options.stream_port or (_TLS_PORT if self._secure else _PORT)
        self._virtual_host = unquote(parts.path[1:]) or "/"
        self._credentials = credentials
        self._timeout_s = destination.timeout / 1000
        self._connect_s = min(self._timeout_s / 3, _MAX_CONNECT_S)
        self._producers = Producers(destination.name, self._stream)

    # --- calls from the consumer ----------------------------------------------------------------------------------

    def pulled(self, partition: Partition, log_id: str, offsets: Sequence[int], start: int) -> None:
        """See `Watcher`."""
        if log_id:  # without an id, the records of two logs with the same offsets could not be distinguished
            log_id = f"{log_id}/{self._start_id}"
            self._producers.pulled((partition.topic, partition.partition), log_id, offsets, start)

    def ended(self, record: KafkaRecord) -> None:
        """See `Watcher`."""
        self._producers.ended((record.topic, record.partition), record.offset)

    # --- messages -------------------------------------------------------------------------------------------------

    async def send(self, message: Message) -> Reply:
        data, record, producers = b"", message.record, self._producers
        place = record.topic, record.partition
        while True:
            connection = await self._connected()
            if isinstance(connection, Reply):
                return connection
            if not connection.usable:  # the broker may have refused a publisher since the call above
                return connection.trouble
            if producers.stored_late(message.identity):
                return ACCEPTED
            if (answer := producers.under_way(message.identity)) is not None:
                return await answer
            if connection.unsent_bytes > _MAX_UNSENT_BYTES:
                return Reply(Result.AWAY, "blocked", "the broker does not read")
            if producers.unconfirmed_bytes > _MAX_UNCONFIRMED_BYTES:
                return UNCONFIRMED
            data = data or encoded(message)
            if len(data) > connection.message_bytes:
                detail = f"{len(data)} bytes with headers; the broker accepts {connection.message_bytes}"
                return Reply(Result.REJECTED, "FRAME_TOO_LARGE", detail)
            if (answer := producers.write(place, record.offset, message.identity, data)) is not None:
                return await answer
            await producers.wait(place, record.offset)

    # --- connecting -----------------------------------------------------------------------------------------------

    async def _connect(self) -> StreamConnection | Reply:
        try:
            tls = client_context(self._credentials) if self._secure else None
        except ValueError as error:
            return Reply(Result.AWAY, "tls", str(error))
        try:
            async with asyncio.timeout(self._connect_s):
                connection = await self._to_leader(tls)
        except TimeoutError:
            return Reply(Result.AWAY, "timeout", f"no answer from the broker within {self._connect_s:g} s")
        except ConnectionLost as error:
            return error.reply
        self._producers.connected(connection)
        return connection

    async def _to_leader(self, tls: ssl.SSLContext | None) -> StreamConnection:
        """Connect to the broker that leads the stream. Through another broker, the order would not be safe: if the two
        brokers lost their connection, messages in transit between them would be lost, but later ones would not."""
        if not self._virtual_host.isascii():  # rstream encodes a text's length in characters, not in bytes
            raise ConnectionLost(
                refused(12, f"virtual host {self._virtual_host!r}: its name has to be ASCII for streams")
            )
        place = self._place
        for _ in range(2):
            connection = await self._connect_to(place, tls)
            try:
                leader = await connection.leader(self._stream)
            except BaseException:
                connection.abort(CLOSED)
                raise
            if leader == (connection.advertised or place):
                return connection
            await connection.close()
            place = leader
        detail = f"{self._stream} has the leader {leader[0]}:{leader[1]}, but another broker answers there"
        raise ConnectionLost(Reply(Result.AWAY, "leader", detail))

    async def _connect_to(self, place: tuple[str, int], tls: ssl.SSLContext | None) -> StreamConnection:
        producers = self._producers
        connection = StreamConnection(producers.confirmed, producers.lost, producers.watch, self._timeout_s)
        credentials = self._credentials
        username, password = credentials.username, credentials.password.get_secret_value()
        if not username and not credentials.cert:
            username, password = "guest", "guest"
        try:
            await connection.connect(self._resolver, place, tls, Login(self._virtual_host, username, password))
        except OSError as error:
            raise ConnectionLost(unreachable(error, f"{place[0]}:{place[1]}")) from error
        return connection
