"""Creates the outlet for a destination. A system's module and client library are imported on first use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from ipaddress import IPv4Network, IPv6Network
from typing import Final, cast

from duemq.model.destinations.destination import Credentials, Destination, System
from duemq.model.destinations.rabbitmq import RabbitMqOptions
from duemq.relay.base import Outlet, OutletMissing

_MODULES: Final = {
    System.HTTP: ("duemq.relay.http.outlet", "HttpOutlet"),
    System.RABBITMQ: ("duemq.relay.rabbitmq.outlet", "RabbitMqOutlet"),
    System.NATS: ("duemq.relay.nats.outlet", "NatsOutlet"),
    System.REDIS: ("duemq.relay.redis.outlet", "RedisOutlet"),
    System.ROCKETMQ: ("duemq.relay.rocketmq.outlet", "RocketMqOutlet"),
}
_STREAM: Final = ("duemq.relay.rabbitmq.stream.outlet", "StreamOutlet")


@dataclass(frozen=True, slots=True)
class RelayPolicy:
    """Limits set by the relay's operator. `private_networks`: private, link-local or loopback networks in which
    destinations are allowed."""

    private_networks: Sequence[IPv4Network | IPv6Network] = ()


def open_outlet(destination: Destination, credentials: Credentials, policy: RelayPolicy) -> Outlet:
    """Create an outlet, which is not connected yet. All outlet classes take these three arguments. Raises
    OutletMissing."""
    options = destination.options
    if destination.system is System.PULL:
        raise OutletMissing("workers pull the messages of a group: nothing is sent to it")
    is_stream = isinstance(options, RabbitMqOptions) and options.stream
    module, name = _STREAM if is_stream else _MODULES[destination.system]
    try:
        made = getattr(import_module(module), name)(destination, credentials, policy)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("duemq"):
            raise
        extra = destination.system.value
        raise OutletMissing(
            f"{error.name} is not installed: pip install 'duemq[{extra}]' on the relay's machine"
        ) from error
    return cast(Outlet, made)
