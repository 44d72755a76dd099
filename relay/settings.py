"""The section `[relay]` of the settings."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated

from pydantic import field_validator

from duemq.model.settings import Section, Switch, Words, host_and_port
from duemq.model.timing import shown


class RelaySettings(Section):
    """`enabled`: whether `duemq serve` relays. `listen`: metrics and probes of `duemq relay`. `private_networks`: those
    in which destinations may be though they are private, link-local or of this machine."""

    enabled: Switch = True
    listen: str = "127.0.0.1:8789"
    private_networks: Annotated[Words, "networks such as 10.0.0.0/8"] = ()

    @field_validator("listen")
    @classmethod
    def _is_address(cls, listen: str) -> str:
        return host_and_port(listen)

    @field_validator("private_networks")
    @classmethod
    def _are_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for network in networks:
            try:
                ip_network(network)
            except ValueError:
                raise ValueError(f"{shown(network)} is no network such as 10.0.0.0/8 or fd00::/8") from None
        return networks

    @property
    def networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        return tuple(ip_network(network) for network in self.private_networks)
