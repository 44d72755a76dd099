"""A node under load that seals, rewrites, loads and imports delay files, to be killed at any moment.

    python node_worker.py DATA LOG SOURCES AHEAD_MS FIRST

Its log is elsewhere, as Kafka is for a node: only DATA is on the disk that forgets. Its clock is AHEAD_MS ahead, and
the payloads of its messages are numbers from FIRST on. It says in a line of words what it is about to do to a message,
and what it was answered. FIRST -1: it sends nothing, and ends once nothing is pending.
"""

from __future__ import annotations

import asyncio
import sys
import time
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from prometheus_client import CollectorRegistry

from duemq.bus.embedded.bus import EmbeddedBus
from duemq.delay.core.disk_watermarks import NEVER
from duemq.delay.node import Node, NodeOptions
from duemq.delay.node_backend import NodeBackend
from duemq.delay.tiering.tiering_policy import TieringPolicy
from duemq.election.single import SingleElection
from duemq.model.log.ledger import Answer
from duemq.model.messages.import_command import ImportCommand
from duemq.model.messages.message import CANCEL, DELIVER_NOW, MOVE, Draft
from duemq.model.timing import WINDOW_MS, window_of
from duemq.proxy.gateway.base import Receipt
from duemq.proxy.gateway.gateway import CommandGateway
from duemq.storage.data_folder import Folder
from duemq.storage.delay_files.columns import SCHEMA
from duemq.storage.imports.import_file import summary_of
from duemq.storage.imports.policy import ImportPolicy
from duemq.storage.shard.records import IMPORTED

TOPIC, SHARDS = "orders", 2
DELAY_FILE = TieringPolicy(rows=20, windows=1, quiet_ms=0, rewrite_share=0.1, rewrite_rows=1, join_files=2, join_ms=0)
_NEAR, _FAR, _IMPORTED = 10, 80, 10  # messages of a turn


def say(*words: object) -> None:
    print(*words, flush=True)


class Load:
    def __init__(self, gateway: CommandGateway, sources: Path, ahead_ms: int, first: int) -> None:
        self._gateway, self._sources, self._ahead_ms = gateway, sources, ahead_ms
        self._numbers = count(first)
        self._delay_files: list[tuple[str, str]] = []  # payload and id

    def now(self) -> int:
        return time.time_ns() // 1_000_000 + self._ahead_ms

    async def run(self) -> None:
        for turn in count():
            why = self._gateway.why_not_ready()
            assert why is None, why
            window = window_of(self.now()) + (3 + turn % 3) * WINDOW_MS
            await self._send([self.now() + 50 * at for at in range(_NEAR)])
            self._delay_files += await self._send([window + 100 * at for at in range(_FAR)])
            if turn % 4 == 1:
                await self._import_file(window + 3 * WINDOW_MS)
            for kind, word, due in ((CANCEL, "cancel", 0), (MOVE, "move", 300), (DELIVER_NOW, "hurry", 0)):
                chosen = [self._delay_files.pop(0 if turn % 2 else -1) for _ in range(6)]
                say(word, "wanted", *(payload for payload, _ in chosen))
                outcomes = await self._gateway.change(kind, [id_ for _, id_ in chosen], due and self.now() + due)
                done = [payload for (payload, _), outcome in zip(chosen, outcomes, strict=True)
                        if outcome.answer is Answer.OK]  # fmt: skip
                say(word, "done", *done)

    async def _send(self, dues: list[int]) -> list[tuple[str, str]]:
        drafts = [Draft(TOPIC, b"%d" % next(self._numbers), due) for due in dues]
        receipts = await self._gateway.send(drafts)
        given = [((draft.payload or b"").decode(), receipt.id) for draft, receipt in zip(drafts, receipts, strict=True)
                 if isinstance(receipt, Receipt)]  # fmt: skip
        say("sent", "done", *(payload for payload, _ in given))
        return given

    async def _import_file(self, window: int) -> None:
        """Have a file imported, and remove it once that is said: nobody needs it any more."""
        payloads = [next(self._numbers) for _ in range(_IMPORTED)]
        source = self._sources / f"{payloads[0]}.parquet"
        rows = [
            {"due_ms": window + at, "topic": TOPIC, "payload": b"%d" % number} for at, number in enumerate(payloads)
        ]
        nullable = pa.schema([field.with_nullable(True) for field in SCHEMA])
        pq.write_table(pa.Table.from_pylist(rows, nullable), source)
        about = summary_of(source)
        given = await self._gateway.import_file(
            ImportCommand(str(source), about.sha256, about.size, about.window, about.rows)
        )
        while True:
            found = await self._gateway.import_record(given.id)
            if found is not None and found.import_record is not None and found.import_record.state == IMPORTED:
                break
            await asyncio.sleep(0.02)
        say("sent", "done", *payloads)
        source.unlink()

    async def drain(self) -> None:
        while any(shard["pending"] for shard in self._gateway.cluster()["shards"]):
            why = self._gateway.why_not_ready()
            assert why is None, why
            await asyncio.sleep(0.05)


async def main(data: Path, log: Path, sources: Path, ahead_ms: int, first: int) -> None:
    folder = Folder.open(data, SHARDS)
    options = NodeOptions(delay_files=DELAY_FILE, flush_interval_s=0.3, marks=NEVER, importing=ImportPolicy((sources,)))
    bus, election = (lambda: EmbeddedBus.open(log)), SingleElection(SHARDS)

    def now() -> int:
        return time.time_ns() // 1_000_000 + ahead_ms

    node = Node(folder, bus, election, options, CollectorRegistry(), now)
    gateway, stop = CommandGateway(NodeBackend(node)), asyncio.Event()
    running = asyncio.create_task(node.run(stop))
    await asyncio.wait([asyncio.create_task(node.ready.wait()), running], return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()
    load = Load(gateway, sources, ahead_ms, first)
    say("ready")
    await (load.run() if first >= 0 else load.drain())
    stop.set()
    await running
    folder.close()


if __name__ == "__main__":
    data, log, sources = map(Path, sys.argv[1:4])
    asyncio.run(main(data, log, sources, int(sys.argv[4]), int(sys.argv[5])))
