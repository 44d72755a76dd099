"""kill -9 at any moment under load: every accepted message has exactly one fate, and it is the one that was answered.

`KILL_ROUNDS=100 pytest tests/e2e/test_kill.py` runs it for longer, `KILL_SEED` with other chances.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import aiohttp

from tests.e2e.load import TOPIC, Load
from tests.e2e.reconcile import final_states, nothing_pending, reconcile, whole_batches
from tests.e2e.server import Server, run

ROUNDS = int(os.environ.get("KILL_ROUNDS", "8"))
SEED = int(os.environ.get("KILL_SEED", "1"))
SENDERS = 8


async def kill_under_load(server: Server) -> tuple[Load, list[Any]]:
    """The load, and what a consumer read meanwhile."""
    chance = random.Random(SEED)
    load = Load([server.url], SEED)
    read: list[Any] = []

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
        reader.cancel()

    async with asyncio.TaskGroup() as group:
        reader = group.create_task(follow(load, server.url, read), name="consumer")
        group.create_task(load.run(SENDERS), name="load")
        group.create_task(rounds(), name="rounds")
    return load, read


async def follow(load: Load, url: str, read: list[Any]) -> None:
    """A consumer that goes on from its cursor whatever happens to the server."""
    after = ""
    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=10)) as session:
        while True:
            await load.up.wait()
            try:
                async with session.get(f"/v1/topics/{TOPIC}/records?wait=500ms{after}") as answer:
                    if answer.status != 200:
                        continue
                    page = await answer.json()
            except (aiohttp.ClientError, TimeoutError, OSError):
                await asyncio.sleep(0.01)
                continue
            read += page["records"]
            after = f"&after={page['cursor']}"


def test_nothing_is_lost_twice_early_or_untrue(new_server: Callable[..., Server]) -> None:
    server = new_server(
        "--shards", "2", "--set", "topics.partitions=3", "--set", "storage.flush_interval_s=0.7"
    ).start()
    load, read = asyncio.run(kill_under_load(server))
    asyncio.run(nothing_pending(server.url, TOPIC))

    records = server.records(TOPIC)
    reconcile(load.messages.values(), records)
    whole_batches(load.batches, records)
    same_places(read, records)
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


def same_places(read: list[Any], records: list[Any]) -> None:
    """What a consumer saw before a kill is there afterwards, at the same place, and it missed nothing before it."""
    seen: dict[int, list[Any]] = defaultdict(list)
    kept: dict[int, list[Any]] = defaultdict(list)
    for source, partitions in ((read, seen), (records, kept)):
        for record in source:
            partitions[record["partition"]].append(record)
    assert read
    for partition, part in seen.items():
        assert part == kept[partition][: len(part)]
