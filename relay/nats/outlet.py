"""Publishes messages to a NATS server: to a JetStream stream, which acknowledges each message, or with core NATS."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from duemq.client.consumer.message import Message
from duemq.model.destinations.destination import Credentials, Destination
from duemq.model.destinations.nats import NatsOptions
from duemq.relay.base import NotMapped, Reply, Result
from duemq.relay.connect.connected_outlet import ConnectedOutlet
from duemq.relay.nats.connection import NatsConnection
from duemq.relay.nats.mapping import Mapping
from duemq.relay.nats.replies import PERMISSIONS, away, too_large
from duemq.relay.outlets import RelayPolicy

_MAX_CONNECT_S: Final = 5.0
_LEAST_PING_S: Final = 0.3
_MAX_SERVERS: Final = 16  # how many servers in a cluster are tried, one after another
_NOBODY: Final = ("unreachable", "connection_lost", "timeout", "dns_error")


class NatsOutlet(ConnectedOutlet[NatsConnection]):
    """See `relay/base.py`."""

    concurrency = 500

    def __init__(self, destination: Destination, credentials: Credentials, policy: RelayPolicy) -> None:
        super().__init__("NATS", policy)
        options = destination.options
        assert isinstance(options, NatsOptions)
        self._url, self._credentials, self._jetstream = destination.url, credentials, options.jetstream
        self._mapping = Mapping(destination.name, options)
        # Three unanswered pings show that a connection is dead, before the messages on it time out.
        self._timeout_s = max(_LEAST_PING_S, min(destination.timeout / 5_000, _MAX_CONNECT_S))
        self._servers: list[str] = []  # the cluster's other servers, as announced on the last connection

    async def send(self, message: Message) -> Reply:
        connection = await self._connected()
        if isinstance(connection, Reply):
            return connection
        try:
            subject, headers, size = self._mapping.publication(message)
        except NotMapped as error:
            return error.reply
        payload = message.payload
        size += len(payload)
        if size > connection.max_bytes:
            return too_large(size, connection.max_bytes)
        reply = await connection.publish(subject, payload, headers, jetstream=self._jetstream)
        if reply.status == PERMISSIONS and connection.lost is None and self._mapping.by_key:
            return reply._replace(result=Result.FAILED)  # the refused subject contains this message's key
        return reply

    async def _connect(self) -> NatsConnection | Reply:
        if (lost := self.connection) is not None:  # its socket may still be open
            self._servers = lost.servers[:_MAX_SERVERS]
            await lost.close()
            self.connection = None
        failures: list[Reply] = []
        for url in (self._url, *self._servers):
            connected = await self._connect_to(url)
            if isinstance(connected, NatsConnection):
                return connected
            failures.append(connected)
            if connected.status == "authorization":  # the other servers would refuse the credentials, too
                break
        return next((failure for failure in failures if failure.status not in _NOBODY), failures[0])

    async def _connect_to(self, url: str) -> NatsConnection | Reply:
        # Every server's certificate must be for the destination's host name. The list of servers may have arrived
        # before TLS began, so an attacker may have sent it, and must not choose the name that is verified.
        host = urlsplit(self._url).hostname or ""
        connection = NatsConnection(self._resolver, self._timeout_s)
        failure: Reply | None = away(None, "closed")
        try:
            failure = await connection.connect(url, host, self._credentials)
        finally:
            if failure is not None:
                await connection.close()
        return connection if failure is None else failure
