"""A proxy that starts while the brokers are away: it waits for them, and ends when it is told to."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from duemq.dev.cluster.cluster import LocalCluster
from duemq.dev.servers.process import wait_for
from tests.support.patience import PROCESS_S
from tests.support.servers.real_servers import need_servers

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.xdist_group("servers")]


def test_a_proxy_waits_for_the_brokers(tmp_path: Path) -> None:
    need_servers()
    settings = {"shards": "1", "storage.refuse_percent": "100"}
    with LocalCluster(tmp_path, nodes=1, proxies=1, settings=settings) as cluster:
        (proxy,) = cluster.proxies
        proxy.process.stop()
        cluster.kafka.kill()

        def start_and_wait() -> None:
            said_before = len(proxy.log.read_bytes())
            proxy.spawn()
            proxy.process.until(lambda: b"waiting for the brokers" in proxy.log.read_bytes()[said_before:], PROCESS_S)

        start_and_wait()
        proxy.process.terminate()
        wait_for(lambda: not proxy.process.running, "the proxy to end", PROCESS_S)
        assert proxy.process.exit_code == 0, proxy.process.last_words()

        start_and_wait()
        cluster.kafka.start()
        proxy.wait_until_ready(PROCESS_S)
        sent = httpx.post(f"{proxy.url}/v1/messages", json={"topic": "orders", "deliver_after": "1h"}, timeout=300)
        assert sent.status_code == 201, sent.text
