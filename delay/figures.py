"""Collects the figures of a node (`cluster/figures.py`) from its shards."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Mapping

import numpy as np

from duemq.cluster.figures import HORIZONS_MS, Figures, SealedWindow
from duemq.delay.lateness import EDGES_MS
from duemq.delay.node import Node
from duemq.storage.delay_files.catalog import DelayFileCatalog

_SHARE = 0.002  # the share of the time that horizons may take: counting ten years of windows takes 10 ms


class FiguresSource:
    """Collects the figures of a node. Cheap, however often it is called."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._horizon: tuple[int, ...] = (0,) * (len(HORIZONS_MS) + 1)
        self._again = 0.0  # horizons are not counted again before this time (monotonic, s)

    def figures(self, name: str, now: int, direct: int) -> Figures:
        """The figures at `now` (epoch ms). `name`: the node's name. `direct`: the number of messages without delay that
        this process has sent."""
        node = self._node
        lateness = np.zeros(len(EDGES_MS) + 1, np.int64)
        for one in list(node.observer.lateness.values()):
            one.count()
            lateness += one.buckets
        overdue = sealed = files = 0
        totals = []
        for shard in node.shards.values():
            if not shard.leading:
                continue
            wheel, delay_files = shard.replica.wheel, shard.store.delay_files
            if (next_due := wheel.next_due()) is not None:
                overdue = max(overdue, now - next_due)
            sealed += delay_files.messages
            files += len(delay_files.names())
            totals.append(wheel.all_totals())
        disk = node.maintenance.gauges()
        return Figures(
            name, EDGES_MS, tuple(lateness.tolist()), self._horizons(totals, now), overdue, sealed, files,
            disk.folder_bytes, disk.use.free, disk.use.percent, direct,
        )  # fmt: skip

    def sealed_windows(self, first: int, most: int) -> list[SealedWindow]:
        """Sealed windows of the shards that the node is master of, from `first` (ms) on, the earliest first."""
        windows: list[SealedWindow] = []
        for number, shard in self._node.shards.items():
            if shard.leading:
                table = shard.store.delay_files
                starts = table.windows()
                begin = bisect_left(starts, first)
                windows += [_window(number, start, table) for start in starts[begin : begin + most]]
        return sorted(windows)[:most]

    def _horizons(self, totals: list[Mapping[int, int]], now: int) -> tuple[int, ...]:
        started = time.monotonic()
        if started >= self._again:
            counts = np.zeros(len(HORIZONS_MS) + 1, np.int64)
            for windows in totals:
                starts = np.fromiter(windows.keys(), np.int64, len(windows))
                rows = np.fromiter(windows.values(), np.int64, len(windows))
                places = np.searchsorted(np.array(HORIZONS_MS) + now, starts)
                counts += np.bincount(places, rows, len(counts)).astype(np.int64)
            ended = time.monotonic()
            self._again = ended + (ended - started) / _SHARE
            self._horizon = tuple(counts.tolist())
        return self._horizon


def _window(shard: int, start: int, table: DelayFileCatalog) -> SealedWindow:
    files = table.of(start)
    imported = sum(file.about.offset is not None for file in files)
    return SealedWindow(start, shard, len(files), imported, table.rows(start), table.pending(start))
