"""The committer for logs that run within this process: its epoch lets the log fence older committers."""

from __future__ import annotations

from typing import Protocol

from duemq.bus.base import AppendResults, Batches, UnknownTopic, WriteRefused
from duemq.model.errors import Unavailable


class _Log(Protocol):
    async def commit(self, batches: Batches, name: str, epoch: int) -> AppendResults: ...


class EpochCommitter:
    """The only writer under its name, as long as its epoch is the newest."""

    def __init__(self, log: _Log, name: str, epoch: int) -> None:
        self._log, self._name, self._epoch = log, name, epoch
        self._closed = False

    async def commit(self, batches: Batches) -> AppendResults:
        if self._closed:
            raise Unavailable(f"committer {self._name!r} is closed")
        try:
            return await self._log.commit(batches, self._name, self._epoch)
        except UnknownTopic as error:
            raise WriteRefused(error.topic, error.code, error.detail) from error

    async def close(self) -> None:
        self._closed = True
