"""Signals stop all consumers of a process, and only while one runs."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from duemq.client.consumer import Consumer
from duemq.client.consumer.signals import stopped_by_signals
from tests.support.patience import WITHIN_S

pytestmark = pytest.mark.anyio

SIGNALS = signal.SIGINT, signal.SIGTERM


@pytest.fixture
def before() -> Iterator[list[Any]]:
    """The handlers of a program that has some, of which none may be called."""

    def theirs(*_: object) -> None:
        raise AssertionError("a consumer runs")

    kept = [signal.signal(each, theirs) for each in SIGNALS]
    yield [theirs, theirs]
    for each, handler in zip(SIGNALS, kept, strict=True):
        signal.signal(each, handler)


@pytest.mark.parametrize("number", SIGNALS)
async def test_all_consumers_of_a_process_stop(number: int, before: list[Any]) -> None:
    ended: list[str] = []

    async def run(group: str) -> None:
        stop = asyncio.Event()
        with stopped_by_signals(stop):
            await stop.wait()
        ended.append(group)

    async with asyncio.timeout(WITHIN_S), asyncio.TaskGroup() as group:
        for name in ("a", "b"):
            group.create_task(run(name))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        os.kill(os.getpid(), number)
    assert sorted(ended) == ["a", "b"]
    assert [signal.getsignal(each) for each in SIGNALS] == before


async def test_the_last_one_puts_back_what_was_there(before: list[Any]) -> None:
    with stopped_by_signals(asyncio.Event()):
        with stopped_by_signals(asyncio.Event()):
            pass
        assert [signal.getsignal(each) for each in SIGNALS] != before
    assert [signal.getsignal(each) for each in SIGNALS] == before


async def test_what_somebody_else_set_meanwhile_stays(before: list[Any]) -> None:
    with stopped_by_signals(asyncio.Event()):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


async def test_a_loop_keeps_the_handlers_it_has(before: list[Any]) -> None:
    called, stop, loop = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, called.set)
    try:
        async with asyncio.timeout(WITHIN_S):
            with stopped_by_signals(stop):
                os.kill(os.getpid(), signal.SIGTERM)
                await stop.wait()
                await called.wait()
            called.clear()
            os.kill(os.getpid(), signal.SIGTERM)
            await called.wait()
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def test_another_thread_has_no_signals(before: list[Any]) -> None:
    found: list[Any] = []

    async def run() -> None:
        with stopped_by_signals(asyncio.Event()):
            found.extend(signal.getsignal(each) for each in SIGNALS)

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    thread.join()
    assert found == before


async def test_a_signal_ends_a_start_that_takes_long(before: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As where Kafka does not answer."""
    starting, consumer = asyncio.Event(), Consumer("g")

    async def start() -> None:
        starting.set()
        await asyncio.sleep(3_600)

    monkeypatch.setattr(consumer, "start", start)
    async with asyncio.timeout(WITHIN_S):
        running = asyncio.create_task(consumer.run())
        await starting.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await running
    assert [signal.getsignal(each) for each in SIGNALS] == before
