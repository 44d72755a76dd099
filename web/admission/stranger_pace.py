"""The pace of requests without a grant: guessing keys must not take a core from callers who have one."""

from __future__ import annotations

from typing import Final

OF_ADDRESS_PER_S: Final = 200
"""Requests a second from one address, on average."""
ALL_PER_S: Final = 1_000
BURST_S: Final = 2.0
"""An address that was silent may be ahead of its pace by this."""
MAX_WAIT_S: Final = 1.0
_ADDRESSES: Final = 4_096


class StrangerPace:
    """When each request without a grant has its turn, by address and in total.

    This is the generic cell rate algorithm (ITU-T I.371): per address one number, the time at which its next request
    would be on pace.
    """

    def __init__(self) -> None:
        self._all = 0.0
        self._by_address: dict[str, float] = {}

    def wait_s(self, address: str, now: float) -> float | None:
        """How long the next request of `address` waits; None if too many wait already. `now`: monotonic s."""
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
        """Drop addresses that may have a burst again, or all: the pace in total still holds."""
        paced = {address: turn for address, turn in self._by_address.items() if turn > now - BURST_S}
        self._by_address = paced if len(paced) < _ADDRESSES else {}
