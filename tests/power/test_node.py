"""Power cuts on a node with delay files, whose log is elsewhere: what it was told and what it answered stays true.

`POWER_ROUNDS=50 pytest tests/power/test_node.py` is the full form.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from duemq.bus.embedded.bus import EmbeddedBus
from duemq.delay.recovery.verify import verify
from duemq.model.messages.record import unpack_record
from duemq.storage.data_folder import Folder
from duemq.storage.rocksdb import Memory
from tests.power.layer import Layer
from tests.power.node_worker import TOPIC

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("POWER_ROUNDS", "6"))
SEED = int(os.environ.get("POWER_SEED", "1"))
WORKER = Path(__file__).with_name("node_worker.py")
ROUND_MS = 45 * 60_000  # so far the clock goes on in each round: what one seals, the next ones load
NUMBERS = 1_000_000  # for the messages of one round
END_MS = 24 * 3_600_000
VERIFIED = 5


class Site:
    """A node's folder on the disk that forgets, and what is elsewhere. `said`: payloads by what was done to them."""

    def __init__(self, layer: Layer, elsewhere: Path) -> None:
        self.data, self.log, self.sources = layer.root / "data", elsewhere / "log", elsewhere / "sources"
        self.sources.mkdir()
        self.said: defaultdict[str, set[str]] = defaultdict(set)
        self._layer = layer

    def spawn(self, ahead_ms: int, first: int, environment: dict[str, str]) -> subprocess.Popen[str]:
        command = [sys.executable, WORKER, self.data, self.log, self.sources, ahead_ms, first]
        return subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, text=True, env=os.environ | environment,
            start_new_session=True,
        )  # fmt: skip

    def load_and_cut(self, number: int, answers: int, chance: Random | None) -> None:
        """Cut the power once a node has said so many lines, in the round of this number."""
        with self.spawn(number * ROUND_MS, number * NUMBERS, self._layer.environment) as node:
            assert node.stdout is not None
            lines = [node.stdout.readline()]
            assert lines == ["ready\n"]
            for _ in range(answers):
                lines.append(node.stdout.readline())
                assert lines[-1], "the node ended by itself"
            os.killpg(node.pid, 9)
            lines += node.stdout.readlines()
        for line in lines:
            what, *payloads = line.split()
            if payloads and line.endswith("\n"):
                self.said[f"{what} {payloads[0]}"] |= set(payloads[1:])
        self._layer.cut(chance)

    def drain(self, rounds: int) -> None:
        with self.spawn(rounds * ROUND_MS + END_MS, -1, {}) as node:
            assert node.wait(300) == 0

    def wrong(self) -> list[str]:
        """What `duemq verify` would find. It changes the folder, and no power cut takes that back."""

        async def run() -> list[str]:
            folder, bus = Folder.open(self.data), await EmbeddedBus.open(self.log)
            try:
                checks = await verify(folder, bus, Memory(8 << 20, 8 << 20), lambda what, rows: None)
                return [f"{check.what}: {check.detail}" for check in checks if not check.good]
            finally:
                await bus.close()
                folder.close()

        found = asyncio.run(run())
        self._layer.begin()
        return found

    def delivered(self) -> Counter[str]:
        async def run() -> Counter[str]:
            bus = await EmbeddedBus.open(self.log)
            try:
                counts: Counter[str] = Counter()
                while records := await bus.read(TOPIC, 0, counts.total(), 10_000):
                    for _, timestamp, frame in records:
                        record = unpack_record(frame)
                        counts[record.payload.decode()] += 1
                        assert int(record.header("duemq-due") or b"0") <= timestamp + END_MS + ROUNDS * ROUND_MS
                return counts
            finally:
                await bus.close()

        return asyncio.run(run())

    def reconcile(self) -> Counter[str]:
        counts = self.delivered()
        assert set(counts.values()) == {1}, "delivered twice"
        lost = self.said["sent done"] - self.said["cancel wanted"] - counts.keys()
        assert not lost, f"{len(lost)} lost, such as {sorted(lost)[:5]}"
        undone = self.said["cancel done"] & counts.keys()
        assert not undone, f"delivered though cancelled: {sorted(undone)[:5]}"
        return counts


def test_nothing_is_lost_or_comes_twice(new_layer: Callable[..., Layer], tmp_path: Path) -> None:
    site, chance = Site(new_layer(sync_us=300), tmp_path), Random(SEED)
    files = 0
    for number in range(ROUNDS):
        site.load_and_cut(number, chance.randrange(60), chance if number % 2 else None)
        files += len(list(site.data.rglob("*.parquet")))
        if number % VERIFIED == VERIFIED // 2:
            assert site.wrong() == []
    site.drain(ROUNDS)
    counts = site.reconcile()
    assert site.wrong() == []
    assert files, "nothing was sealed"
    assert site.said["cancel done"] and site.said["move done"] and site.said["hurry done"]
    print(f"{ROUNDS} cuts, {len(site.said['sent done'])} messages accepted, {counts.total()} delivered")
