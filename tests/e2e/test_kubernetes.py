"""The steps of docs/operate/kubernetes.md, with a kubelet of the tests: it starts the containers of the rendered
manifests on a real Kafka and ZooKeeper, asks their probes, and replaces them one by one while messages are sent and
delivered.
"""

from __future__ import annotations

import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any, Final

import httpx
import pytest
import yaml

from duemq.dev.kafka.kafka import KafkaServers
from duemq.dev.servers.zookeeper import ZooKeeperServers
from tests.e2e.page_blocks import PageBlocks
from tests.e2e.server import wait_for
from tests.support.http.endpoints import counting_endpoint
from tests.support.kubernetes.helm import Helm, Manifest
from tests.support.kubernetes.namespaces import need_namespaces
from tests.support.kubernetes.site import Site
from tests.support.patience import PROCESS_S

TOPIC: Final = "rolled"
_SECRET = re.compile(r"--from-literal=(DUEMQ_\w+)=")


class Sender:
    """Sends to pods that are ready; repeats a request without an answer under its key. `ids`: of accepted messages."""

    def __init__(self, addresses: Callable[[], list[str]], key: str) -> None:
        self.ids: list[str] = []
        self._addresses, self._headers = addresses, {"Authorization": f"Bearer {key}"}
        self._end = Event()
        self._thread = Thread(target=self._run, name="sender")

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._end.set()
        self._thread.join()

    def send_more(self, messages: int) -> None:
        wanted = len(self.ids) + messages
        wait_for(lambda: len(self.ids) >= wanted or not self._thread.is_alive(), f"{messages} more messages")
        assert self._thread.is_alive()

    def _run(self) -> None:
        chance = Random()
        with httpx.Client(headers=self._headers, timeout=60, trust_env=False) as client:
            for number in count():
                if self._end.wait(0.02):
                    return
                body = {"topic": TOPIC, "payload": str(number), "deliver_after": f"{chance.randrange(4000)}ms"}
                self.ids.append(self._send(client, body, f"{TOPIC}-{number}", chance))

    def _send(self, client: httpx.Client, body: dict[str, Any], key: str, chance: Random) -> str:
        while True:
            addresses = self._addresses()
            if addresses:
                try:
                    url = f"http://{chance.choice(addresses)}/v1/messages"
                    answer = client.post(url, json=body, headers={"Idempotency-Key": key})
                except httpx.TransportError:
                    pass
                else:
                    if answer.status_code in (200, 201):
                        return str(answer.json()["id"])
                    assert answer.status_code in (503, 504), answer.text
            time.sleep(0.05)


def installed(page: PageBlocks, helm: Helm, servers: dict[str, Any], namespace: str) -> list[Manifest]:
    """The manifests of the page's values, and the Secret of its command."""
    page.take("sh")  # builds the image
    variables = _SECRET.findall(page.take("sh"))
    values = yaml.safe_load(page.take("yaml"))
    assert f"--namespace {namespace}" in page.take("sh")
    config = values["config"]
    for section, given in servers.items():
        config[section] = config.get(section, {}) | given if isinstance(given, dict) else given
    sizes = {"node": {"replicas": 2}, "proxy": {"drainSeconds": 2}}
    assert variables == ["DUEMQ_NODE__TOKEN"]
    secret = {
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": values["existingSecret"]},
        "stringData": dict.fromkeys(variables, "a-long-random-text"),
    }  # fmt: skip
    return [secret, *helm.render(values | sizes, namespace=namespace)]


