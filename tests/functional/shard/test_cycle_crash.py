"""A cycle that stops at any of its steps, and a node that is killed: after a restart every message has one outcome."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import textwrap
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from duemq.bus.embedded.bus import EmbeddedBus
from duemq.cluster.shards.progress import Progress
from duemq.cluster.topics.internal_topics import BUFFER, INTERNAL, LEDGER, committer_name
from duemq.cluster.topics.topic_states import TopicStates
from duemq.delay.core.limits import CycleLimits
from duemq.delay.metrics import Observer
from duemq.delay.replica.replica import Replica
from duemq.delay.shard.master import Master
from duemq.model.errors import StoreFailed
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.key import make_key
from duemq.model.messages.message import CANCEL, Draft, change_frame, schedule_frame
from duemq.model.messages.record import unpack_record
from duemq.storage.rocksdb import Memory
from duemq.storage.shard.store import ShardStore
from tests.support.shard.shard_world import START, NodeContext

IDS = IdCodec(b"s" * 32)
TOPIC = "orders"
COUNT = 30
DUE = START + 1_000


class Killed(Exception):
    """The process ends here."""


@dataclass
class Process:
    """What one process holds of a folder: the log, one shard's store, and its master. `armed`: steps that fail."""

    bus: EmbeddedBus
    store: ShardStore
    replica: Replica
    master: Master
    armed: set[str]

    @staticmethod
    async def start(folder: Path, now: int) -> Process:
        armed: set[str] = set()

        def step(name: str) -> None:
            if name in armed:
                raise Killed(name)

        bus = await EmbeddedBus.open(folder / "log", clock=lambda: now, failpoint=step)
        for topic in (*INTERNAL, TOPIC):
            await bus.create_topic(topic, 1)
        store = ShardStore(folder / "shard", Memory(1 << 20, 1 << 20))
        replica = Replica(0, store, IDS)
        committer = await bus.committer(committer_name(0))
        await replica.follow(bus)
        context = NodeContext(TopicStates(bus, 0), Observer(CollectorRegistry()), lambda: now)
        master = Master(replica, bus, committer, context, CycleLimits(max_messages=7), Progress())
        return Process(bus, store, replica, master, armed)

    async def killed(self, folder: Path, copy: Path) -> None:
        """Leave what is on disk now to the next process: a close would flush what a killed one never flushed."""
        shutil.copytree(folder, copy)
        self.store.close()
        await self.bus.close()


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("step", ["before_write", "after_write", "after_sync", "before_store", "after_store"])
def test_a_cycle_that_stops_anywhere_is_finished_or_done_again(
    step: str, flushed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        first = await Process.start(tmp_path / "1", START)
        frames = [schedule_frame(Draft(TOPIC, b"%d" % number), DUE - number) for number in range(COUNT)]
        await first.bus.append({(BUFFER, 0): frames})
        await first.master.tick()
        if flushed:
            first.store.flush()
        await first.killed(tmp_path / "1", tmp_path / "2")

        second = await Process.start(tmp_path / "2", DUE)
        cancels = [change_frame(CANCEL, make_key(DUE - number, number, 0)) for number in range(0, COUNT, 3)]
        await second.bus.append({(BUFFER, 0): cancels})
        write = second.store.write

        def stop_at_write(*args: Any) -> None:
            if step == "after_store":
                write(*args)
            raise Killed(step)

        if step.endswith("store"):
            monkeypatch.setattr(second.store, "write", stop_at_write)
        second.armed.add(step)
        with pytest.raises((Killed, StoreFailed)):
            await second.master.tick()
        entries = second.replica.entry.number
        await second.killed(tmp_path / "2", tmp_path / "3")

        third = await Process.start(tmp_path / "3", DUE)
        committed = step != "before_write"
        assert third.replica.entry.number == entries + (committed and step != "after_store")
        while await third.master.tick() == 0:
            pass
        sent = [unpack_record(frame).value for _, _, frame in await third.bus.read(TOPIC, 0, 0, 1000)]
        assert sent == [b"%d" % number for number in reversed(range(COUNT)) if number % 3]
        assert third.replica.entry.outcomes == (COUNT, COUNT - len(cancels), len(cancels), 0)
        assert third.replica.entry.number == await third.bus.end_offset(LEDGER, 0) - 1
        assert third.replica.wheel.total == third.replica.recount() == 0
        await third.killed(tmp_path / "3", tmp_path / "4")

    asyncio.run(run())


# --- a whole node -----------------------------------------------------------------------------------------------------

# `load`: sends and cancels until it is killed, and says what was acknowledged. `drain`: runs until nothing is pending.
NODE = textwrap.dedent("""
    import asyncio, sys
    from pathlib import Path
    from prometheus_client import CollectorRegistry
    from duemq.bus.embedded.bus import EmbeddedBus, wall_clock
    from duemq.delay.node_backend import NodeBackend
    from duemq.proxy.gateway.gateway import CommandGateway
    from duemq.delay.node import Node, NodeOptions
    from duemq.cluster.topics.internal_topics import BUFFER
    from duemq.delay.core.disk_watermarks import NEVER
    from duemq.election.single import SingleElection
    from duemq.model.messages.message import CANCEL, Draft
    from duemq.storage.data_folder import Folder

    async def load(node, gateway):
        for start in range(0, 10**9, 50):
            numbers = range(start, start + 50)
            drafts = [Draft("orders", b"%d" % number, wall_clock() + number % 700) for number in numbers]
            ids = [receipt.id for receipt in await gateway.send(drafts)]
            outcomes = await gateway.change(CANCEL, [ids[7], ids[49]])
            print(*("sent " + id for id in ids), sep="\\n")
            print(*("cancelled " + outcome.id for outcome in outcomes if outcome.answer == 0), sep="\\n")
            print("round", flush=True)

    async def drain(node, gateway):
        for number, shard in node.shards.items():
            await shard.progress.wait_until_applied(await node.bus.end_offset(BUFFER, number) - 1, 30)
        while any(shard["pending"] for shard in gateway.cluster()["shards"]):
            await asyncio.sleep(0.02)

    async def main(path, work):
        folder = Folder.open(path, 2)
        options = NodeOptions(flush_interval_s=0.2, marks=NEVER)
        registry = CollectorRegistry()
        node = Node(folder, lambda: EmbeddedBus.open(path / "log"), SingleElection(2), options, registry, wall_clock)
        gateway, stop = CommandGateway(NodeBackend(node)), asyncio.Event()
        running = asyncio.create_task(node.run(stop))
        while gateway.why_not_ready() is not None:
            await asyncio.sleep(0.01)
        await work(node, gateway)
        stop.set()
        await running

    asyncio.run(main(Path(sys.argv[1]), globals()[sys.argv[2]]))
""")


def load_and_kill(path: Path, rounds: int, sent: set[str], cancelled: set[str]) -> None:
    """Kill a node under load after so many rounds; adds the ids that it had acknowledged."""
    with subprocess.Popen([sys.executable, "-c", NODE, path, "load"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines: list[str] = []
        while lines.count("round\n") < rounds:
            lines.append(process.stdout.readline())
            assert lines[-1], "the node ended by itself"
        process.kill()
        lines += process.stdout.readlines()
    for word, ids in (("sent", sent), ("cancelled", cancelled)):
        ids |= {line.split()[1] for line in lines if line.startswith(f"{word} ") and line.endswith("\n")}


def test_a_killed_node_keeps_every_promise(tmp_path: Path) -> None:
    sent: set[str] = set()
    cancelled: set[str] = set()
    for rounds in (25, 3, 12):
        load_and_kill(tmp_path, rounds, sent, cancelled)
    subprocess.run([sys.executable, "-c", NODE, tmp_path, "drain"], check=True, timeout=300)

    async def delivered() -> list[str]:
        bus = await EmbeddedBus.open(tmp_path / "log")
        frames = await bus.read(TOPIC, 0, 0, 1_000_000, 1 << 30)
        await bus.close()
        return [(unpack_record(frame).header("duemq-id") or b"").decode() for _, _, frame in frames]

    counts = Counter(asyncio.run(delivered()))
    assert len(sent) >= 40 * 50 and len(cancelled) >= 20
    assert set(counts.values()) == {1}, "delivered twice"
    assert sent - cancelled <= counts.keys(), "lost"
    assert not cancelled & counts.keys(), "delivered though it was cancelled"
