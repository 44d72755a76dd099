"""What a message takes on Kafka and on a node is what docs/operate/operations.md has operators reckon with."""

from __future__ import annotations

import re
import secrets
import time
from pathlib import Path

import httpx
import pytest

from duemq.dev.cluster.cluster import LocalCluster
from tests.e2e.server import wait_for
from tests.support.servers.real_servers import need_servers

PAGE = (Path(__file__).parents[2] / "docs" / "operate" / "operations.md").read_text()
MESSAGES, PAYLOAD = 5_000, 600
KEY, TOPIC = "order-1234", "orders"


def bytes_of(cluster_folder: Path, topic: str) -> int:
    return sum(path.stat().st_size for path in cluster_folder.glob(f"kafka/**/{topic}-0/*.log"))


def overhead(what: str) -> int:
    """The bytes beside payload, key and headers, by the page."""
    (number,) = re.findall(rf"^- \*\*{what}\*\*.*? \+ (\d+) bytes", PAGE, re.MULTILINE)
    return int(number)


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.xdist_group("servers")
def test_a_message_takes_what_the_page_says(tmp_path: Path) -> None:
    need_servers()
    settings = {"shards": "1", "storage.refuse_percent": "100"}
    with (
        LocalCluster(tmp_path, brokers=1, zookeepers=1, nodes=1, proxies=1, settings=settings) as cluster,
        httpx.Client(base_url=cluster.proxies[0].url, timeout=120) as http,
    ):
        before = bytes_of(tmp_path, "duemq.buffer")
        due = int(time.time() * 1000) + 5_000
        for _ in range(0, MESSAGES, 500):
            messages = [
                {"topic": TOPIC, "key": KEY, "payload": secrets.token_hex(PAYLOAD // 2), "deliver_at": due}
                for _ in range(500)
            ]
            http.post("/v1/messages:batch", json={"messages": messages}).raise_for_status()
        own = MESSAGES * (PAYLOAD + len(KEY))
        buffer = bytes_of(tmp_path, "duemq.buffer") - before
        assert buffer == pytest.approx(own + MESSAGES * (len(TOPIC) + overhead("Buffer")), rel=0.03)
        whole = own + MESSAGES * overhead("Topics")
        wait_for(lambda: bytes_of(tmp_path, TOPIC) > whole * 0.97, "the deliveries")
        assert bytes_of(tmp_path, TOPIC) < whole * 1.03
