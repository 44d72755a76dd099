"""A process that writes numbered batches into an embedded log, and a check of the surviving batches."""

from __future__ import annotations

import textwrap
from pathlib import Path

from duemq.bus.embedded.bus import EmbeddedBus

# Three writers at once; every batch goes to both topics and says its number, its size and its place in the batch.
# Every other one waits for a master, which copies the ledger to the topic `decisions`, and reads it ahead of syncs.
# Says each number once it is acknowledged; with a third argument by a file of this name and the number.
WRITER = textwrap.dedent("""
    import asyncio, sys
    from pathlib import Path
    from duemq.bus.embedded.bus import EmbeddedBus

    async def write(bus, number, step):
        while True:
            size = 1 + number * 7919 % 300
            frames = [b"%d %d %d " % (number, size, at) + b"x" * (at % 200) for at in range(size)]
            batch = {("orders", number % 2): frames, ("ledger", 0): [b"%d" % number]}
            await bus.append(batch, for_answer=number % 2 == 1)
            if len(sys.argv) > 3:
                Path(f"{sys.argv[3]}{number}").touch()
            print(number, flush=True)
            number += step

    async def decide(bus):
        committer, grown = await bus.committer("master"), bus.ahead.subscribe("ledger", 0)
        decided = await bus.end_offset("decisions", 0)
        while True:
            while commands := await bus.ahead.read("ledger", 0, decided, 1_000):
                await committer.commit({("decisions", 0): [frame for _, _, frame in commands]})
                decided += len(commands)
            await grown.wait()

    async def main():
        bus = await EmbeddedBus.open(Path(sys.argv[1]))
        await bus.create_topic("orders", 2)
        await bus.create_topic("ledger", 1)
        await bus.create_topic("decisions", 1)
        start = int(sys.argv[2])
        await asyncio.gather(decide(bus), *(write(bus, start + at, 3) for at in range(3)))

    asyncio.run(main())
""")


async def recovered(folder: Path) -> tuple[list[int], list[int]]:
    """The numbers in the ledger, and those of the batches in `orders`, which must be whole.

    The decisions must be the beginning of the ledger: none may be durable before its command.
    """
    bus = await EmbeddedBus.open(folder)
    try:
        ledger = [int(frame) for frame in await frames_of(bus, "ledger", 0)]
        decisions = [int(frame) for frame in await frames_of(bus, "decisions", 0)]
        assert decisions == ledger[: len(decisions)]
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