def first_key(site: Site, line: str) -> str:
    """Runs the command of `kubectl exec POD -- COMMAND` in that pod. It prints the key."""
    words = shlex.split(line)
    pod = words[words.index("exec") + 1]
    (found,) = [one for pods in site.pods.values() for one in pods if one.name == pod]
    done = found.run(*words[words.index("--") + 1 :], within_s=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def delivered(address: str, key: str) -> list[str]:
    """The ids in the topic, in its order."""
    found: list[str] = []
    cursor = ""
    with httpx.Client(base_url=f"http://{address}", headers={"Authorization": f"Bearer {key}"}, timeout=60) as http:
        while True:
            page = http.get(f"/v1/topics/{TOPIC}/records?max=10000{cursor}").json()
            if not page["records"]:
                return found
            found += [record["headers"]["duemq-id"] for record in page["records"]]
            cursor = f"&after={page['cursor']}"


@pytest.fixture
def folder() -> Iterator[Path]:
    need_namespaces()
    with TemporaryDirectory() as name:  # pytest's own is for root alone
        Path(name).chmod(0o755)
        yield Path(name)


def test_one_process_keeps_its_messages_when_its_settings_change(helm: Helm, folder: Path) -> None:
    page = PageBlocks("operate/kubernetes.md", "One process")
    values = yaml.safe_load(page.take("yaml"))
    with Site(folder) as site:
        site.apply(helm.render(values))
        key = first_key(site, "kubectl exec duemq-0 -- duemq keys create ops --role admin --data /data/duemq --yes")
        with Sender(lambda: site.endpoints("duemq"), key) as sender:
            sender.send_more(20)
            site.apply(helm.render(values | {"config": {"log_level": "debug"}}))
            sender.send_more(20)
        (ended,), (address,) = site.ended, site.endpoints("duemq")
        assert ended.exit_code == 0, ended.process.last_words()
        wait_for(lambda: len(delivered(address, key)) >= len(sender.ids), "all messages to be delivered")
        assert Counter(delivered(address, key)) == Counter(sender.ids), "none is lost, and none comes twice"


@pytest.mark.slow
def test_the_page_is_followed_and_pods_are_killed_and_rolled_while_messages_go_through(
    helm: Helm, kafka: KafkaServers, zookeeper: ZooKeeperServers, folder: Path
) -> None:
    page = PageBlocks("operate/kubernetes.md", "Install")
    with counting_endpoint() as (url, received), Site(folder) as site:
        servers: dict[str, Any] = {
            "cluster": f"helm-{folder.name}",
            "shards": 2,
            "kafka": {"bootstrap": [kafka.bootstrap], "replication_factor": 1, "min_insync_replicas": 1},
            "zookeeper": {"hosts": [zookeeper.hosts]},
            "relay": {"private_networks": ["127.0.0.0/8"]},
            "destinations": {"shop": {"url": url, "topics": [TOPIC]}},
        }
        manifests = installed(page, helm, servers, "mail")
        site.apply(manifests)
        assert {name: len(pods) for name, pods in site.pods.items()} == {"duemq": 2, "duemq-node": 2, "duemq-relay": 2}
        key = first_key(site, page.take("sh"))
        with Sender(lambda: site.endpoints("duemq"), key) as sender:
            sender.send_more(100)

            killed = site.pods["duemq-node"][0]
            killed.kill()
            wait_for(lambda: killed.restarts == 1 and killed.ready, "the node to be started again", PROCESS_S)
            sender.send_more(50)

            before = [pod for pods in site.pods.values() for pod in pods]
            servers["log_level"] = "debug"
            site.apply(installed(PageBlocks("operate/kubernetes.md", "Install"), helm, servers, "mail"))
            assert {pod.name for pod in site.ended} == {pod.name for pod in before}
            assert {pod.name: pod.exit_code for pod in site.ended} == dict.fromkeys((pod.name for pod in before), 0)
            sender.send_more(50)
            sender.stop()
            sent = set(sender.ids)
            address = site.endpoints("duemq")[0]
            wait_for(lambda: sent <= set(delivered(address, key)), "all messages to be delivered")
            wait_for(lambda: sent <= received.keys(), "all messages to be handed on")
        assert Counter(delivered(address, key)) == Counter(sender.ids), "none is lost, and none comes twice"
        assert set(received) == sent
        after = [pod for pods in site.pods.values() for pod in pods]
        assert {pod.name: pod.restarts for pod in after if pod.restarts} == {}, "no probe fails"
        for pod in (*site.ended, *after):
            assert "Traceback" not in pod.process.log.read_text()
