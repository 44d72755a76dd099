"""Publishes messages to a RabbitMQ broker over AMQP 0-9-1 with publisher confirms.

All messages for a destination share one channel, up to the limit in flight, and the broker confirms them in bulk. If
the broker refuses a message (406), it closes the channel without identifying the message. Then each unconfirmed message
is published again alone, on a separate channel. The broker also closes the channel if the user may not write to a
routing key (403). Usually its error contains the routing key, and the messages with other keys are published again
together.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pika import ConnectionParameters, PlainCredentials, SSLOptions
from pika.credentials import ExternalCredentials

from duemq.client.consumer.message import Message
from duemq.model.destinations.destination import Credentials, Destination
from duemq.model.destinations.rabbitmq import RabbitMqOptions
from duemq.relay.base import NotMapped, Reply, Result
from duemq.relay.connect.connected_outlet import ConnectedOutlet
from duemq.relay.outlets import RelayPolicy
from duemq.relay.rabbitmq.connection import Publisher, RabbitMqConnection
from duemq.relay.rabbitmq.mapping import Mapping, Publication, message_id
from duemq.relay.rabbitmq.replies import (
    ACCEPTED,
    PRECONDITION_FAILED,
    blocked,
    exchange_refused,
    names,
    not_connected,
    topic_refused,
)
from duemq.relay.tls import client_context

_MAX_HEARTBEAT_S: Final = 10
_LEAST_SILENT_S: Final = 1.0  # twice the 0.5 s between a broker's heartbeats at the shortest heartbeat timeout, 1 s
_MAX_CONNECT_S: Final = 5.0
_TRIES: Final = 3  # how often a message is published together with others before it is published alone
_MAX_LATE: Final = 10_000  # ids of messages that were accepted after the callers had stopped waiting
_LOGGER: Final = logging.getLogger("pika")
_LOST: Final = Reply(Result.AWAY, "connection lost")


class RabbitMqOutlet(ConnectedOutlet[RabbitMqConnection]):
    """See `relay/base.py`."""

    concurrency = 1000

    def __init__(self, destination: Destination, credentials: Credentials, policy: RelayPolicy) -> None:
        super().__init__("RabbitMQ", policy)
        options = destination.options
        assert isinstance(options, RabbitMqOptions)
        self._options = options
        self._mapping = Mapping(options)
        timeout_s = destination.timeout / 1000
        self._connect_s = min(timeout_s / 3, _MAX_CONNECT_S)
        self._silent_s = max(timeout_s * 0.6, _LEAST_SILENT_S)
        self._heartbeat_s = max(1, min(int(timeout_s / 2), _MAX_HEARTBEAT_S))
        self._url, self._credentials = destination.url, credentials
        self._alone = asyncio.Lock()
        self._late: OrderedDict[str, None] = OrderedDict()
        if _LOGGER.level == logging.NOTSET:  # pika logs each attempt to connect, which replies report already
            _LOGGER.setLevel(logging.CRITICAL)

    async def send(self, message: Message) -> Reply:
        id_ = message_id(message)
        for _ in range(_TRIES):
            connection = await self._connected()
            if isinstance(connection, Reply):
                return connection
            publisher = connection.publisher
            if publisher is None or not publisher.open:
                return _LOST
            if self._late and self._late.pop(id_, 0) is None:
                return ACCEPTED
            if connection.blocked:
                return blocked(connection.blocked)
            try:
                publication = self._mapping.publication(message)
            except NotMapped as error:
                return error.reply
            if publication.header_bytes > connection.frame_bytes:
                detail = f"the broker accepts up to {connection.frame_bytes} bytes of key and headers"
                return Reply(Result.REJECTED, "FRAME_ERROR", detail)
            reply = await publisher.publish(id_, publication)
            if reply.status == PRECONDITION_FAILED:
                break
            if not self._refused_by_name(reply):
                return reply
            if names(reply, publication.exchange, publication.routing_key):
                return reply._replace(result=Result.FAILED)
        return await self._send_alone(message, publication)

    async def _send_alone(self, message: Message, publication: Publication) -> Reply:
        async with self._alone:
            try:
                async with asyncio.timeout(self._connect_s):
                    connection = self.connection
                    if connection is None or not connection.open:
                        return _LOST
                    if connection.blocked:
                        return blocked(connection.blocked)
                    publisher = await self._new_publisher(connection)
            except TimeoutError:
                return Reply(Result.AWAY, "timeout", "the broker does not open a channel")
            if not publisher.open:
                return _LOST
            try:
                reply = await publisher.publish(message_id(message), publication)
            finally:
                publisher.close()
        if reply.status == PRECONDITION_FAILED:
            return reply._replace(result=Result.REJECTED)
        return reply._replace(result=Result.FAILED) if self._refused_by_name(reply) else reply

    def _refused_by_name(self, reply: Reply) -> bool:
        """Whether the broker refused a routing key or an exchange that other messages do not necessarily use."""
        return (self._mapping.by_message and topic_refused(reply)) or (
            self._options.envelope == "celery" and exchange_refused(reply)
        )

    # --- connecting -----------------------------------------------------------------------------------------------

    async def _connect(self) -> RabbitMqConnection | Reply:
        try:
            parameters = _parameters(self._url, self._credentials, self._connect_s, self._heartbeat_s)
        except ValueError as error:
            return Reply(Result.AWAY, "tls", str(error))
        try:
            async with asyncio.timeout(self._connect_s):
                connection = self.connection
                if connection is None or not connection.open:
                    connection = RabbitMqConnection(self._resolver, self._silent_s)
                    await connection.connect(parameters)
                    self.connection = connection
                connection.publisher = await self._new_publisher(connection)
        except TimeoutError:
            return Reply(Result.AWAY, "timeout", f"no answer from the broker within {self._connect_s:g} s")
        except Exception as error:
            return not_connected(error)
        return connection

    async def _new_publisher(self, connection: RabbitMqConnection) -> Publisher:
        return await connection.new_publisher(self._options.mandatory, self._accepted_late)

    def _accepted_late(self, id_: str) -> None:
        self._late[id_] = None
        if len(self._late) > _MAX_LATE:
            self._late.popitem(last=False)


def _parameters(url: str, credentials: Credentials, connect_s: float, heartbeat_s: int) -> ConnectionParameters:
    parts = urlsplit(url)
    tls: Any = None
    if parts.scheme == "amqps":
        tls = SSLOptions(client_context(credentials), parts.hostname)
    if credentials.username or not credentials.cert:
        password = credentials.password.get_secret_value()
        login: Any = PlainCredentials(credentials.username or "guest", password or "guest", erase_on_connect=False)
    else:
        login = ExternalCredentials()  # the certificate identifies the user
    return ConnectionParameters(
        host=parts.hostname, port=parts.port or (5671 if tls else 5672),
        virtual_host=unquote(parts.path[1:]) or "/", credentials=login, ssl_options=tls, heartbeat=heartbeat_s,
        connection_attempts=1, socket_timeout=2 * connect_s, stack_timeout=2 * connect_s,  # our own timeout is shorter
        client_properties={"connection_name": "duemq relay"},
    )  # fmt: skip
