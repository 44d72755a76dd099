"""A cluster in which everything speaks TLS: clients, proxies, nodes, Kafka and ZooKeeper."""

from __future__ import annotations

import os
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from duemq.client import Admin, Unavailable
from duemq.dev.cluster.cluster import LocalCluster
from duemq.dev.cluster.duemq_process import PROGRAM, DuemqProcess
from duemq.dev.servers.ports import HOST, free_port
from duemq.dev.servers.process import Process
from duemq.tls.files import TlsFiles
from tests.e2e.server import wait_for
from tests.support.patience import PROCESS_S
from tests.support.servers.real_servers import need_servers
from tests.support.servers.zookeeper_tls import SecureZooKeeper, options
from tests.support.tls.certificates import Authority

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.xdist_group("servers")]

AGAIN = b"TLS files were read again"


class Site(NamedTuple):
    cluster: LocalCluster
    authority: Authority
    folder: Path

    @property
    def proxy(self) -> DuemqProcess:
        return self.cluster.proxies[0]

    def client(self, url: str = "") -> Admin:
        return Admin(url or self.proxy.url, ca_file=str(self.authority.ca), timeout=60)

    def another_proxy(self, name: str, *more: str, settings: dict[str, str]) -> tuple[str, Process]:
        """A proxy as the first one, but for these settings; empty: without."""
        port = free_port()
        given = {key: value for key, value in (self.proxy.settings | settings).items() if value}
        own = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
        command = [*PROGRAM, "proxy", "--listen", f"{HOST}:{port}", *more, *own]
        process = Process(name, command, self.folder / f"{name}.log", environment=self.proxy.process.environment)
        return f"https://{HOST}:{port}", process


def of_node(files: TlsFiles) -> dict[str, str]:
    return {"node.ca_file": files.ca, "node.cert_file": files.cert, "node.key_file": files.key}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, zookeeper_tls: SecureZooKeeper) -> Iterator[Site]:
    need_servers()
    folder = tmp_path_factory.mktemp("tls-cluster")
    authority = Authority.make(folder / "pki")
    settings = {"shards": "2", "storage.refuse_percent": "100", "http.answer_timeout_ms": "60000"}
    cluster = LocalCluster(folder / "cluster", nodes=2, proxies=1, settings=settings, kafka_secure=True)
    kafka = {
        "kafka.bootstrap": cluster.kafka.secure_bootstrap, "kafka.protocol": "SASL_SSL", "kafka.mechanism": "PLAIN",
        "kafka.user": cluster.kafka.plain.name, "kafka.password": cluster.kafka.plain.password,
        "kafka.ca_file": str(cluster.kafka.ca_file),
    }  # fmt: skip
    for process in (*cluster.nodes, *cluster.proxies):
        process.settings |= kafka | options(zookeeper_tls) | of_node(authority.issue(process.name))
    web = authority.issue("web")
    for proxy in cluster.proxies:
        proxy.settings |= {"http.cert_file": web.cert, "http.key_file": web.key}
        proxy.environment["DUEMQ_CA_FILE"] = web.ca
    with cluster:
        yield Site(cluster, authority, folder)


def test_messages_are_sent_read_and_cancelled(site: Site) -> None:
    for process in (*site.cluster.nodes, site.proxy):
        assert f"duemq serves https://{HOST}:{process.port}" in process.log.read_text()
    with site.client() as client:
        soon = client.send("orders", "soon", deliver_after="1s")
        later = client.send("orders", "later", deliver_after="1h", name="later")
        assert client.get(later.id).state.payload == b"later", "a proxy read it from a node"
        assert client.cancel("later").cancelled_at_ms
        wait_for(lambda: client.get(soon.id).state.status == "delivered", "the delivery")
        assert {node.state for node in client.cluster().nodes} == {"ready"}


def refusals(site: Site, name: str, settings: dict[str, str]) -> str:
    """What a proxy with other settings says of a message that it has to read from a node."""
    url, process = site.another_proxy(name, settings=settings)
    with site.client() as client:
        message = client.send("orders", "p", deliver_after="1h")
    process.start()
    try:
        with site.client(url) as client:
            process.until(lambda: answers(url, site.authority), PROCESS_S)
            with pytest.raises(Unavailable) as refused:
                client.get(message.id)
        return str(refused.value)
    finally:
        process.stop()


