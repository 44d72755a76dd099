"""Consumers over HTTP beside a proxy of the earlier version: one cursor for both, and the keys that may store it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from duemq.dev.cluster.cluster import LocalCluster
from duemq.dev.cluster.duemq_process import DuemqProcess
from tests.e2e.server import wait_for
from tests.support.node.earlier_version import unpack
from tests.support.servers.real_servers import need_servers

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.xdist_group("servers")]

ROOT = "a-key-of-the-settings"
TOPIC = "/v1/topics/orders"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """The second proxy is of the earlier version."""
    need_servers()
    settings = {"shards": "1", "storage.refuse_percent": "100"}
    access = {"DUEMQ_HTTP__ACCESS": "keys", "DUEMQ_HTTP__API_KEYS": ROOT}
    with LocalCluster(tmp_path, nodes=1, proxies=2, settings=settings, environment=access) as cluster:
        earlier = cluster.proxies[1]
        earlier.process.stop()
        earlier.environment |= unpack(tmp_path / "earlier")
        earlier.start()
        yield cluster


def ask(proxy: DuemqProcess, key: str, method: str, path: str, body: object = None) -> httpx.Response:
    return httpx.request(method, proxy.url + path, json=body, headers={"X-API-Key": key}, timeout=60)


def test_a_cursor_is_one_for_both_and_the_earlier_proxy_lets_keys_commit_that_only_read(cluster: LocalCluster) -> None:
    today, earlier = cluster.proxies
    keys = {}
    for name, scopes in (("viewer", ["read"]), ("consumer", ["read", "consume"]), ("committer", ["consume"])):
        made = ask(today, ROOT, "POST", "/v1/keys", {"name": name, "scopes": scopes})
        keys[name] = made.raise_for_status().json()["key"]
    wait_for(lambda: ask(earlier, keys["consumer"], "GET", "/v1/limits").status_code == 200, "the keys everywhere")
    for payload in "abc":
        ask(today, ROOT, "POST", "/v1/messages", {"topic": "orders", "payload": payload}).raise_for_status()

    def read(proxy: DuemqProcess, most: int = 1) -> tuple[list[str], str]:
        page = ask(proxy, keys["consumer"], "GET", f"{TOPIC}/records?consumer=billing&max={most}&wait=5s").json()
        return [record["payload"] for record in page["records"]], page["cursor"]

    def commit(proxy: DuemqProcess, who: str, cursor: str, consumer: str = "billing") -> int:
        return ask(proxy, keys[who], "PUT", f"{TOPIC}/consumers/{consumer}", {"cursor": cursor}).status_code

    # A consumer that a balancer sends to both continues at its cursor, whichever took the commit.
    for proxy, other, payload in ((today, earlier, "a"), (earlier, today, "b"), (today, earlier, "c")):
        (records, cursor) = read(proxy)
        assert records == [payload]
        assert commit(other, "consumer", cursor) == 204
    # Until the last proxy is new, a key that only reads moves cursors there; one without `read` is unknown to it.
    start = ask(earlier, keys["viewer"], "GET", f"{TOPIC}/records?max=1").json()["cursor"]
    assert (commit(today, "viewer", start), commit(earlier, "viewer", start)) == (403, 204)
    assert read(today, 10)[0] == ["b", "c"], "it has moved the consumer back"
    assert (commit(today, "committer", start), commit(earlier, "committer", start)) == (204, 403)
    # A name that was begun there counts for no caller, and a cursor that is deleted is gone for both.
    assert commit(earlier, "consumer", start, "other") == commit(today, "consumer", start, "other") == 204
    assert ask(today, keys["consumer"], "DELETE", f"{TOPIC}/consumers/other").status_code == 204
    assert ask(earlier, keys["consumer"], "GET", f"{TOPIC}/consumers/other").status_code == 204
