"""A node's figures for monitoring of the cluster: small enough for a request every second."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
HORIZONS_MS: Final = (0, HOUR_MS, DAY_MS, 7 * DAY_MS, 30 * DAY_MS, 365 * DAY_MS, 3650 * DAY_MS)
"""Ends of the horizons, from now on (ms). Windows of 30 minutes are counted by their start. The first horizon is the
current window with all overdue messages; one more horizon follows the last end."""


def known_fields(fields: Collection[str], document: Mapping[str, Any]) -> dict[str, Any]:
    """These fields of a JSON object, with tuples for lists. Fields of other versions are left out."""
    return {name: tuple(value) if type(value) is list else value for name, value in document.items() if name in fields}


class Figures(NamedTuple):
    """Of one node, for the shards that it is master of; counts since its process started.

    `lateness`: deliveries by lateness, one more than `edges_ms`, their upper bounds. `horizon`: pending messages by
    `HORIZONS_MS`. `overdue_ms`: how late the oldest undelivered message is. `sealed`: messages in `delay_files` files.
    `direct`: messages without delay that went through this process.
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
        """Fields of another version are left out."""
        return cls(**known_fields(cls._fields, document))


class SealedWindow(NamedTuple):
    """The delay files of one window of a shard. `window`: its start, epoch ms. `rows`: in the files, `pending`: those
    still pending; `imported`: files that others wrote."""

    window: int
    shard: int
    files: int
    imported: int
    rows: int
    pending: int
