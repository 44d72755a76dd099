"""The cluster that the scenarios break: settings that make faults show soon, and the seams to put them in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from duemq.proxy.local.cluster import LocalCluster
from duemq.proxy.local.duemq_process import DuemqProcess
from tests.chaos.shape import Shape
from tests.real_servers import need_servers

SESSION_MS = 4_000
_CLOCK = "DUEMQ_TEST_CLOCK"


@contextmanager
def start_cluster(folder: Path, shape: Shape) -> Iterator[LocalCluster]:
    need_servers()
    settings = {
        "shards": str(shape.shards),
        "zookeeper.session_timeout_s": str(SESSION_MS / 1000),
        "storage.flush_interval_s": "2",
        "topics.partitions": "0",  # one that is deleted stays away
        "delivery.max_attempts": "4",
        "delivery.retry_delays": "500ms,1s",
    }
    cluster = LocalCluster(
        folder, brokers=shape.brokers, zookeepers=shape.zookeepers, nodes=shape.nodes, proxies=shape.proxies,
        settings=settings,
    )  # fmt: skip
    for node in cluster.nodes:
        node.environment[_CLOCK] = str(folder / f"{node.name}.clock")
    with cluster:
        yield cluster


def start_what_is_down(cluster: LocalCluster) -> None:
    """After a scenario its nodes are stopped."""
    for process in (*cluster.nodes, *cluster.proxies):
        process.spawn()
    for process in (*cluster.nodes, *cluster.proxies):
        process.wait_until_ready()


@contextmanager
def settings_of(process: DuemqProcess, **changed: str) -> Iterator[None]:
    """Further settings, `section__key`, for a start within."""
    before = dict(process.settings)
    process.settings.update({key.replace("__", "."): value for key, value in changed.items()})
    try:
        yield
    finally:
        process.settings.clear()
        process.settings.update(before)


def clock_of(node: DuemqProcess) -> Path:
    """The file with the ms by which a node's clock is wrong."""
    return Path(node.environment[_CLOCK])
