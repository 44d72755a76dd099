"""gRPC channels for Apache's client. They connect to addresses that were checked, with the destination's credentials.

Without them, the client would let gRPC resolve names, trust only gRPC's built-in authorities, and present no
certificate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import grpc

from duemq.model.destinations.destination import Credentials
from duemq.relay.network.address import Network, check_address
from duemq.relay.rocketmq.client import MessagingServiceStub, Producer, RpcChannel

_OPTIONS = (
    ("grpc.enable_retries", 0), ("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0),
)  # fmt: skip


class Channels:
    """Opens channels. `known`: checked addresses, by name. `allowed`: networks that are allowed for other addresses in
    a route, as in `check_address`. `tls`: the credentials for TLS; None = no TLS."""

    def __init__(self, known: Mapping[str, Sequence[str]], allowed: Sequence[Network], tls: Credentials | None) -> None:
        self._known, self._allowed = known, allowed
        self._credentials: Any = None
        if tls is not None:
            key, cert = tls.key.get_secret_value(), tls.cert
            self._credentials = grpc.ssl_channel_credentials(
                tls.ca.encode() or None, key.encode() or None, cert.encode() or None
            )

    def serve(self, producer: Producer) -> None:
        """Let a producer open its channels with this object. Call it before the producer starts."""
        rpc = producer.rpc_client
        rpc.retrieve_or_create_channel = partial(self._channel, rpc, rpc.retrieve_or_create_channel)

    def _channel(self, rpc: Any, made_by_the_client: Any, endpoints: Any) -> Any:
        """Open a channel. Runs in the thread that all channels share, so that no channel is created twice. Raises
        ForbiddenAddress."""
        if rpc.channels.get(endpoints) is None:
            channel = _Channel(endpoints, partial(self._open, endpoints.endpoints.addresses))
            channel.create_channel(rpc.get_channel_io_loop())
            rpc.channels.put(endpoints, channel)
        return made_by_the_client(endpoints)

    def _open(self, places: Sequence[Any]) -> Any:
        """Open a gRPC channel. `places`: at least one object with host and port."""
        targets: list[tuple[str, int]] = []
        for place in places:
            if place.host not in self._known:
                check_address(place.host, self._allowed)
            targets += [(address, place.port) for address in self._known.get(place.host, [place.host])]
        is_v6 = ":" in targets[0][0]  # a gRPC channel accepts addresses of only one IP version
        texts = [
            f"[{address}]:{port}" if is_v6 else f"{address}:{port}"
            for address, port in targets
            if (":" in address) == is_v6
        ]
        target, name = f"ipv{6 if is_v6 else 4}:{','.join(texts)}", places[0].host
        if self._credentials is None:
            options = (*_OPTIONS, ("grpc.default_authority", f"{name}:{places[0].port}"))
            return grpc.aio.insecure_channel(target, options)
        return grpc.aio.secure_channel(target, self._credentials, (*_OPTIONS, ("grpc.ssl_target_name_override", name)))


class _Channel(RpcChannel):  # type: ignore[misc]
    def __init__(self, endpoints: Any, open_: Any) -> None:
        super().__init__(endpoints)
        self._open = open_

    def _RpcChannel__create_aio_channel(self) -> None:
        """Overrides the client's method."""
        channel = self._open()
        self._RpcChannel__async_channel, self._RpcChannel__async_stub = channel, MessagingServiceStub(channel)
