"""Every plug of a port behind one fixture, so that each contract is written once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Protocol

import pytest

from duemq.bus.base import AppendResult, Bus
from duemq.bus.embedded.bus import EmbeddedBus
from duemq.bus.embedded.sync.log_sync import kernel_aio
from duemq.bus.memory import MemoryBus, MemoryLog
from tests.contract.kafka_plug import KafkaPlug


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
    """One log; `open` gives the next bus on it and drops the one before.

    `largest`: bytes of the largest payload it has to take. `at_once`: all partitions of a commit are seen to grow in
    the same moment, and not one after the other.
    """

    @property
    def largest(self) -> int: ...

    @property
    def at_once(self) -> bool: ...

    async def pass_time(self, landed: AppendResult) -> None:
        """Until what is appended has a later time than this."""
        ...

    async def open(self, fault: Callable[[str], None] | None = None) -> Bus: ...

    async def close(self) -> None: ...


class ClockedPlug(Plug, Protocol):
    """A plug whose log goes by a clock of the test, and fails where the test says."""

    clock: Clock


class _InHand:
    largest, at_once = 3 << 20, True

    def __init__(self) -> None:
        self.clock = Clock()

    async def pass_time(self, landed: AppendResult) -> None:
        self.clock.now = landed.timestamp + 100


class MemoryPlug(_InHand):
    def __init__(self) -> None:
        super().__init__()
        self._log = MemoryLog(self.clock)
        self._bus: MemoryBus | None = None

    async def open(self, fault: Callable[[str], None] | None = None) -> Bus:
        await self.close()
        self._bus = MemoryBus(self._log, failpoint=fault)
        return self._bus

    async def close(self) -> None:
        if self._bus is not None:
            await self._bus.close()


class EmbeddedPlug(_InHand):
    """With `buffer_bytes` 0 every read comes from RocksDB, and every sync takes the thread."""

    def __init__(self, folder: Path, buffer_bytes: int) -> None:
        super().__init__()
        self._folder, self._tail_bytes = folder, buffer_bytes
        self._bus: EmbeddedBus | None = None

    async def open(self, fault: Callable[[str], None] | None = None) -> Bus:
        await self.close()
        self._bus = await EmbeddedBus.open(
            self._folder, buffer_bytes=self._tail_bytes, clock=self.clock, failpoint=fault,
            aio=kernel_aio if self._tail_bytes else lambda: None,
        )  # fmt: skip
        return self._bus

    async def close(self) -> None:
        if self._bus is not None:
            await self._bus.close()


CLOCKED = ("memory", "embedded", "embedded-without-tail")


@pytest.fixture(params=[*CLOCKED, "kafka", "kafka-own", "kafka-v1"])
async def plug(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Plug]:
    plug: Plug
    if request.param == "memory":
        plug = MemoryPlug()
    elif request.param.startswith("kafka"):
        bootstrap = request.getfixturevalue("kafka").bootstrap
        transactions = "v1" if request.param.endswith("v1") else "auto"
        plug = KafkaPlug(bootstrap, own=request.param.endswith("own"), transactions=transactions)
    else:
        plug = EmbeddedPlug(tmp_path / "log", buffer_bytes=0 if request.param.endswith("tail") else 1 << 20)
    yield plug
    await plug.close()


@pytest.fixture
async def bus(plug: Plug) -> Bus:
    """A bus with topics `a` (two partitions) and `b` (one)."""
    bus = await plug.open()
    await bus.create_topic("a", 2)
    await bus.create_topic("b", 1)
    return bus
