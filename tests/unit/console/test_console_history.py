"""What the console shows over time: rates, lateness, and how much is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from duemq.cluster.figures import Figures
from duemq.model.callers.access import EVERYTHING, Grant, Scope
from duemq.model.errors import Unavailable
from duemq.proxy.console.live import MAX_STREAMS, _latest
from duemq.proxy.gateway.limited_gateway import LimitedGateway
from duemq.proxy.history import History
from tests.support.http.console_site import ConsoleSite, with_console
from tests.support.http.http_site import NOW

EDGES = (1.0, 10.0, 100.0)


class Source:
    def __init__(self) -> None:
        self.now, self.accepted, self.delivered = NOW, 0, 0
        self.lateness = [0, 0, 0, 0]
        self.direct = 0
        self.away = False

    def cluster(self) -> dict[str, Any]:
        outcomes = {"accepted": self.accepted, "delivered": self.delivered, "cancelled": 0, "dead": 0}
        return {"nodes": [], "shards": [{"shard": 0, "pending": 7, "outcomes": outcomes}, {"shard": 1}]}

    async def figures(self) -> Sequence[Figures]:
        if self.away:
            raise Unavailable("away")
        return [Figures("a", EDGES, tuple(self.lateness), overdue_ms=5), Figures("", direct=self.direct)]


def test_rates_and_lateness_are_those_between_two_samples() -> None:
    async def run() -> None:
        source = Source()
        history = History(source, lambda: source.now)
        await history.sample()
        assert history.points == []
        source.now, source.accepted, source.delivered, source.direct = NOW + 2000, 20, 10, 4
        source.lateness = [90, 9, 1, 0]
        await history.sample()
        (point,) = history.points
        assert (point.accepted, point.delivered, point.pending, point.overdue_ms) == (12, 7, 7, 5)
        assert (point.p50_ms, point.p99_ms, point.max_ms) == (0.6, 10.0, 100.0)
        source.now += 1000
        await history.sample()
        assert (history.points[1].p50_ms, history.points[1].accepted) == (None, 0)

    asyncio.run(run())


def test_counts_that_go_back_are_no_negative_rates() -> None:
    """A node that left takes its counts along, and the latency of a forgotten topic goes with it."""

    async def run() -> None:
        source = Source()
        history = History(source, lambda: source.now)
        source.accepted, source.lateness = 50, [5, 5, 5, 5]
        await history.sample()
        source.now, source.accepted, source.lateness = NOW + 1000, 10, [0, 9, 0, 0]
        await history.sample()
        (point,) = history.points
        assert point.accepted == 0 and point.p50_ms is not None and 1 <= point.p50_ms <= 10

    asyncio.run(run())


def test_a_day_is_kept_and_no_more() -> None:
    async def run() -> None:
        source = Source()
        history = History(source, lambda: source.now)
        for _ in range(10_000):
            source.now += 10_000
            source.accepted += 20
            await history.sample()
        points = history.points
        assert len(points) <= 2040
        assert points[-1].at == source.now and 85_000_000 < points[-1].at - points[0].at < 88_000_000
        assert [point.at for point in points] == sorted({point.at for point in points})
        assert {round(point.accepted) for point in points} == {2}

    asyncio.run(run())


def test_sampling_goes_on_after_a_failure() -> None:
    async def run() -> None:
        source = Source()
        source.away = True
        history = History(source, lambda: source.now)
        task = asyncio.create_task(history.run())
        await asyncio.sleep(0.01)
        source.away = False
        await asyncio.wait_for(history.wait(), 60)
        task.cancel()
        assert history.now.at == NOW

    asyncio.run(run())


def test_figures_survive_the_way_between_processes_also_from_a_newer_one() -> None:
    figures = Figures("a", EDGES, (1, 2, 3, 4), disk_percent=3.5, sealed=7)
    document = orjson.loads(orjson.dumps(figures.to_json())) | {"newer": [1]}
    assert Figures.from_json(document) == figures


def test_one_event_is_made_for_all_who_look_and_streams_are_bounded() -> None:
    async def scenario(site: ConsoleSite) -> None:
        service = site.app.service
        history = service.history
        history.streams = MAX_STREAMS
        assert (await site.ask("GET", "/live")).status_code == 503
        history.streams = 0
        assert _latest(service, EVERYTHING) is _latest(service, EVERYTHING)
        document = orjson.loads(_latest(service, EVERYTHING).split(b"data: ")[1])
        assert document["values"]["pending"] == "3" and len(document["horizon"]) == 8
        service.closing.set()
        closed = await site.ask("GET", "/live")
        assert closed.headers["Content-Type"].startswith("text/event-stream") and history.streams == 0

    with_console(scenario)


def test_a_stream_for_some_topics_neither_shows_others_nor_is_shown_to_others() -> None:
    async def scenario(site: ConsoleSite) -> None:
        site.gateway.refusing = {"payments": "no broker leads it"}
        service = site.app.service
        grant = Grant("k", frozenset((Scope.READ,)), topics=("orders",))
        limited = replace(service, gateway=LimitedGateway(service.gateway, grant, lambda count: None))
        await site.app.history.sample()
        assert b"payments" in _latest(service, EVERYTHING)
        assert b"payments" not in _latest(limited, grant)
        await site.app.history.sample()
        assert b"payments" not in _latest(limited, grant)
        assert b"payments" in _latest(service, EVERYTHING)

    with_console(scenario)
