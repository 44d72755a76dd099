"""A node's figures for monitoring the cluster. They are small enough to be requested every second."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
HORIZONS_MS: Final = (0, HOUR_MS, DAY_MS, 7 * DAY_MS, 30 * DAY_MS, 365 * DAY_MS, 3650 * DAY_MS)
"""The ends of the horizons, counted from now (ms). A window of 30 minutes belongs to the horizon of its start. The
first horizon is the current window, with all overdue messages. One more horizon follows the last end."""


def known_fields(fields: Collection[str], document: Mapping[str, Any]) -> dict[str, Any]:
    """The given fields of a JSON object, with lists as tuples. Fields that only other versions have are left out."""
    return {name: tuple(value) if type(value) is list else value for name, value in document.items() if name in fields}


class Figures(NamedTuple):
    """The figures of one node, for the shards that it is master of. Counts start when its process starts.

    `lateness`: the number of deliveries in each range of lateness. `edges_ms` are the upper bounds of the ranges; one
    more range follows. `horizon`: pending messages by `HORIZONS_MS`. `overdue_ms`: how late the oldest undelivered
    message is. `sealed`: the number of messages in delay files; `delay_files`: the number of these files. `direct`:
    messages without delay that this process accepted.
    """

    node: str
    edges_ms: tuple[float, ...] = ()
    lateness: tuple[int, ...] = ()
    horizon: tuple[int, ...] = (0,) * (len(HORIZONS_MS) + 1)
    overdue_ms: int = 0
    sealed: int = 0
    delay_files: int = 0
    folder_bytes: int = 0
    disk_free_bytes: int = 0
    disk_percent: float = 0.0
    direct: int = 0

    def to_json(self) -> dict[str, Any]:
        return self._asdict()

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Figures:
        """Fields that only another version has are left out."""
        return cls(**known_fields(cls._fields, document))


class SealedWindow(NamedTuple):
    """A shard's delay files for one window. `window`: its start, epoch ms. `rows`: all rows in the files; `pending`:
    the rows that are still pending; `imported`: the number of files that were imported."""

    window: int
    shard: int
    files: int
    imported: int
    rows: int
    pending: int
