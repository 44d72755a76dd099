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

from tests.e2e.load import TOPIC, Load, now_ms
from tests.e2e.server import Server, run

ROUNDS = int(os.environ.get("KILL_ROUNDS", "8"))
SEED = int(os.environ.get("KILL_SEED", "1"))
SENDERS = 8


async def kill_under_load(server: Server) -> tuple[Load, list[Any]]:
    """The load, and what a consumer read meanwhile."""
    chance = random.Random(SEED)
    load = Load(server.url, SEED)
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


def everything_is_due(server: Server) -> None:
    """Wait until nothing is pending any more."""

    async def empty() -> None:
        async with aiohttp.ClientSession(server.url) as session, asyncio.timeout(30):
            while True:
                async with session.get(f"/v1/messages?topic={TOPIC}&limit=1000") as answer:
                    pending = (await answer.json())["messages"]
                if not pending:
                    return
                await asyncio.sleep(max(pending[-1]["deliver_at_ms"] - now_ms(), 20) / 1000)

    asyncio.run(empty())


def test_nothing_is_lost_twice_early_or_untrue(new_server: Callable[..., Server]) -> None:
    server = new_server(
        "--shards", "2", "--set", "topics.partitions=3", "--set", "storage.flush_interval_s=0.7"
    ).start()
    load, read = asyncio.run(kill_under_load(server))
    everything_is_due(server)

    records = server.records(TOPIC)
    by_payload = defaultdict(list)
    for record in records:
        by_payload[record["payload"]].append(record)
    ids = [record["headers"]["duemq-id"] for record in records]
    assert len(set(ids)) == len(ids), "delivered twice"
    assert by_payload.keys() <= load.messages.keys(), "a message that nobody sent"
    for message in load.messages.values():
        message.reconcile(by_payload[message.payload])
    for batch in load.batches:
        assert sum(len(by_payload[payload]) for payload in batch) in (0, len(batch)), "half a batch was accepted"
    same_places(read, records)
    asyncio.run(final_states(server, load))

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


async def final_states(server: Server, load: Load) -> None:
    """What the API says of each message in the end is what the topic shows."""
    waiting = iter([message for message in load.messages.values() if message.id is not None])

    async def ask(session: aiohttp.ClientSession) -> None:
        for message in waiting:
            async with session.get(f"/v1/messages/{message.id}") as answer:
                shown = await answer.json()
                assert answer.status == 200, (shown, message.history)
            assert shown["status"] in ("delivered", "cancelled"), (shown, message.history)
            message.seen("in the end", shown)

    async with aiohttp.ClientSession(server.url) as session, asyncio.TaskGroup() as group:
        for _ in range(SENDERS):
            group.create_task(ask(session))
