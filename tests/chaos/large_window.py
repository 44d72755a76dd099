"""Measures a node's memory while large messages of one window are sealed, looked up, moved, loaded and delivered.

    python -m tests.chaos.large_window FOLDER MESSAGES [BYTES]

A separate process, so that the memory is the node's alone. Prints JSON: the peak memory (bytes) of it and its children
together in each phase, and the number of delivered messages. The default is messages of 1 MiB; they compress well, so
that 20,000 of them need little disk and as much memory as any.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry

from duemq.bus.embedded.bus import EmbeddedBus
from duemq.delay.node import Node, NodeOptions
from duemq.delay.node_backend import NodeBackend
from duemq.delay.tiering.tiering_policy import TieringPolicy
from duemq.dev.servers.usage import usage
from duemq.election.single import SingleElection
from duemq.model.log.ledger import Answer
from duemq.model.messages.message import CANCEL, MOVE, Draft
from duemq.model.timing import WINDOW_MS
from duemq.proxy.gateway.base import Receipt
from duemq.proxy.gateway.gateway import CommandGateway
from duemq.storage.data_folder import Folder

_TOGETHER = 16  # messages of one request


class Peaks:
    """The most memory of each phase."""

    def __init__(self) -> None:
        self.phase, self.bytes = "start", dict[str, int]()

    async def watch(self) -> None:
        while True:
            self.bytes[self.phase] = max(self.bytes.get(self.phase, 0), usage(os.getpid()).rss_bytes)
            await asyncio.sleep(0.02)


async def until(true: Callable[[], bool]) -> None:
    """Wait for something that another task brings about."""
    while True:
        if true():
            return
        await asyncio.sleep(0.02)


async def run(folder: Path, messages: int, size: int) -> dict[str, object]:
    step_ms = 0

    def clock() -> int:
        return time.time_ns() // 1_000_000 + step_ms

    window = (clock() // WINDOW_MS + 5) * WINDOW_MS
    opened = Folder.open(folder, 1)
    policy = TieringPolicy(rows=min(messages, 1_000), quiet_ms=1_000)

    async def open_bus() -> EmbeddedBus:
        return await EmbeddedBus.open(folder / "bus", clock=clock)

    node = Node(opened, open_bus, SingleElection(1), NodeOptions(delay_files=policy), CollectorRegistry(), clock)
    stop, peaks = asyncio.Event(), Peaks()
    running, watching = asyncio.create_task(node.run(stop)), asyncio.create_task(peaks.watch())
    await asyncio.wait([running, asyncio.create_task(node.ready.wait())], return_when=asyncio.FIRST_COMPLETED)
    gateway, (shard,) = CommandGateway(NodeBackend(node), answer_s=60), node.shards.values()

    peaks.phase = "accepted and sealed"
    ids: list[str] = []
    for first in range(0, messages, _TOGETHER):
        some = range(first, min(first + _TOGETHER, messages))
        sent = await gateway.send([Draft("large", b"%d" % n + bytes(size), window + n // 8) for n in some])
        ids += [receipt.id for receipt in sent if isinstance(receipt, Receipt)]
    assert len(ids) == messages
    await until(lambda: shard.store.delay_files.messages == messages)

    peaks.phase = "looked up"
    for id_ in ids[:: max(messages // 50, 1)]:
        state = await gateway.state(id_)
        assert state is not None and state.payload is not None and len(state.payload) >= size

    peaks.phase = "moved and cancelled"
    moved, cancelled = ids[1::4], ids[2::8]
    for kind, some_ids in ((MOVE, moved), (CANCEL, cancelled), (MOVE, moved)):  # the second time where they are now
        outcomes = await gateway.change(kind, some_ids, window + WINDOW_MS - 1)
        applied = shard.replica.entry.applied
        await until(lambda applied=applied: shard.replica.entry.applied >= applied)  # type: ignore[misc]
        assert {outcome.answer for outcome in outcomes} <= {Answer.OK, None}

    peaks.phase = "loaded and delivered"
    step_ms = window + 2 * WINDOW_MS - clock()
    await until(lambda: shard.replica.entry.pending == 0 and shard.replica.entry.applied > messages)
    counts = shard.replica.entry.outcomes
    stop.set()
    await running
    watching.cancel()
    opened.close()
    assert counts.delivered == messages - len(cancelled)
    return {"messages": messages, "bytes": size, "delivered": counts.delivered, "peaks": peaks.bytes}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(Path(sys.argv[1]), int(sys.argv[2]), int((sys.argv[3:] or ["1048576"])[0])))))
