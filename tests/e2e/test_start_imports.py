"""What a process that is ready has imported: what it does not need delays its start."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from duemq.dev.cluster.cluster import LocalCluster
from duemq.dev.cluster.duemq_process import PROGRAM, DuemqProcess
from duemq.dev.servers.ports import free_port
from tests.support.servers.real_servers import need_servers

TRACED = (sys.executable, "-X", "importtime", *PROGRAM[1:])
IMPORTED = re.compile(rb"^import time: .*\| +([\w.]+)$", re.MULTILINE)

NOBODY = {"duemq.bench", "duemq.cli.messages", "duemq.dev", "duemq.pipeline", "fastapi", "pandas", "pyarrow", "rich"}
KAFKA = {"aiokafka", "duemq.bus.kafka", "kazoo", "httpx"}
DELIVERY = {"duemq.delay.node", "duemq.delay.shard", "duemq.wheel", "rocksdict"}
HTTP_API = {"duemq.proxy.api", "duemq.proxy.app"}


def imported(process: DuemqProcess) -> set[str]:
    """The modules, and the packages they are in."""
    names = {match.decode() for match in IMPORTED.findall(process.log.read_bytes())}
    return {name.rsplit(".", depth)[0] for name in names for depth in range(name.count(".") + 1)}


def test_serve_imports_nothing_of_a_cluster(tmp_path: Path) -> None:
    process = DuemqProcess("serve", "one", free_port(), tmp_path, {})
    process.program = TRACED
    process.start()
    try:
        modules = imported(process)
    finally:
        process.process.stop()
    assert {"numpy", "rocksdict", *DELIVERY, *HTTP_API} <= modules
    assert not modules & (NOBODY | KAFKA)


@pytest.mark.servers
@pytest.mark.smoke
@pytest.mark.xdist_group("servers")
def test_a_node_imports_no_http_api_and_a_proxy_nothing_that_delivers(tmp_path: Path) -> None:
    need_servers()
    cluster = LocalCluster(tmp_path, nodes=1, proxies=1, settings={"shards": "1"})
    (node,), (proxy,) = cluster.nodes, cluster.proxies
    node.program = proxy.program = TRACED
    with cluster:
        on_node, on_proxy = imported(node), imported(proxy)
    assert DELIVERY | {"aiokafka", "kazoo"} <= on_node
    assert HTTP_API | {"aiokafka", "kazoo"} <= on_proxy
    assert not on_node & (NOBODY - {"rich"} | HTTP_API)
    assert not on_proxy & (NOBODY - {"rich"} | DELIVERY)
