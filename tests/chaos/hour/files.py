"""Files of messages that are imported while everything breaks, and what is done to their messages then."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from duemq.model.messages.message import Draft
from duemq.model.timing import WINDOW_MS
from tests.chaos.pace import SLOW
from tests.chaos.world import World
from tests.e2e.load import now_ms
from tests.e2e.outcomes import ABSENT, Kind, Message, State
from tests.support.shard.import_schedule import write_messages

_ROWS = 60
_AHEAD_MS = 150_000  # a window must begin two minutes from now at least
_SOON_MS = 3_000
_EVERY_S = 20.0
_KNOWN_S = 600.0 * SLOW  # nodes may be away for long


class Files:
    """One after the other. A third of the messages of each is moved to soon, the others are cancelled."""

    def __init__(self, world: World, folder: Path) -> None:
        self._world, self._folder = world, folder
        self.imported = self.refused = 0

    async def run(self, stop: asyncio.Event) -> None:
        number = 0
        while not stop.is_set():
            await self._one(number)
            number += 1
            try:
                async with asyncio.timeout(_EVERY_S):
                    await stop.wait()
            except TimeoutError:
                continue

    async def _one(self, number: int) -> None:
        """To the end of all its messages, however often the servers are away meanwhile."""
        load = self._world.load
        window = -(-(now_ms() + _AHEAD_MS) // WINDOW_MS) * WINDOW_MS
        label = f"file-{number}"
        payloads = [f"{load.topic}.{label}.{row}" for row in range(_ROWS)]
        drafts = [
            Draft(load.topic, payload.encode(), window + row, labels=(label,)) for row, payload in enumerate(payloads)
        ]
        path = self._folder / f"{label}.parquet"
        await asyncio.to_thread(write_messages, path, drafts)
        load.messages |= {
            payload: Message(payload, {ABSENT, State(Kind.HELD, window + row)}) for row, payload in enumerate(payloads)
        }
        wanted = await self._answer("POST", "/v1/imports", {"path": str(path)}, also=400)
        if wanted.get("code") == "past_due":  # the servers were away until the window was too near
            self.refused += 1
            return
        where = wanted["id"]
        state: str = ""

        async def is_known() -> bool:
            nonlocal state
            state = str((await self._answer("GET", f"/v1/imports/{where}"))["state"])
            return state != "pending"

        await self._world.until(is_known, f"{label} to be imported or refused", _KNOWN_S)
        if state != "imported":
            self.refused += 1
            return
        self.imported += 1
        for row in await self._rows(label):
            message = load.messages[(await self._answer("GET", f"/v1/messages/{row['id']}"))["payload"]]
            message.accepted({"id": row["id"], "deliver_at_ms": row["deliver_at_ms"]})
            if int(message.payload.rpartition(".")[2]) % 3:
                await self._until_changed(message, "cancel", "DELETE", f"/v1/messages/{message.id}")
            else:
                due = now_ms() + _SOON_MS
                await self._until_changed(message, "move", "PATCH", f"/v1/messages/{message.id}", due)

    async def _rows(self, label: str) -> list[Mapping[str, Any]]:
        path = f"/v1/messages?topic={self._world.load.topic}&label={label}&limit=1000"
        rows: list[Mapping[str, Any]] = (await self._answer("GET", path))["messages"]
        return rows

    async def _answer(self, method: str, path: str, body: Any = None, also: int = 200) -> Any:
        """Asked again until there is one. That a file is wanted is one, though it comes with a 202."""
        while True:
            status, answer = await self._world.load.call(method, path, body)
            if status or (isinstance(answer, dict) and "state" in answer):
                assert status in (0, 200, also), (status, answer)
                return answer

    async def _until_changed(self, message: Message, what: str, method: str, path: str, due: int | None = None) -> None:
        body = None if due is None else {"deliver_at": due}

        async def is_answered() -> bool:
            status, answer = await self._world.load.call(method, path, body)
            code = None if status == 0 else "ok" if status == 200 else answer["code"]
            message.changed(what, code, due)
            return code is not None

        await self._world.until(is_answered, f"an answer to a {what} of {message.id}", _KNOWN_S)