def answers(url: str, authority: Authority) -> bool:
    with suppress(httpx.TransportError):
        verify = ssl.create_default_context(cafile=str(authority.ca))
        return httpx.get(f"{url}/readyz", verify=verify, timeout=5).status_code == 200
    return False


def test_a_proxy_without_a_certificate_of_the_cluster_is_refused(site: Site) -> None:
    nothing = {"node.cert_file": "", "node.key_file": ""}
    assert "certificate required" in refusals(site, "without", nothing)
    stranger = Authority.make(site.folder / "strangers").issue("proxy")
    foreign = {"node.cert_file": stranger.cert, "node.key_file": stranger.key}
    assert "unknown ca" in refusals(site, "foreign", foreign)
    assert "CERTIFICATE_VERIFY_FAILED" in refusals(site, "distrustful", nothing | {"node.ca_file": ""})


def test_nobody_else_reaches_a_node(site: Site) -> None:
    node = site.cluster.nodes[0]
    trusting = ssl.create_default_context(cafile=str(site.authority.ca))
    with pytest.raises((httpx.TransportError, ssl.SSLError)):
        httpx.get(f"{node.url}/internal/shards/0/imports", verify=trusting, timeout=60)
    plain = httpx.get(node.url.replace("https", "http") + "/readyz", timeout=60)
    assert plain.status_code == 400 and "https://" in plain.json()["detail"]


def test_on_the_way_from_plain_to_tls_proxies_read_from_the_nodes_that_they_can_reach(site: Site) -> None:
    nothing = dict.fromkeys(("node.ca_file", "node.cert_file", "node.key_file"), "")
    plain = {key: value for key, value in site.cluster.nodes[0].settings.items() if key not in nothing}
    node = DuemqProcess("node", "plain", free_port(), site.folder, plain)
    url, proxy = site.another_proxy("plain-proxy", settings=nothing)
    node.start()
    proxy.start()
    try:
        proxy.until(lambda: answers(url, site.authority), PROCESS_S)
        for reached in (url, site.proxy.url):
            with site.client(reached) as client:
                message = client.send("orders", "p", deliver_after="1h")
                assert client.get(message.id).state.payload == b"p"
                assert message.id in {one.id for one in client.list(topic="orders")}
    finally:
        proxy.stop()
        node.process.stop()


def test_new_certificates_reach_nodes_proxies_and_their_workers(site: Site) -> None:
    url, workers = site.another_proxy("workers", "--workers", "2", settings={})
    workers.start()
    try:
        workers.until(lambda: workers.log.read_bytes().count(b"duemq serves https://") == 2, PROCESS_S)
        for process in (*site.cluster.nodes, site.proxy):
            site.authority.issue(process.name)
        site.authority.issue("web")
        running = [process.process for process in (*site.cluster.nodes, site.proxy)]
        for each in (*running, workers):
            os.kill(each.pid, signal.SIGHUP)
        for each in running:
            each.until(lambda each=each: AGAIN in each.log.read_bytes(), PROCESS_S)  # type: ignore[misc]
        workers.until(lambda: workers.log.read_bytes().count(AGAIN) >= 2, PROCESS_S)
        for proxy in (site.proxy.url, url):
            with site.client(proxy) as client:
                message = client.send("orders", "new", deliver_after="1h")
                assert client.get(message.id).state.payload == b"new"
    finally:
        workers.stop()


def test_a_node_whose_certificate_has_another_name_does_not_start(site: Site) -> None:
    other = site.authority.issue("other-name", "duemq.example.com")
    node = DuemqProcess("node", "misnamed", free_port(), site.folder, site.cluster.nodes[0].settings | of_node(other))
    node.spawn()
    wait_for(lambda: not node.process.running, "its end", PROCESS_S)
    assert node.process.exit_code == 1
    assert f"would refuse {other.cert} for {HOST}: IP address mismatch" in node.log.read_text()
    with socket.socket() as probe:
        assert probe.connect_ex((HOST, node.port))
