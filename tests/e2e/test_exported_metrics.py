"""Real servers export what the alert rules and the dashboard ask for."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import httpx
import pytest

from duemq.dev.cluster.cluster import LocalCluster
from tests.e2e.server import Server, wait_for
from tests.support.node.expressions import asked_for, of_alerts, of_dashboard
from tests.support.servers.real_servers import need_servers

EXPRESSIONS = [*of_alerts().values(), *of_dashboard()]
NAMES = {name for expression in EXPRESSIONS for name in asked_for(expression)}
OF_RELAYS = {name for name in NAMES if name.startswith("duemq_relay_")}
"""Exported from the first destination on."""
OF_REQUESTS = {"duemq_strangers_refused_total", "duemq_half_sent_bodies_total"}
"""Exported by servers and proxies, which callers reach."""
NEVER_HERE = {
    "duemq_topic_refused": {"topic", "reason"},  # only while one refuses
    "duemq_own_topic_unusable": {"topic"},  # only while one is: tests/unit/http/test_http_app.py
    "duemq_blocked_seconds": {
        "topic",
        "partition",
        "producer",
    },  # only while one is: tests/unit/cluster/test_blocked.py
    "duemq_tls_certificate_expiry_timestamp_seconds": {"setting"},  # only with TLS: tests/unit/cli/test_tls_settings.py
}


def exported(text: str) -> dict[str, set[str]]:
    """The labels of each series of a scrape; of a family without series those it is known to have."""
    found: dict[str, set[str]] = {}
    for name, labels in re.findall(r"^([a-z_]\w*)(\{.*\})? \S+$", text, re.MULTILINE):
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    for name, labels_of_name in NEVER_HERE.items():
        found.setdefault(name, labels_of_name)
    return found


def missing(text: str, names: set[str] = NAMES - OF_RELAYS) -> list[str]:
    there = exported(text)
    wrong = []
    for expression in EXPRESSIONS:
        asked = {name: labels for name, labels in asked_for(expression).items() if name in names}
        any_label = set().union(*(there.get(name, set()) for name in asked))
        for name, labels in asked.items():
            if name not in there:
                wrong.append(f"{name} of {expression}")
            elif not labels <= any_label:
                wrong.append(f"{sorted(labels - any_label)} of {expression}")
    return wrong


def test_a_server_exports_what_is_asked_for(shared_server: Server, promtool: Path) -> None:
    id_ = shared_server.send("measured", deliver_after="10ms")
    wait_for(lambda: shared_server.state(id_)["status"] == "delivered", "a delivery")
    text = shared_server.call("GET", "/metrics").text
    assert missing(text) == []
    assert missing(text.replace("duemq_ready", "duemq_other")), "the test finds a name that is not there"
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, ""), "names and help are as Prometheus has them"


def test_a_relay_exports_what_is_asked_for(shared_server: Server) -> None:
    declared = {"name": "measured", "url": "http://127.0.0.1:9/"}
    assert shared_server.call("POST", "/v1/destinations", declared).status_code == 201
    try:
        shared_server.send("destination.measured")
        # The last of them to get a sample. None is asked for a value: the lag is 1 only until the attempt has failed.
        answer = 'duemq_relay_answers_total{destination="measured",'
        wait_for(lambda: answer in shared_server.call("GET", "/metrics").text, "the outcome of an attempt")
        assert OF_RELAYS
        assert missing(shared_server.call("GET", "/metrics").text, OF_RELAYS) == []
    finally:
        shared_server.call("DELETE", "/v1/destinations/measured")


def test_exemplars_are_messages(shared_server: Server) -> None:
    id_ = shared_server.send("exemplary", deliver_after="10ms")
    wait_for(lambda: shared_server.state(id_)["status"] == "delivered", "a delivery")
    answer = httpx.get(
        f"{shared_server.url}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}, timeout=300
    )
    line = next(line for line in answer.text.splitlines() if 'topic="exemplary"' in line and " # " in line)
    assert f'message_id="{id_}"' in line


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.xdist_group("servers")
def test_a_node_and_a_proxy_export_what_is_asked_for(tmp_path: Path) -> None:
    need_servers()
    settings = {"shards": "2", "storage.refuse_percent": "100"}
    with LocalCluster(tmp_path, nodes=1, proxies=1, settings=settings) as cluster:
        (node,), (proxy,) = cluster.nodes, cluster.proxies
        sent = httpx.post(f"{proxy.url}/v1/messages", json={"topic": "t", "deliver_after": "10ms"}, timeout=300)
        where = f"{proxy.url}/v1/messages/{sent.json()['id']}"
        wait_for(lambda: httpx.get(where, timeout=300).json()["status"] == "delivered", "a delivery")
        assert missing(httpx.get(f"{node.url}/metrics", timeout=300).text, NAMES - OF_RELAYS - OF_REQUESTS) == []
        of_proxy = exported(httpx.get(f"{proxy.url}/metrics", timeout=300).text)
        assert {"duemq_ready", "duemq_build_info", "duemq_direct_total", "duemq_clock_out_of_bounds"} <= of_proxy.keys()
        assert of_proxy.keys() >= OF_REQUESTS
        later = {"topic": "t", "deliver_after": "30d"}
        assert httpx.post(f"{proxy.url}/v1/messages", json=later, timeout=300).status_code == 201
        wait_for(lambda: values_of(proxy.url)["pending"] == "1", "figures of the node at the proxy's console")
        assert "Everything is in order" in httpx.get(f"{proxy.url}/console/", timeout=300).text


def values_of(url: str) -> dict[str, str]:
    """What the overview of a console shows."""
    with httpx.stream("GET", f"{url}/console/live", timeout=300) as stream:
        line = next(line for line in stream.iter_lines() if line.startswith("data: "))
    values: dict[str, str] = json.loads(line.removeprefix("data: "))["values"]
    return values
