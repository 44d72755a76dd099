"""The position of a message in a newest-first listing: 28 bytes in byte order.

    place = 2^64 - 1 - when its row was placed (u64, epoch ms) | the row's key

A row is placed when its message is accepted, moved, redriven, or deferred because its topic refuses the message.
"""

from __future__ import annotations

from duemq.model.messages.key import KEY_BYTES

TIME_BYTES = 8
PLACE_BYTES = TIME_BYTES + KEY_BYTES
LATEST_MS = (1 << 64) - 1


def place_of(placed_ms: int, key: bytes) -> bytes:
    return (LATEST_MS - placed_ms).to_bytes(TIME_BYTES, "big") + key


def key_at(place: bytes) -> bytes:
    """The key of the row at a place."""
    return place[TIME_BYTES:]
