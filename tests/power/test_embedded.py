"""Power cuts at any moment under load, on the embedded bus: every accepted message has exactly one outcome, and it is
the one that was answered. No start finds damage.

`POWER_ROUNDS=200 pytest tests/power` is the full form, `POWER_SEED` makes other cuts.
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
from tests.power.layer import Layer

ROUNDS = int(os.environ.get("POWER_ROUNDS", "3"))
SEED = int(os.environ.get("POWER_SEED", "1"))
SENDERS = 8
LEAST = 100  # requests of a round
VERIFIED = 10  # every so many cuts the folder is read from end to end before the server is


async def cut_under_load(server: Server, layer: Layer) -> tuple[Load, Reader]:
    """The load, and a consumer that read meanwhile."""
    chance = random.Random(SEED)
    load = Load([server.url], SEED)
    reader = Reader(load, server.url)

    async def rounds() -> None:
        for number in range(ROUNDS):
            await asyncio.to_thread(server.start)
            load.up.set()
            enough = load.done.total() + LEAST
            await asyncio.sleep(chance.uniform(0.2, 1.0))
            while load.done.total() < enough:  # noqa: ASYNC110  # nobody tells; a slow machine needs longer
                await asyncio.sleep(0.02)
            load.up.clear()
            server.kill_all()
            # Every other cut takes all that was not synced, the others leave a part of it.
            await asyncio.to_thread(layer.cut, chance if number % 2 else None)
            if number % VERIFIED == VERIFIED // 2:
                checked = await asyncio.to_thread(run, "verify", "--data", server.data)
                assert checked.returncode == 0, checked.stdout + checked.stderr
                layer.begin()  # what verify did to the folder went past the layer
        server.environment = {}  # what comes now is not cut any more
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


def test_nothing_is_lost_twice_early_or_untrue(new_layer: Callable[..., Layer]) -> None:
    layer = new_layer(sync_us=500)
    options = ("--shards", "2", "--set", "topics.partitions=3", "--set", "storage.flush_interval_s=0.7")
    with Server(layer.root / "data", *options) as server:
        server.log_path = layer.root.with_name("server.log")
        server.environment = layer.environment
        load, reader = asyncio.run(cut_under_load(server, layer))
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
    assert all(load.done[kind] > ROUNDS for kind in ("batch", "named", "keyed", "cancel", "move", "deliver_now")), (
        load.done
    )
    print(f"{ROUNDS} cuts, {len(load.messages)} messages, {len(records)} deliveries, {dict(load.done)}")
