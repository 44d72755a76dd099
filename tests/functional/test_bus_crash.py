"""kill -9 at any moment: what was acknowledged is there, nothing is half, missing or twice."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import textwrap
from pathlib import Path

from duemq.bus.embedded import EmbeddedBus

ROUNDS = 12

# Three writers at once; every batch goes to both topics and says its number, its size and its place in the batch.
WRITER = textwrap.dedent("""
    import asyncio, sys
    from pathlib import Path
    from duemq.bus.embedded import EmbeddedBus

    async def write(bus, number, step):
        while True:
            size = 1 + number * 7919 % 300
            frames = [b"%d %d %d " % (number, size, at) + b"x" * (at % 200) for at in range(size)]
            await bus.append({("orders", number % 2): frames, ("ledger", 0): [b"%d" % number]})
            print(number, flush=True)
            number += step

    async def main():
        bus = await EmbeddedBus.open(Path(sys.argv[1]))
        await bus.create_topic("orders", 2)
        await bus.create_topic("ledger", 1)
        start = int(sys.argv[2])
        await asyncio.gather(*(write(bus, start + at, 3) for at in range(3)))

    asyncio.run(main())
""")


async def recovered(folder: Path) -> tuple[list[int], list[int]]:
    """The numbers in the ledger, and those of the batches in `orders`, which must be whole."""
    bus = await EmbeddedBus.open(folder)
    try:
        ledger = [int(frame) for frame in await frames_of(bus, "ledger", 0)]
        batches = []
        for partition in range(2):
            frames = [
                [int(field) for field in frame.split()[:3]] for frame in await frames_of(bus, "orders", partition)
            ]
            while frames:
                number, size, _ = frames[0]
                assert frames[:size] == [[number, size, at] for at in range(size)]
                batches.append(number)
                del frames[:size]
        return ledger, batches
    finally:
        await bus.close()


async def frames_of(bus: EmbeddedBus, topic: str, partition: int) -> list[bytes]:
    frames: list[bytes] = []
    while records := await bus.read(topic, partition, len(frames), 1_000):
        assert [record.offset for record in records] == list(range(len(frames), len(frames) + len(records)))
        frames += [record.frame for record in records]
    return frames


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
