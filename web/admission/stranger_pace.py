"""Limits the pace of requests without a grant: guessing keys must not take up a core that callers with a key need."""

from __future__ import annotations

from typing import Final

OF_ADDRESS_PER_S: Final = 200
"""Requests a second from one address, on average."""
ALL_PER_S: Final = 1_000
BURST_S: Final = 2.0
"""By how much an address that was silent may be ahead of its pace."""
MAX_WAIT_S: Final = 1.0
_ADDRESSES: Final = 4_096


class StrangerPace:
    """Decides when it is the turn of each request without a grant, with a pace per address and one for all addresses.

    This is the generic cell rate algorithm (ITU-T I.371). It stores one number per address: the time at which the next
    request from there would be on pace.
    """

    def __init__(self) -> None:
        self._all = 0.0
        self._by_address: dict[str, float] = {}

    def wait_s(self, address: str, now: float) -> float | None:
        """How long (s) the next request from `address` must wait; None if too many wait already. `now`: monotonic s."""
        own = max(self._by_address.get(address, 0.0), now - BURST_S)
        every = max(self._all, now - BURST_S)
        wait_s = max(own, every) - now
        if wait_s > MAX_WAIT_S:
            return None
        self._all = every + 1 / ALL_PER_S
        if address not in self._by_address and len(self._by_address) >= _ADDRESSES:
            self._forget(now)
        self._by_address[address] = own + 1 / OF_ADDRESS_PER_S
        return max(wait_s, 0.0)

    def _forget(self, now: float) -> None:
        """Forget the addresses that may have a full burst again; if too many would be left, forget all. The pace for
        all addresses still limits them."""
        paced = {address: turn for address, turn in self._by_address.items() if turn > now - BURST_S}
        self._by_address = paced if len(paced) < _ADDRESSES else {}
