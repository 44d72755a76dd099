"""kill -9 at any moment under load: every accepted message has exactly one outcome, and it is the one that was
answered.

`KILL_ROUNDS=100 pytest tests/e2e/test_kill.py` runs it for longer, `KILL_SEED` with other chances.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable

from tests.e2e.load import TOPIC, Load
from tests.e2e.reader import Reader
from tests.e2e.reconcile import final_states, nothing_pending, reconcile, whole_batches
from tests.e2e.server import Server, run

ROUNDS = int(os.environ.get("KILL_ROUNDS", "8"))
SEED = int(os.environ.get("KILL_SEED", "1"))
SENDERS = 8


async def kill_under_load(server: Server) -> tuple[Load, Reader]:
    """The load, and a consumer that read meanwhile."""
    chance = random.Random(SEED)
    load = Load([server.url], SEED)
    reader = Reader(load, server.url)

    async def rounds() -> None:
        for number in range(ROUNDS):
            load.up.set()
            await asyncio.sleep(chance.uniform(0.2, 1.0))
            load.up.clear()
            server.kill()
            if number == ROUNDS // 2:
                checked = await asyncio.to_thread(run, "verify", "--data", server.data)
                assert checked.returncode == 0, checked.stdout + checked.stderr
            await asyncio.to_thread(server.start)
        load.up.set()
        await asyncio.sleep(0.5)
        load.stop()
        reading.cancel()

    async with asyncio.TaskGroup() as group:
        reading = group.create_task(reader.run(), name="consumer")
        group.create_task(load.run(SENDERS), name="load")
        group.create_task(rounds(), name="rounds")
    return load, reader


def test_nothing_is_lost_twice_early_or_untrue(new_server: Callable[..., Server]) -> None:
    server = new_server(
        "--shards", "2", "--set", "topics.partitions=3", "--set", "storage.flush_interval_s=0.7"
    ).start()
    load, reader = asyncio.run(kill_under_load(server))
    asyncio.run(nothing_pending(server.url, TOPIC))

    records = server.records(TOPIC)
    reconcile(load.messages.values(), records)
    whole_batches(load.batches, records)
    reader.check(records)
    asyncio.run(final_states([server.url], load.messages.values()))

    assert server.stop() == 0, server.log
    assert "Traceback" not in server.log
    checked = run("verify", "--data", server.data)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    # The load has to have been one: all kinds of requests, in every round, and some of them cut off.
    assert load.done["no answer"] >= ROUNDS, load.done
    assert len(records) > 100 * ROUNDS, (len(records), load.done)
    assert all(load.done[kind] > ROUNDS for kind in ("batch", "named", "keyed", "cancel", "move", "deliver_now")), (
        load.done
    )
