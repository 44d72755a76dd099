"""Each background loop of the product while its port fails, for a second of virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from duemq.bus.kafka.fetch.watch import Watch
from duemq.bus.kafka.options import KafkaOptions
from duemq.bus.kafka.requests import wire
from duemq.bus.kafka.requests.wire import Wire
from duemq.bus.kafka.topics.catalog import Catalog
from duemq.cli.settings.settings import Settings
from duemq.cli.systemd.watchdog import Watchdog
from duemq.cli.wiring.membership import shared_identity
from duemq.cli.wiring.parts import reach_brokers
from duemq.cli.wiring.relay.settings_destinations import SettingsDestinations
from duemq.client.lag.metrics import LagMetrics, keep_reading
from duemq.cluster.admin.log import AdminLog
from duemq.cluster.admin.trail import Trail, TrailEntry
from duemq.cluster.clocks.clock_watch import ClockWatch
from duemq.cluster.relays.log import RelayFiguresPublisher, RelayFiguresReader
from duemq.delay.imports.file_importer import FileImporter
from duemq.delay.indexing.index_worker import IndexWorker
from duemq.delay.metrics import Observer
from duemq.delay.node import Node
from duemq.delay.tiering.tiering import TieringWorker
from duemq.election.zookeeper import failure_detector
from duemq.election.zookeeper.election import ZooKeeperElection
from duemq.election.zookeeper.failure_detector import ConnectionOutcome, FailureDetector, Peer
from duemq.election.zookeeper.registry_cache import RegistryCache
from duemq.model.destinations.destination import Credentials, Destination
from duemq.model.errors import LogFailed
from duemq.proxy.gateway.buffer_age import BufferAge
from duemq.proxy.gateway.ledger_follower import LedgerFollower
from duemq.proxy.history import History
from duemq.relay.embedded.log import EmbeddedLog
from duemq.relay.embedded.source import EmbeddedSource
from duemq.relay.relay import Relay
from duemq.web.connection.connections import ConnectionLimits, Connections
from duemq.web.tls import server_tls
from duemq.web.tls.server_tls import ServerTls
from tests.support.virtual_loop import VirtualLoop

MOST = 10  # turns in a second


class Broken:
    """A port whose every call fails. `calls`: how many there were."""

    def __init__(self) -> None:
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return self.fail

    def fail(self, *_: object, **__: object) -> Any:
        self.calls += 1
        raise LogFailed("the log is away")

    def __call__(self) -> Any:
        return self


def now() -> int:
    return 1_000_000


async def administrative_log(port: Any) -> None:
    await AdminLog(port, now).run()


async def trail(port: Any) -> None:
    one = Trail(port, now)
    one.deny(TrailEntry(1, "", "", "guess", "", 401, "unauthorised", ""))
    await one.run()


async def clock(port: Any) -> None:
    await ClockWatch(now).run(port)


async def ledger(port: Any) -> None:
    await LedgerFollower(port, 1).run()


async def buffer_age(port: Any) -> None:
    await BufferAge(60_000, now).run(port, lambda: {0: 0})


async def own_figures(port: Any) -> None:
    await RelayFiguresPublisher(port, "one", dict, now).run()


async def figures_of_relays(port: Any) -> None:
    await RelayFiguresReader(port, now).run()


async def console(port: Any) -> None:
    await History(port, now).run()


async def destination(port: Any) -> None:
    fields = {"name": "shop", "url": "https://shop.example/hook", "topics": ["orders"]}
    declared = SimpleNamespace(
        by_name={"shop": Destination.model_validate(fields)}, credentials_of=lambda name: Credentials()
    )
    await Relay(declared, lambda listener: None, port.fail, port.fail, port.fail, now).run()


async def topic_of_destination(port: Any) -> None:
    await EmbeddedSource(port, "g", ["t"], port.fail, port.fail).start()
    await asyncio.Event().wait()


async def pull(port: Any) -> None:
    source = EmbeddedSource(port, "g", ["t"], port.fail, port.fail)
    source._mark("t")
    while True:
        await source.pull(100, 1)


async def returned_message(port: Any) -> None:
    draft: Any = None
    await EmbeddedLog("g", port, port.fail, now)._send(draft)


async def declaration(port: Any) -> None:
    ready = asyncio.Event()
    ready.set()
    admin: Any = SimpleNamespace(log=SimpleNamespace(ready=ready), destinations=SimpleNamespace(by_name=port))
    declared: Any = SimpleNamespace(destination=SimpleNamespace(model_dump=lambda include: {}), credentials=None)
    await SettingsDestinations({"shop": declared}, admin, port).run()


async def waiting_for_brokers(port: Any) -> None:
    await reach_brokers(port.fail, asyncio.Event())


async def waiting_for_a_node(port: Any) -> None:
    await shared_identity(port, Settings(), asyncio.Event(), makes=False)


async def lag(port: Any) -> None:
    await keep_reading(port, LagMetrics(), asyncio.Event(), 0.5)


async def index(port: Any) -> None:
    worker = IndexWorker(0, port)
    worker.step = port.fail  # type: ignore[method-assign]
    await worker.run()


async def far(port: Any) -> None:
    policy: Any = SimpleNamespace(quiet_ms=1, join_ms=1)
    worker = TieringWorker(0, port, asyncio.Lock(), policy, now, asyncio.Lock())
    worker.step = port.fail  # type: ignore[method-assign]
    await worker.run()


async def imports(port: Any) -> None:
    worker = FileImporter(0, port, port, now, asyncio.Lock(), port)
    worker.step = port.fail  # type: ignore[method-assign]
    await worker.run()


async def job_of_node(port: Any) -> None:
    node: Any = SimpleNamespace(observer=Observer(CollectorRegistry()))

    async def bug() -> None:
        port.calls += 1
        raise KeyError("bug")

    await Node._job(node, "disk", bug, 0.1).run()


async def kafka_watch(port: Any) -> None:
    watch = Watch(port, port, port.fail)
    watch.begin(("t", 0))
    await watch.run()


async def kafka_ping(port: Any) -> None:
    one = Wire(KafkaOptions("localhost:1").client())
    one.client = SimpleNamespace(cluster=port)
    await one.keep_asking()


async def kafka_topics(port: Any) -> None:
    catalog = Catalog(port, port.fail)
    catalog._renew_soon()
    await asyncio.Event().wait()


async def zookeeper_mirror(port: Any) -> None:
    await RegistryCache(port, ["/nodes"], lambda: None).run()


async def claims(port: Any) -> None:
    registry: Any = SimpleNamespace(
        layout=SimpleNamespace(node=lambda name: f"/nodes/{name}"), is_paused=lambda: False, registrations={},
        session=port, cache=SimpleNamespace(touch_all=lambda: None), options=SimpleNamespace(session_timeout_s=6),
    )  # fmt: skip
    await ZooKeeperElection(registry, SimpleNamespace(name="a"), 1)._loop.run()  # type: ignore[arg-type]


async def connections(port: Any) -> None:
    one = Connections(ConnectionLimits())
    one.close_overdue = port.fail  # type: ignore[method-assign]
    await one.run()


async def certificates(port: Any) -> None:
    tls = ServerTls.__new__(ServerTls)
    tls.context = port
    await tls.watch()


async def watchdog(port: Any) -> None:
    notifier: Any = SimpleNamespace(watchdog_s=None, board=port)
    one = Watchdog(notifier, asyncio.Event())
    one.stuck = port.fail
    await one.run()


@pytest.mark.parametrize(
    "work",
    [
        administrative_log, trail, clock, ledger, buffer_age, own_figures, figures_of_relays, console, destination,
        topic_of_destination, pull, returned_message, declaration, waiting_for_brokers, waiting_for_a_node, lag, index,
        far, imports, job_of_node, kafka_watch, kafka_ping, kafka_topics, zookeeper_mirror, claims, connections,
        certificates, watchdog,
    ],
    ids=lambda work: work.__name__,
)  # fmt: skip
def test_a_port_that_fails_is_asked_seldom_and_has_one_line(
    work: Callable[[Any], Awaitable[None]], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "_PING_S", 0.2)
    monkeypatch.setattr(server_tls, "_LOOK_S", 0.2)
    port = Broken()

    async def scenario() -> None:
        task = asyncio.create_task(work(port), name="work")  # type: ignore
        await asyncio.sleep(0.99)
        told.extend(record for record in caplog.records if record.name.startswith("duemq"))
        task.cancel()
        await asyncio.wait([task])

    told: list[logging.LogRecord] = []
    caplog.set_level(logging.DEBUG)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario())
    assert 0 < port.calls <= MOST
    assert [record.getMessage() for record in told if "the log is away" not in record.getMessage()] == (
        ["disk fails, and tries again: KeyError: 'bug'"] if work is job_of_node else []
    )
    assert len(told) == 1


@pytest.mark.parametrize(
    "talk", [ConnectionOutcome.BROKEN, ConnectionOutcome.SILENT, ConnectionOutcome.REFUSED, ConnectionOutcome.STRANGER]
)
def test_a_peer_that_is_not_there_is_called_seldom(
    talk: ConnectionOutcome, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    async def talk_to(peer: Peer) -> ConnectionOutcome:
        nonlocal calls
        calls += 1
        return talk

    async def scenario() -> None:
        link = FailureDetector("a", "1", port.fail)
        link.follow([Peer("b", "localhost:1", 1, "2")])
        await asyncio.sleep(0.99)
        await link.close()

    port = Broken()
    monkeypatch.setattr(failure_detector, "talk_to", talk_to)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario())
    assert 0 < calls <= MOST
    assert len(caplog.records) == (talk is ConnectionOutcome.STRANGER)
