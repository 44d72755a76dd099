"""Which addresses may be connected to."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from duemq.relay.network.address import ForbiddenAddress, check_address

PUBLIC = [
    "8.8.8.8", "93.184.215.14", "172.32.0.1", "172.15.255.255", "100.63.255.255", "100.128.0.0", "223.255.255.255",
    "2606:4700::1111", "2a00:1450::1", "::ffff:8.8.8.8", "64:ff9b::808:808",
]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_allowed(address: str) -> None:
    check_address(address, [])


@pytest.mark.parametrize("address", ["10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "fd00::1"])
def test_a_private_network_may_be_allowed(address: str) -> None:
    with pytest.raises(ForbiddenAddress, match="private_networks"):
        check_address(address, [ip_network("10.1.3.0/24"), ip_network("fd01::/16")])
    check_address(address, [ip_network("10.1.2.0/24"), ip_network("fd00::/16")])


def test_to_allow_all_of_ipv4_allows_nothing_of_ipv6() -> None:
    with pytest.raises(ForbiddenAddress):
        check_address("::1", [ip_network("0.0.0.0/0")])
