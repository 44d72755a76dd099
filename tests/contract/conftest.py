"""Every plug of a port behind one fixture, so that each contract is written once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Protocol

import pytest

from duemq.bus.base import Bus
from duemq.bus.embedded import EmbeddedBus
from duemq.bus.memory import MemoryBus, MemoryLog


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Clock:
    """A log's clock in the test's hand, epoch ms."""

    def __init__(self) -> None:
        self.now = 1_000

    def __call__(self) -> int:
        return self.now


class Plug(Protocol):
    """One log; `open` gives the next bus on it and drops the one before."""

    clock: Clock

    async def open(self, fault: Callable[[str], None] | None = None) -> Bus: ...

    async def close(self) -> None: ...


class MemoryPlug:
    def __init__(self) -> None:
        self.clock = Clock()
        self._log = MemoryLog(self.clock)
        self._bus: MemoryBus | None = None

    async def open(self, fault: Callable[[str], None] | None = None) -> Bus:
        await self.close()
        self._bus = MemoryBus(self._log, fault=fault)
        return self._bus

    async def close(self) -> None:
        if self._bus is not None:
            await self._bus.close()


class EmbeddedPlug:
    """With `tail_bytes` 0 every read comes from RocksDB."""

    def __init__(self, folder: Path, tail_bytes: int) -> None:
        self.clock = Clock()
        self._folder, self._tail_bytes = folder, tail_bytes
        self._bus: EmbeddedBus | None = None

    async def open(self, fault: Callable[[str], None] | None = None) -> Bus:
        await self.close()
        self._bus = await EmbeddedBus.open(self._folder, tail_bytes=self._tail_bytes, clock=self.clock, fault=fault)
        return self._bus

    async def close(self) -> None:
        if self._bus is not None:
            await self._bus.close()


@pytest.fixture(params=["memory", "embedded", "embedded-without-tail"])
async def plug(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Plug]:
    plug: Plug
    if request.param == "memory":
        plug = MemoryPlug()
    else:
        plug = EmbeddedPlug(tmp_path / "log", tail_bytes=0 if request.param.endswith("tail") else 1 << 20)
    yield plug
    await plug.close()


@pytest.fixture
async def bus(plug: Plug) -> Bus:
    """A bus with topics `a` (two partitions) and `b` (one)."""
    bus = await plug.open()
    await bus.create_topic("a", 2)
    await bus.create_topic("b", 1)
    return bus
