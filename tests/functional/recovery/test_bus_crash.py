"""kill -9 at any moment: what was acknowledged is there, nothing is half, missing or twice."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from pathlib import Path

from tests.support.node.bus_batches import WRITER, recovered

ROUNDS = 12


def test_kill_9_loses_nothing_acknowledged_and_leaves_nothing_half(tmp_path: Path) -> None:
    chance = random.Random(7)
    acknowledged: list[int] = []
    next_number = 0
    for _ in range(ROUNDS):
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(next_number)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(chance.randrange(1, 60)):
                acknowledged.append(int(writer.stdout.readline()))
            writer.kill()
            acknowledged += [int(line) for line in writer.stdout if line.endswith("\n")]
        ledger, batches = asyncio.run(recovered(tmp_path))
        assert set(acknowledged) <= set(ledger)
        assert sorted(batches) == sorted(set(ledger)) == sorted(ledger)
        next_number = max(ledger) + 1
    assert len(acknowledged) > ROUNDS
