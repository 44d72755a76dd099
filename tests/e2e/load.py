"""Senders that use all of the API at once, and know what was promised to them when the server dies in between."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from itertools import cycle
from typing import Any

import aiohttp

from tests.e2e.outcomes import ABSENT, Kind, Message, State

TOPIC = "load"
_AHEAD_MS = 3_000
_KEPT = 40  # messages that a sender goes on changing
_UNAVAILABLE_S = 0.05


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Load:
    """Senders that take the servers at `urls` in turn, `pause_s` between two requests of one sender.

    `up` is cleared while there is no server. `messages` by payload; `batches`: those without an answer; `under_way`:
    how many requests wait for theirs.
    """

    def __init__(self, urls: Sequence[str], seed: int, topic: str = TOPIC, pause_s: float = 0) -> None:
        self.messages: dict[str, Message] = {}
        self.batches: list[list[str]] = []
        self.done: Counter[str] = Counter()
        self.up = asyncio.Event()
        self.topic, self.pause_s = topic, pause_s
        self._urls, self._seed = cycle(urls), seed
        self.under_way = 0
        self._stopped = False
        self._session: aiohttp.ClientSession

    async def run(self, senders: int) -> None:
        """Until `stop`; fails with the first answer that is untrue."""
        timeout = aiohttp.ClientTimeout(total=15)
        async with aiohttp.ClientSession(timeout=timeout) as self._session, asyncio.TaskGroup() as group:
            for number in range(senders):
                sender = Sender(self, number, random.Random(self._seed * 1_000 + number))
                group.create_task(sender.run(), name=f"sender {number}")

    def stop(self) -> None:
        self._stopped = True

    @property
    def stopped(self) -> bool:
        return self._stopped

    async def call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Status and body; status 0 where no answer came, or one that leaves the outcome open."""
        while True:
            await self.up.wait()
            self.under_way += 1
            try:
                async with self._session.request(method, next(self._urls) + path, json=body, headers=headers) as answer:
                    content = await answer.json(content_type=None)
                    if answer.status in (202, 503, 504):
                        self.done[f"open {answer.status}"] += 1
                        if answer.status != 202:
                            await asyncio.sleep(_UNAVAILABLE_S)
                        return 0, content
                    assert answer.status < 500, (answer.status, content)
                    return answer.status, content
            except aiohttp.ClientConnectorError:  # never sent
                await asyncio.sleep(0.01)
            except (aiohttp.ClientError, TimeoutError, OSError):
                self.done["no answer"] += 1
                return 0, None
            finally:
                self.under_way -= 1


