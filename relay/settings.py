"""The settings section `[relay]`."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network
from typing import Annotated

from pydantic import Field, field_validator

from duemq.model.settings import MIB, Networks, SettingsSection, Size, Switch, host_and_port, networks_of


class RelaySettings(SettingsSection):
    """`enabled`: whether `duemq serve` relays. `listen`: address for the metrics and probes of `duemq relay`.
    `private_networks`: private, link-local or loopback networks in which destinations are allowed. `group_messages`,
    `group_bytes`: limits for a group's messages in memory, leased or waiting."""

    enabled: Switch = True
    listen: str = "127.0.0.1:8789"
    private_networks: Networks = ()
    group_messages: Annotated[int, Field(ge=1, le=1_000_000)] = 20_000
    group_bytes: Annotated[Size, Field(ge=MIB)] = 16 * MIB

    @field_validator("listen")
    @classmethod
    def _is_address(cls, listen: str) -> str:
        return host_and_port(listen)

    @property
    def networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        return networks_of(self.private_networks)
