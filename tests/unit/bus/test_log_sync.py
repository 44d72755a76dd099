"""Syncs of the embedded log by the kernel's asynchronous IO, its failures, and the thread as the fallback."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from duemq.bus.embedded.bus import EmbeddedBus
from duemq.bus.embedded.sync import aio as kernel
from duemq.bus.embedded.sync.aio import Aio
from duemq.bus.embedded.sync.log_sync import kernel_aio
from duemq.model.errors import DiskFull, DuemqError, StoreFailed

T0 = ("t", 0)


pytestmark = pytest.mark.skipif(
    not Path("/proc/sys/fs/aio-max-nr").exists(), reason="this kernel has no asynchronous IO"
)


class FaultyAio(Aio):
    """`refuses`: the error of `start`; `fails`: that of the result, after a sync that did take place."""

    refuses = fails = 0

    def __init__(self) -> None:
        super().__init__()
        self.files: list[str] = []  # that were synced

    def start(self, file: int) -> None:
        if self.refuses:
            raise OSError(self.refuses, os.strerror(self.refuses))
        self.files.append(os.readlink(f"/proc/self/fd/{file}"))
        super().start(file)

    def take_result(self) -> bool:
        ended = super().take_result()
        if ended and self.fails:
            raise OSError(self.fails, os.strerror(self.fails))
        return ended


def with_bus(
    folder: Path,
    scenario: Callable[[EmbeddedBus], Awaitable[None]],
    aio: Aio | None = None,
    on_sync: Callable[[bool], None] = lambda by_kernel: None,
) -> None:
    async def run() -> None:
        bus = await EmbeddedBus.open(folder, aio=lambda: aio, on_sync=on_sync)
        try:
            await bus.create_topic("t", 1)
            await scenario(bus)
        finally:
            await bus.close()

    asyncio.run(run())


async def frames_of(bus: EmbeddedBus) -> list[bytes]:
    return [record.frame for record in await bus.read("t", 0, 0, 99)]


def test_the_kernel_syncs_each_record_but_the_first_of_a_file(tmp_path: Path) -> None:
    aio, ways = FaultyAio(), list[bool]()

    async def scenario(bus: EmbeddedBus) -> None:
        for at in range(3):
            await bus.append({T0: [b"%d" % at]})
        assert len(aio.files) == 3  # RocksDB synced the topic
        assert ways == [False, True, True, True]
        await asyncio.to_thread(bus.db.flush)  # RocksDB begins a new file
        await bus.append({T0: [b"3"]})
        assert len(aio.files) == 3
        await bus.append({T0: [b"4"]})
        assert len(aio.files) == 4
        assert aio.files[3] > aio.files[2]

    with_bus(tmp_path, scenario, aio, ways.append)


@pytest.mark.parametrize(
    ("number", "raised"), [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, StoreFailed)]
)
def test_a_failed_sync_is_the_last_one(tmp_path: Path, number: int, raised: type[DuemqError]) -> None:
    aio = FaultyAio()

    async def scenario(bus: EmbeddedBus) -> None:
        await bus.append({T0: [b"good"]})
        aio.fails = number
        results = await asyncio.gather(*(bus.append({T0: [b"lost"]}) for _ in range(3)), return_exceptions=True)
        assert [type(result) for result in results] == [raised] * 3
        aio.fails, synced = 0, len(aio.files)
        with pytest.raises(StoreFailed, match="until it is reopened"):
            await bus.append({T0: [b"later"]})
        with pytest.raises(StoreFailed, match="until it is reopened"):
            await bus.read("t", 0, 0, 99)
        assert len(aio.files) == synced

    async def again(bus: EmbeddedBus) -> None:
        assert (await frames_of(bus))[:1] == [b"good"]
        assert b"later" not in await frames_of(bus)

    with_bus(tmp_path, scenario, aio)
    with_bus(tmp_path, again)


def test_a_kernel_that_refuses_is_not_asked_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    aio = FaultyAio()

    async def scenario(bus: EmbeddedBus) -> None:
        await bus.append({T0: [b"0"]})
        aio.refuses = errno.EINVAL  # a file system without syncs
        await bus.append({T0: [b"1"]})
        aio.refuses = 0
        await bus.append({T0: [b"2"]})
        assert await frames_of(bus) == [b"0", b"1", b"2"]
        assert len(aio.files) == 1
        assert caplog.text.count("syncs take a thread from now on") == 1

    with_bus(tmp_path, scenario, aio)


def test_a_machine_without_it_has_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_CALLS", {})
    assert kernel_aio() is None

    async def scenario(bus: EmbeddedBus) -> None:
        await bus.append({T0: [b"0"]})
        assert await frames_of(bus) == [b"0"]

    with_bus(tmp_path, scenario)


def test_a_result_that_is_short_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    aio = Aio()
    with pytest.raises(OSError, match="Bad file descriptor"):
        aio.start(-1)
    assert not aio.take_result()
    with (tmp_path / "file").open("wb") as file:
        aio.start(file.fileno())
        os.set_blocking(aio.ends, True)
        monkeypatch.setattr(aio, "_one", aio._zero)  # take no events
        with pytest.raises(OSError, match="Input/output error"):
            aio.take_result()
    aio.close()