class Sender:
    """One thing after the other; only this one changes what it sent."""

    def __init__(self, load: Load, number: int, chance: random.Random) -> None:
        self._load, self._number, self._chance = load, number, chance
        self._count = 0
        self._mine: list[Message] = []
        self._names: list[tuple[Message, dict[str, Any], str]] = []
        self._actions: dict[Callable[[], Awaitable[None]], int] = {
            self.single: 6, self.direct: 1, self.batch: 3, self.named: 3, self.keyed: 3, self.again: 3, self.cancel: 6,
            self.cancel_some: 1, self.move: 5, self.deliver_now: 2, self.look: 3,
        }  # fmt: skip

    async def run(self) -> None:
        actions, weights = list(self._actions), list(self._actions.values())
        while not self._load.stopped:
            (action,) = self._chance.choices(actions, weights)
            await action()
            self._load.done[action.__name__] += 1
            await asyncio.sleep(self._load.pause_s)
            del self._mine[:-_KEPT]
            del self._names[:-_KEPT]

    # --- sending --------------------------------------------------------------------------------------------------

    def _new(self, *, due: int | None = None) -> tuple[Message, dict[str, Any]]:
        self._count += 1
        payload = f"{self._load.topic}.{self._number}.{self._count}"
        body = {"topic": self._load.topic, "payload": payload}
        if self._chance.random() < 0.5:
            body["key"] = f"k{self._chance.randrange(20)}"
        held = State(Kind.DELIVERED, 0, loose=True) if due is None else State(Kind.HELD, due)
        message = Message(payload, {ABSENT, held})
        self._load.messages[payload] = message
        return message, body if due is None else {**body, "deliver_at": due}

    def _due(self) -> int:
        return now_ms() + self._chance.randrange(_AHEAD_MS)

    async def single(self) -> None:
        message, body = self._new(due=self._due())
        await self._send(message, "POST", "/v1/messages", body)

    async def direct(self) -> None:
        message, body = self._new()
        await self._send(message, "POST", "/v1/messages", body)

    async def _send(
        self, message: Message, method: str, path: str, body: Any, headers: dict[str, str] | None = None
    ) -> None:
        status, answer = await self._load.call(method, path, body, headers)
        if status in (200, 201):
            message.accepted(answer)
            self._mine.append(message)
        elif status == 412:  # an earlier request under this name has arrived, though its answer has not
            message.answered("send again", answer["code"], message.states - {ABSENT})
        else:
            assert status == 0, (status, answer)

    async def batch(self) -> None:
        new = [self._new(due=self._due()) for _ in range(self._chance.randrange(2, 60))]
        status, answer = await self._load.call("POST", "/v1/messages:batch", {"messages": [body for _, body in new]})
        if status == 0:
            self._load.batches.append([message.payload for message, _ in new])
            return
        results = answer["results"]
        refused = [result["error"]["code"] for result in results if "error" in result]
        assert (status, answer["accepted"]) == (200, len(new) - len(refused)), answer
        assert set(refused) <= {"unavailable"}, answer  # some shards may have nobody just now: open, like no answer
        for (message, _), receipt in zip(new, results, strict=True):
            if "error" not in receipt:
                message.accepted(receipt)
        self._mine += [message for message, _ in new[:5] if message.id is not None]

    async def named(self) -> None:
        message, body = self._new(due=self._due())
        self._names.append((message, body, "name"))
        await self._repeat(*self._names[-1])

    async def keyed(self) -> None:
        message, body = self._new(due=self._due())
        self._names.append((message, body, "key"))
        await self._repeat(*self._names[-1])

    async def again(self) -> None:
        """The same request once more, be it because its answer never came."""
        if self._names:
            await self._repeat(*self._chance.choice(self._names))

    async def _repeat(self, message: Message, body: dict[str, Any], kind: str) -> None:
        first = message.id is None
        if kind == "key":
            status, answer = await self._load.call("POST", "/v1/messages", body, {"Idempotency-Key": message.payload})
        else:
            strict = {"If-None-Match": "*"} if self._chance.random() < 0.5 else {}
            status, answer = await self._load.call("PUT", f"/v1/messages/n.{message.payload}", body, strict)
        if status == 412:
            message.answered("send again", answer["code"], message.states - {ABSENT})
        elif status in (200, 201) and first:
            message.accepted(answer)
            self._mine.append(message)
        elif status in (200, 201):
            assert (status, answer.get("duplicate"), answer["id"]) == (200, True, message.id), (answer, message.history)
        else:
            assert status == 0, (status, answer)

    # --- changing -------------------------------------------------------------------------------------------------

    def _some(self) -> Message | None:
        return self._chance.choice(self._mine) if self._mine else None

    async def _change(self, what: str, method: str, path: str, due: int | None = None) -> None:
        message = self._some()
        if message is None:
            return
        body = None if due is None else {"deliver_at": due}
        status, answer = await self._load.call(method, path.format(message.id), body)
        code = None if status == 0 else "ok" if status == 200 else answer["code"]
        message.changed(what, code, due)
        if code == "already_delivered":
            at = answer.get("delivered_at_ms")  # not there where no replica can tell just now
            assert at is None or message.may_come_at(at), (answer, message.history)
        elif what == "deliver-now" and code == "ok":
            message.seen("sent at once", answer)
        elif what == "move" and code == "ok":
            message.seen("moved", answer)
            assert due is not None and (answer["deliver_at_ms"] == due or due < answer["deliver_at_ms"] <= now_ms())

    async def cancel(self) -> None:
        await self._change("cancel", "DELETE", "/v1/messages/{}")

    async def move(self) -> None:
        sooner_or_later = now_ms() + self._chance.randrange(-200, _AHEAD_MS)
        await self._change("move", "PATCH", "/v1/messages/{}", sooner_or_later)

    async def deliver_now(self) -> None:
        await self._change("deliver-now", "POST", "/v1/messages/{}:deliver-now")

    async def cancel_some(self) -> None:
        chosen = {message.id: message for message in self._chance.sample(self._mine, min(len(self._mine), 8))}
        status, answer = await self._load.call("POST", "/v1/messages:cancel", {"ids": list(chosen)})
        codes = {
            "cancelled": "ok",
            "already_delivered": "already_delivered",
            "unknown": "unknown_message",
            "pending": None,
        }
        results: list[Any] = answer["results"] if status else [{"id": id_, "status": "pending"} for id_ in chosen]
        assert [result["id"] for result in results] == list(chosen)
        for result in results:
            chosen[result["id"]].changed("cancel", codes[result["status"]])

    async def look(self) -> None:
        message = self._some()
        if message is not None:
            status, answer = await self._load.call("GET", f"/v1/messages/{message.id}")
            if status:
                assert status == 200, (status, answer, message.history)
                message.seen("look", answer)
