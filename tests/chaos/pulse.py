"""A steady rate of messages to one topic over HTTP, and how late each of them came, by the broker's stamps."""

from __future__ import annotations

import asyncio
from itertools import cycle
from typing import NamedTuple

import aiohttp

from tests.chaos.pace import SLOW
from tests.chaos.topics import committed, end_offsets
from tests.chaos.world import World
from tests.e2e.load import now_ms

_PART_MS = 100
_AHEAD_MS = 2_000
_DELIVERED_S = 300.0 * SLOW


class Lateness(NamedTuple):
    """Of `messages`; ms."""

    messages: int
    p50: int
    p99: int
    max: int


async def pulse(world: World, topic: str, per_s: int, seconds: int) -> Lateness:
    """Send for this long, and wait until all is delivered; fails if some is missing, or more arrives."""
    written = sum((await end_offsets(world.bootstrap, [topic])).values())
    proxies = cycle(world.cluster.proxies)
    start, of_part = now_ms(), per_s * _PART_MS // 1_000
    again: list[str] = []  # what was sent again, for nobody knew what became of it: it may come more than once
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        for part in range(seconds * 1_000 // _PART_MS):
            first = start + _AHEAD_MS + part * _PART_MS
            dues = [first + number * _PART_MS // of_part for number in range(of_part)]
            messages = [
                {"topic": topic, "payload": f"{due} {part}.{number}", "deliver_at": due}
                for number, due in enumerate(dues)
            ]
            group.create_task(_send(session, next(proxies).url, messages, again), name="part")
            await asyncio.sleep(max(start + (part + 1) * _PART_MS - now_ms(), 0) / 1000)

    count = seconds * 1_000 // _PART_MS * of_part

    async def all_written() -> bool:
        # More offsets than messages: a transaction ends with a marker.
        return sum((await end_offsets(world.bootstrap, [topic])).values()) - written >= count

    await world.until(all_written, f"{count} messages in {topic}", _DELIVERED_S)

    async def all_delivered() -> bool:
        came = [
            (record["payload"], record["timestamp_ms"] - due)
            for record in await committed(world.bootstrap, topic)
            if (due := int(record["payload"].partition(" ")[0])) >= start
        ]
        assert len(came) <= count + len(again), f"{len(came)} records of {count} messages in {topic}"
        late[:] = sorted(dict(came).values())
        return len(late) == count

    late: list[int] = []
    await world.until(all_delivered, f"{count} messages in {topic}", _DELIVERED_S)
    assert late[0] >= 0, f"{-late[0]} ms early"
    return Lateness(count, late[count // 2], late[count * 99 // 100], late[-1])


async def _send(session: aiohttp.ClientSession, url: str, messages: list[dict[str, object]], again: list[str]) -> None:
    while True:
        async with session.post(f"{url}/v1/messages:batch", json={"messages": messages}) as answer:
            said = await answer.json()
        if answer.status not in (503, 504):
            assert answer.status == 200 and said["accepted"] == len(messages), said
            return
        again += [str(message["payload"]) for message in messages]
        await asyncio.sleep(float(answer.headers.get("Retry-After", 1)))
