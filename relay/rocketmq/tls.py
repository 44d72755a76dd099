"""TLS by the PEM texts of the credentials.

Apache's client knows only the authorities that gRPC has, and no certificate of its own: here its channels are opened
with others.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import grpc

from duemq.model.destinations.destination import Credentials
from duemq.relay.rocketmq.client import MessagingServiceStub, Producer, RpcChannel

_OPTIONS = (
    ("grpc.enable_retries", 0), ("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
)  # fmt: skip


class _Channel(RpcChannel):  # type: ignore[misc]
    def __init__(self, endpoints: Any, credentials: grpc.ChannelCredentials) -> None:
        super().__init__(endpoints, True)
        self._facade, self._credentials = endpoints.facade, credentials

    def _RpcChannel__create_aio_channel(self) -> None:
        """In place of the client's own, which takes no credentials."""
        channel = grpc.aio.secure_channel(self._facade, self._credentials, _OPTIONS)
        self._RpcChannel__async_channel, self._RpcChannel__async_stub = channel, MessagingServiceStub(channel)


def secure(producer: Producer, credentials: Credentials) -> None:
    """Have a producer that was not started open its channels with `ca`, `cert` and `key`, where they are given."""
    if credentials.ca or credentials.cert:
        own = grpc.ssl_channel_credentials(
            credentials.ca.encode() or None, credentials.key.get_secret_value().encode() or None,
            credentials.cert.encode() or None,
        )  # fmt: skip
        rpc = producer.rpc_client
        rpc.retrieve_or_create_channel = partial(_channel, rpc, rpc.retrieve_or_create_channel, own)


def _channel(rpc: Any, made_by_the_client: Any, credentials: grpc.ChannelCredentials, endpoints: Any) -> Any:
    """In the one thread of all channels, so that none is made twice."""
    if rpc.channels.get(endpoints) is None:
        channel = _Channel(endpoints, credentials)
        channel.create_channel(rpc.get_channel_io_loop())
        rpc.channels.put(endpoints, channel)
    return made_by_the_client(endpoints)
