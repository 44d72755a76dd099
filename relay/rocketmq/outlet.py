"""Sends messages to RocketMQ 5, through its gRPC proxy and with Apache's client."""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import urlsplit

from duemq.client.consumer.message import Message
from duemq.model.destinations.destination import Credentials as GivenCredentials
from duemq.model.destinations.destination import Destination
from duemq.model.destinations.rocketmq import RocketMqOptions
from duemq.relay.base import NotMapped, Reply, Result
from duemq.relay.connect.connected_outlet import ConnectedOutlet
from duemq.relay.outlets import RelayPolicy
from duemq.relay.rocketmq.channels import Channels
from duemq.relay.rocketmq.client import ClientConfiguration, Credentials
from duemq.relay.rocketmq.connection import RocketMqConnection
from duemq.relay.rocketmq.mapping import Mapping
from duemq.relay.rocketmq.replies import CLOSED, failure

_PORT: Final = 8081
_MAX_CONTROL_S: Final = 3  # for a route request and a heartbeat; the client accepts only whole seconds
_FIFO_REQUESTS: Final = 200
_REQUESTS: Final = 8  # concurrent requests, each with many messages


class RocketMqOutlet(ConnectedOutlet[RocketMqConnection]):
    """See `relay/base.py`."""

    concurrency = 500

    def __init__(self, destination: Destination, credentials: GivenCredentials, policy: RelayPolicy) -> None:
        super().__init__("RocketMQ", policy)
        options = destination.options
        assert isinstance(options, RocketMqOptions)
        parts = urlsplit(destination.url)
        self._tls = parts.scheme == "rocketmqs"
        self._host = parts.hostname or ""
        self._endpoint = f"{self._host}:{parts.port or _PORT}"
        self._allowed = policy.private_networks
        self._credentials = credentials
        self._timeout_s = destination.timeout / 1_000
        self._requests = _REQUESTS
        if options.fifo:  # each request contains one message
            self._requests = self.concurrency = _FIFO_REQUESTS
        self._mapping = Mapping(options)
        self._retiring: dict[asyncio.Task[None], RocketMqConnection] = {}
        self._closed = False

    async def send(self, message: Message) -> Reply:
        if self._closed:
            return CLOSED
        try:
            publication = self._mapping.publication(message)
        except NotMapped as error:
            return error.reply
        connection = await self._connected()
        return connection if isinstance(connection, Reply) else await connection.publish(publication)

    async def close(self) -> None:
        self._closed = True
        connections = list(self._retiring.values())
        for retiring in self._retiring:
            retiring.cancel()
        await asyncio.gather(super().close(), *(connection.close() for connection in connections))

    async def _connect(self) -> RocketMqConnection | Reply:
        given = self._credentials
        old, self.connection = self.connection, None
        if old is not None:
            self._retire(old)
        keys = Credentials(given.username, given.password.get_secret_value())
        try:
            async with asyncio.timeout(self._timeout_s / 4):
                known = {self._host: await self._resolver.addresses(self._host)}
            control_s = max(1, min(int(self._timeout_s / 2), _MAX_CONTROL_S))
            configuration = ClientConfiguration(self._endpoint, keys, request_timeout=control_s)
            channels = Channels(known, self._allowed, given if self._tls else None)
            connection = RocketMqConnection(
                configuration, channels, self._resolver, known, self._timeout_s, self._requests
            )
            await connection.start()
        except Exception as error:
            return failure(error)._replace(result=Result.AWAY)
        return connection

    def _retire(self, connection: RocketMqConnection) -> None:
        """Close an old connection in the background: another proxy in the cluster may still answer requests that were
        sent on it."""
        retiring = asyncio.create_task(connection.close(patient=True), name="retire a connection to RocketMQ")
        self._retiring[retiring] = connection
        retiring.add_done_callback(self._retiring.pop)
