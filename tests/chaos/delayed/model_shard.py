"""A plain model of a shard on a real bus: it commits deliveries and a ledger entry at once, and after any failure it
opens a committer anew, appends a barrier, and goes on from what the ledger says up to there.

That is what `delay/shard/shard.py` does, without a store: pending messages are those of the buffer that no entry names.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from duemq.bus.base import Batches, Bus, Committer
from duemq.model.errors import DuemqError, Fenced
from duemq.model.messages.record import pack_record, unpack_record
from tests.chaos.delayed.journal import Commit, Journal, Outcome, SentMessage, outcome_of

_BACK_OFF_S = 0.05
_READ = 1_000
PADDING = "x" * 400  # two messages fill a batch of a topic, so that a transaction has several requests


@dataclass(frozen=True)
class Logs:
    """The topics of one round, of one partition each."""

    buffer: str
    ledger: str
    topic_states: tuple[str, str]

    @property
    def names(self) -> list[str]:
        return [self.buffer, self.ledger, *self.topic_states]


@dataclass
class State:
    """Where the ledger is: the number of its last entry, the offset below which commands are applied, the ids of the
    messages that are delivered, and those pending by their ids."""

    number: int = -1
    applied: int = 0
    delivered: set[str] = field(default_factory=set)
    pending: dict[str, dict[str, Any]] = field(default_factory=dict)

    def is_done(self, end: int) -> bool:
        """Whether all commands below this offset are applied, and their messages delivered."""
        return self.applied >= end and not self.pending

    def apply(self, entry: dict[str, Any]) -> None:
        self.number, self.applied = entry["n"], entry["applied"]
        self.delivered.update(entry["ids"])
        for name in entry["ids"]:
            self.pending.pop(name, None)


class ModelShard:
    """One master. `node`: its name; `pause_s`: between two cycles; `clock`: epoch ms."""

    def __init__(
        self, bus: Bus, logs: Logs, name: str, node: str, journal: Journal, pause_s: float, clock: Callable[[], int]
    ) -> None:
        self._bus, self._logs, self._name, self._node = bus, logs, name, node
        self._journal, self._pause_s, self._clock = journal, pause_s, clock
        self.owns = True
        """Whether it takes itself for the master. One that was fenced looks whether it still does."""
        self.leading = asyncio.Event()
        self.reopen = asyncio.Event()
        """Set to have it open its committer anew, as a node that was drained and resumed."""
        self.state = State()
        self.failures: list[str] = []

    async def run(self) -> None:
        """Be master for as long as it owns the shard."""
        while self.owns:
            try:
                await self._lead()
            except DuemqError as error:
                self.failures.append(f"{type(error).__name__}: {error}")
                await asyncio.sleep(_BACK_OFF_S)
            finally:
                self.leading.clear()

    async def _lead(self) -> None:
        self.reopen.clear()
        committer = await self.open_committer()
        term = f"{self._node}.{self._journal.terms}"
        self._journal.terms += 1
        try:
            barrier = orjson.dumps({"barrier": self.state.number, "term": term})
            appends = await committer.commit({(self._logs.ledger, 0): [pack_record(None, (), barrier)]})
            await self.follow(appends[self._logs.ledger, 0].first_offset)
            self.leading.set()
            while self.owns and not self.reopen.is_set():
                began = time.monotonic()
                await self._cycle(committer, term)
                await asyncio.sleep(max(began + self._pause_s - time.monotonic(), 0))
        finally:
            await committer.close()

    async def open_committer(self) -> Committer:
        """Fence the master before."""
        return await self._bus.committer(self._name)

    async def follow(self, barrier: int) -> None:
        """Take the state from the ledger up to its barrier, and from the commands it has applied."""
        state = State()
        for entry in await self._read(self._logs.ledger, barrier + 1):
            if "n" in entry:
                state.apply(entry)
        for message in await self._read(self._logs.buffer, state.applied):
            if message["id"] not in state.delivered:
                state.pending[message["id"]] = message
        self.state = state

    async def _read(self, topic: str, end: int) -> list[dict[str, Any]]:
        subscription = self._bus.subscribe(topic, 0)
        found, offset = [], 0
        try:
            while offset < end:
                records = await self._bus.read(topic, 0, offset, _READ)
                found += [
                    orjson.loads(unpack_record(record.frame).payload) for record in records if record.offset < end
                ]
                if records:
                    offset = records[-1].offset + 1
                elif self._bus.reach(topic, 0) >= end:
                    break  # what is left are marks of transactions
                else:
                    await subscription.wait(0.5)
        finally:
            subscription.close()
        return found

    async def _cycle(self, committer: Committer, term: str) -> None:
        state, now = self.state, self._clock()
        commands = await self._bus.read(self._logs.buffer, 0, state.applied, _READ)
        applied = commands[-1].offset + 1 if commands else state.applied
        read = [orjson.loads(unpack_record(command.frame).payload) for command in commands]
        pending = state.pending | {message["id"]: message for message in read}
        due = [message for message in pending.values() if message["due"] <= now]
        if not due and applied == state.applied:
            return
        number = state.number + 1
        entry = {"n": number, "term": term, "applied": applied, "at": now, "ids": [message["id"] for message in due]}
        batches: dict[tuple[str, int], list[bytes]] = {}
        for message in due:
            value = orjson.dumps({"id": message["id"], "due": message["due"], "n": number, "term": term, "x": PADDING})
            batches.setdefault((message["topic"], 0), []).append(pack_record(None, (), value))
        batches[self._logs.ledger, 0] = [pack_record(None, (), orjson.dumps(entry))]
        await self.commit(committer, term, number, batches)
        state.pending = pending
        state.apply(entry)

    async def commit(self, committer: Committer, term: str, number: int, batches: Batches) -> None:
        """Note what is answered. Raises what `Committer.commit` does."""
        try:
            appends = await committer.commit(batches)
        except DuemqError as error:
            self._journal.commits.append(Commit(term, number, outcome_of(error)))
            raise
        except asyncio.CancelledError:
            self._journal.commits.append(Commit(term, number, Outcome.UNKNOWN))
            raise
        offset = appends[self._logs.ledger, 0].first_offset
        self._journal.commits.append(Commit(term, number, Outcome.DONE, offset))


class Sender:
    """Sends messages all the time: `each` of them every `pause_s`, due `ahead_ms` (least, most) later."""

    def __init__(
        self, bus: Bus, logs: Logs, journal: Journal, pause_s: float, ahead_ms: tuple[int, int], each: int = 2
    ) -> None:
        self._bus, self._logs, self._journal = bus, logs, journal
        self._pause_s, self._ahead_ms, self._each = pause_s, ahead_ms, each
        self._under_way: set[asyncio.Task[None]] = set()
        self._numbers = 0

    async def run(self, stop: asyncio.Event, clock: Callable[[], int]) -> None:
        """Until `stop`, and until all that was sent is answered."""
        while not stop.is_set():
            task = asyncio.create_task(self._send(clock()), name="send")
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            await asyncio.sleep(self._pause_s)
        await asyncio.gather(*self._under_way)

    async def _send(self, now: int) -> None:
        messages = [self._message(now) for _ in range(self._each)]
        try:
            frames = [pack_record(None, (), orjson.dumps(message)) for message in messages]
            result = (await self._bus.append({(self._logs.buffer, 0): frames}))[self._logs.buffer, 0]
        except DuemqError as error:
            assert not isinstance(error, Fenced), error
            outcome, offsets = outcome_of(error), [-1] * len(messages)
        else:
            outcome, offsets = Outcome.DONE, [result.offset(place) for place in range(len(messages))]
        self._journal.sent += [
            SentMessage(message["id"], message["topic"], message["due"], outcome, offset)
            for message, offset in zip(messages, offsets, strict=True)
        ]

    def _message(self, now: int) -> dict[str, Any]:
        self._numbers += 1
        least, most = self._ahead_ms
        due = now + least + self._numbers * 7919 % (most - least)
        return {
            "id": f"m{self._numbers}", "topic": self._logs.topic_states[self._numbers % 2], "due": due,
        }  # fmt: skip
