"""The settings section `[relay]`."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network

from pydantic import field_validator

from duemq.model.settings import Networks, SettingsSection, Switch, host_and_port, networks_of


class RelaySettings(SettingsSection):
    """`enabled`: whether `duemq serve` relays. `listen`: metrics and probes of `duemq relay`. `private_networks`:
    networks that destinations may be in although they are private, link-local or loopback."""

    enabled: Switch = True
    listen: str = "127.0.0.1:8789"
    private_networks: Networks = ()

    @field_validator("listen")
    @classmethod
    def _is_address(cls, listen: str) -> str:
        return host_and_port(listen)

    @property
    def networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        return networks_of(self.private_networks)
