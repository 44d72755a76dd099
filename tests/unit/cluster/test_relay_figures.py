"""What several relays have counted of one destination, as one; and how proxies hear of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.cluster.relays.figures import BUCKETS_MS, RelayFigures, merged, quantile
from duemq.cluster.relays.log import RelayFiguresPublisher, RelayFiguresReader
from duemq.cluster.topics.internal_topics import RELAYS
from duemq.model.messages.record import pack_record
from tests.support.patience import WITHIN_S

pytestmark = pytest.mark.anyio

ONE = RelayFigures(
    ("a",), 3, 1, 10, 4, 1, {"accepted": 5, "failed": 1}, {"500": 1}, (0,) * 3 + (5,) + (0,) * 23,
    (5,) + (0,) * 26, 1_000, ({"at": 900, "id": "x"},), "",
)  # fmt: skip
TWO = ONE._replace(
    relays=("b",), lag=4, results={"accepted": 2}, statuses={"500": 2, "timeout": 1}, last_accepted_at=2_000,
    last_failures=({"at": 950, "id": "y"}, {"at": 800, "id": "z"}), trouble="it is away",
    oldest_at=700, rate=5,
)  # fmt: skip


def test_several_relays_are_shown_as_one() -> None:
    both = merged([TWO, ONE])
    assert both is not None
    assert (both.relays, both.lag, both.in_flight, both.limit, both.in_hand, both.dead) == (("a", "b"), 7, 2, 20, 8, 2)
    assert both.results == {"accepted": 7, "failed": 1} and both.statuses == {"500": 3, "timeout": 1}
    assert (both.last_accepted_at, both.trouble, both.oldest_at, both.rate) == (2_000, "it is away", 700, 5)
    assert [each["id"] for each in both.last_failures] == ["y", "x", "z"]
    assert both.shown()["lateness_ms"] == {"p50": 10, "p99": 10} and both.shown()["took_ms"] == {"p50": 1, "p99": 1}
    assert "lateness" not in both.shown(), "counts of buckets are for relays"
    assert merged([ONE, ONE._replace(lag=None)]).lag is None  # type: ignore[union-attr]
    assert merged([]) is None and merged([ONE]) == ONE


def test_a_quantile_is_a_bound_of_its_bucket() -> None:
    assert quantile((0,) * 27, 0.5) is None
    assert quantile((*(0,) * 26, 1), 0.5) == BUCKETS_MS[-1], "beyond the last bound"


class Site:
    def __init__(self) -> None:
        self.now = 1_000_000
        self.log = MemoryLog(lambda: self.now)

    def bus(self) -> MemoryBus:
        return MemoryBus(self.log)

    @asynccontextmanager
    async def relay(self, name: str, measure: Callable[[], dict[str, RelayFigures]]) -> AsyncIterator[None]:
        bus = self.bus()
        async with running(RelayFiguresPublisher(lambda: bus, name, measure, lambda: self.now).run):
            yield

    @asynccontextmanager
    async def proxy(self) -> AsyncIterator[RelayFiguresReader]:
        bus = self.bus()
        reader = RelayFiguresReader(lambda: bus, lambda: self.now)
        async with running(reader.run):
            yield reader


@asynccontextmanager
async def running(run: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    task = asyncio.create_task(run())
    try:
        async with asyncio.timeout(WITHIN_S):
            yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110  # the test's time-out ends it
        await asyncio.sleep(0.005)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr("duemq.cluster.relays.log._EVERY_S", 0.01)
    return Site()


async def test_a_proxy_hears_of_all_relays_and_when_one_ends(site: Site) -> None:
    measured = {"shop": ONE, "mail": ONE}
    async with site.proxy() as before, site.relay("a", lambda: dict(measured)):
        async with site.relay("b", lambda: {"shop": TWO}):
            await until(lambda: before.of("shop") == merged([ONE, TWO]))
            async with site.proxy() as later:
                await until(lambda: later.of("shop") == merged([ONE, TWO]))
        await until(lambda: before.of("shop") == ONE)
        measured["shop"] = ONE._replace(lag=0)
        await until(lambda: before.of("shop") == ONE._replace(lag=0))
        del measured["mail"]
        await until(lambda: before.of("mail") is None)


async def test_a_relay_that_died_is_forgotten(site: Site) -> None:
    async with site.relay("a", lambda: {"shop": ONE}), site.proxy() as proxy:
        await until(lambda: proxy.of("shop"))
        site.now += 61_000
        assert proxy.of("shop") is None and proxy.shown("shop") is None


async def test_what_stays_as_it_is_is_not_told_all_the_time_and_what_is_old_is_trimmed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duemq.cluster.relays.log._TRIM_S", 0.01)
    bus = site.bus()
    async with site.relay("a", lambda: {"shop": ONE}):
        await asyncio.sleep(0.2)
        assert await bus.end_offset(RELAYS, 0) == 1
        site.now += 121_000
        await asyncio.sleep(0.1)
        assert await bus.start_offset(RELAYS, 0) == 1


async def test_figures_that_cannot_be_read_are_passed_over(site: Site) -> None:
    bus = site.bus()
    await bus.create_log(RELAYS, 1)
    for value in (b"", b"[]", b'{"relay":"a","destination":"shop","figures":{"lag":1}}'):
        await bus.append({(RELAYS, 0): [pack_record(None, (), value)]})
    async with site.proxy() as proxy, site.relay("b", lambda: {"shop": ONE}):
        await until(lambda: proxy.of("shop") == ONE)
