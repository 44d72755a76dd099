"""Decides which addresses a destination may have: public addresses, and networks that the operator allows.

By declaring a destination, a user must not gain access to services that only this machine can reach, such as those on
its loopback interface and its private network, and its cloud's metadata service. The lists follow IANA's
special-purpose registries. They are written out here because `ipaddress` differs between versions of Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

Network = IPv4Network | IPv6Network

_SPECIAL_4: Final = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
            "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
            "203.0.113.0/24", "224.0.0.0/3",
        ),
    )
)  # fmt: skip
_PUBLIC_6: Final = IPv6Network("2000::/3")
"""Global unicast addresses: all others are loopback, unique local, link-local, site-local, multicast or unassigned."""
_SPECIAL_6: Final = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
"""Exceptions to `_PUBLIC_6`: Teredo and other IETF protocols, documentation, 6to4. No endpoint is offered over Teredo
or 6to4."""
_NAT64: Final = IPv6Network("64:ff9b::/96")


class NoAddress(OSError):
    """There is no address to connect to. The error text is the reason; `status` is the reason in one word."""

    status: str


class ForbiddenAddress(NoAddress):
    """The address is in a network that is not allowed. The error text contains the address."""

    status = "forbidden_address"


def check_address(text: str, allowed: Sequence[Network]) -> None:
    """Raises ForbiddenAddress if an address is not allowed. `text`: an IP address as formatted by `socket`. `allowed`:
    networks that are allowed although they are not public."""
    try:
        address = ip_address(text)
    except ValueError:
        raise ForbiddenAddress(f"{text[:100]!r} is not an address") from None
    if not _allowed(address, allowed):
        raise ForbiddenAddress(f"{text} is not public, and in no network of relay.private_networks")


def _allowed(address: IPv4Address | IPv6Address, allowed: Sequence[Network]) -> bool:
    if isinstance(address, IPv6Address) and (inner := _inner(address)) is not None:
        address = inner
    if any(network.version == address.version and address in network for network in allowed):
        return True
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _SPECIAL_4)
    return address.scope_id is None and address in _PUBLIC_6 and not any(address in each for each in _SPECIAL_6)


def _inner(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address represents: it is mapped, or translated in an IPv6-only network (NAT64).
    None if it represents none."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None
