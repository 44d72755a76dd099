"""Converts between Python's times and the API's milliseconds. Pure: no clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NewType, overload

EpochMs = NewType("EpochMs", int)
"""Milliseconds since the epoch. It is a separate type so that seconds, as in `int(time.time())`, are not passed by
mistake."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


@overload
def from_ms(ms: int) -> datetime: ...
@overload
def from_ms(ms: int | None) -> datetime | None: ...
def from_ms(ms: int | None) -> datetime | None:
    """The instant `ms` milliseconds after the epoch, in UTC."""
    return None if ms is None else EPOCH + ms * _MS


def is_naive(when: datetime) -> bool:
    return when.utcoffset() is None


def to_ms(when: datetime) -> int:
    """An aware datetime in epoch milliseconds, rounded up: a message is never early, not even by a microsecond."""
    return -((EPOCH - when) // _MS)


def delay_ms(delay: timedelta) -> int:
    """A delay in milliseconds, rounded up."""
    return -(-delay // _MS)
