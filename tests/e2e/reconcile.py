"""The end of a load: what the topic shows, what was answered and what the API says now are the same story."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any

import aiohttp

from tests.e2e.load import now_ms
from tests.e2e.outcomes import Message
from tests.support.patience import PROCESS_S

Record = Mapping[str, Any]
_ASKING = 8
_AGAIN_S = 0.2


def by_payload(records: Iterable[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        found[record["payload"]].append(record)
    return found


def reconcile(messages: Iterable[Message], records: Sequence[Record]) -> None:
    """Every message has exactly one outcome, and it is the one that was answered; nothing is there that nobody sent."""
    found = by_payload(records)
    ids = [record["headers"]["duemq-id"] for record in records]
    assert len(set(ids)) == len(ids), "delivered twice"
    for message in messages:
        message.reconcile(found.pop(message.payload, []))
    assert not found, f"messages that nobody sent: {sorted(found)[:5]}"


def whole_batches(batches: Iterable[list[str]], records: Iterable[Record]) -> None:
    """Where one log takes a whole request at once, a batch without an answer was accepted or not."""
    found = by_payload(records)
    for batch in batches:
        assert sum(len(found.get(payload, ())) for payload in batch) in (0, len(batch)), "half a batch was accepted"


async def nothing_pending(url: str, topic: str, within_s: float = PROCESS_S) -> None:
    """Wait until all messages of a topic have fallen due."""
    async with aiohttp.ClientSession(url) as session, asyncio.timeout(within_s):
        while True:
            async with session.get(f"/v1/messages?topic={topic}&limit=1000") as answer:
                page = await answer.json()
            pending, more = page.get("messages"), page.get("cursor")
            if pending == [] and more is None:
                return
            wait_ms = pending[-1]["deliver_at_ms"] - now_ms() if pending else 0
            await asyncio.sleep(max(wait_ms, 20) / 1000)


async def final_states(urls: Sequence[str], messages: Iterable[Message]) -> None:
    """What the API says of each message in the end is what the topic shows. The servers at `urls` are asked in turn."""
    waiting = iter([message for message in messages if message.id is not None])
    next_url = cycle(urls)

    async def ask(session: aiohttp.ClientSession) -> None:
        for message in waiting:
            shown = await state_of(session, message)
            assert shown["status"] in ("delivered", "cancelled"), (shown, message.history)
            message.seen("in the end", shown)

    async def state_of(session: aiohttp.ClientSession, message: Message) -> dict[str, Any]:
        while True:
            async with session.get(f"{next(next_url)}/v1/messages/{message.id}") as answer:
                shown: dict[str, Any] = await answer.json()
                if answer.status == 200:
                    return shown
                assert answer.status == 503, (shown, message.history)
            await asyncio.sleep(_AGAIN_S)

    async with asyncio.timeout(PROCESS_S), aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        for _ in range(_ASKING):
            group.create_task(ask(session))
