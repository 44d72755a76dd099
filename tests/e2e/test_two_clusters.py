"""Production and staging on one Kafka: each delivers its own, once, and neither starts on the logs of the other."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import httpx
import pytest
from kazoo.client import KazooClient

from duemq.bus.kafka.bus import KafkaBus
from duemq.bus.kafka.options import KafkaOptions
from duemq.client.consumer import Consumer, ConsumerOptions, Delays, Message
from duemq.dev.cluster.cluster import LocalCluster
from duemq.dev.cluster.duemq_process import DuemqProcess
from duemq.dev.servers.ports import free_port
from duemq.model.log.ledger import Barrier
from duemq.model.messages.record import pack_record
from duemq.pipeline.spark.connector import JARS_VARIABLE
from tests.chaos.topics import administration, committed, delete_topic
from tests.e2e.server import run, wait_for
from tests.support.patience import PROCESS_S
from tests.support.servers.real_servers import need, need_servers
from tests.support.spark.spark_site import SETTINGS as SPARK
from tests.support.spark.spark_site import spark_jars

pytestmark = [pytest.mark.smoke, pytest.mark.xdist_group("two_clusters")]

COUNT = 200
SETTINGS = {"relay.private_networks": "127.0.0.0/8"}


class Endpoint(BaseHTTPRequestHandler):
    """Fails each message once, and counts the others by path and payload."""

    protocol_version = "HTTP/1.1"
    received: ClassVar[Counter[tuple[str, str]]] = Counter()
    failed: ClassVar[set[str]] = set()

    def do_POST(self) -> None:
        body, id_ = self.rfile.read(int(self.headers["Content-Length"])).decode(), self.headers["webhook-id"]
        if id_ in self.failed:
            self.received[self.path, body] += 1
        self.send_response(204 if id_ in self.failed else 500)
        self.failed.add(id_)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@dataclass
class Duemq:
    """One of the two: a node, a proxy and a relay."""

    cluster: str
    processes: list[DuemqProcess]
    sent: list[str] = field(default_factory=list)

    @property
    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.processes[1].url, timeout=60)

    def start(self) -> None:
        for process in self.processes:
            process.start()

    def stop(self) -> None:
        for process in reversed(self.processes):
            assert process.process.stop() == 0, process.log.read_text()[-2_000:]

    def send(self, topic: str, count: int) -> None:
        first = len(self.sent)
        texts = [f"{self.cluster} {topic} {number}" for number in range(first, first + count)]
        due = int(time.time() * 1000) + 1_500
        messages = [{"topic": topic, "payload": text, "deliver_at": due} for text in texts]
        with self.http as http:
            results = http.post("/v1/messages:batch", json={"messages": messages}).json()["results"]
        assert all(result.get("id") for result in results), results
        self.sent += texts


class Site:
    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.servers = stack.enter_context(LocalCluster(folder, nodes=0, proxies=0))
        self.bootstrap = self.servers.kafka.bootstrap
        self.production, self.staging = self._duemq("duemq", stack), self._duemq("staging", stack)

    def process(self, kind: str, name: str, stack: ExitStack, **settings: str) -> DuemqProcess:
        common = {"kafka.bootstrap": self.bootstrap, "zookeeper.hosts": self.servers.zookeeper.hosts, **SETTINGS}
        process = DuemqProcess(kind, name, free_port(), self.folder, common | settings)
        stack.callback(process.process.kill)
        return process

    def _duemq(self, cluster: str, stack: ExitStack) -> Duemq:
        return Duemq(
            cluster,
            [self.process(kind, f"{cluster}-{kind}", stack, cluster=cluster) for kind in ("node", "proxy", "relay")],
        )

    def orders(self, duemq: Duemq) -> list[str]:
        records = asyncio.run(committed(self.bootstrap, f"orders.{duemq.cluster}"))
        return [record["payload"] for record in records]

    def goes_on(self, duemq: Duemq) -> None:
        duemq.send(f"orders.{duemq.cluster}", 10)
        wait_for(lambda: {*duemq.sent[-10:]} <= {*self.orders(duemq)}, f"{duemq.cluster} to deliver")

    def topics(self) -> set[str]:
        async def ask() -> set[str]:
            async with administration(self.bootstrap) as admin:
                return set(await admin.list_topics())

        return asyncio.run(ask())

    def groups(self) -> set[str]:
        async def ask() -> set[str]:
            async with administration(self.bootstrap) as admin:
                return {name for name, *_ in await admin.list_consumer_groups()}

        return asyncio.run(ask())

    def refused(self, process: DuemqProcess) -> str:
        """What a process says that ends at its start."""
        process.spawn()
        wait_for(lambda: not process.process.running, "the end of the process", PROCESS_S)
        return process.log.read_text()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    need_servers()
    with ExitStack() as stack:
        endpoint = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Endpoint))
        thread = Thread(target=endpoint.serve_forever, name="endpoint")
        thread.start()
        stack.callback(thread.join)
        stack.callback(endpoint.shutdown)
        site = Site(tmp_path_factory.mktemp("two"), stack)
        for duemq in (site.production, site.staging):
            duemq.start()
            declared = {
                "name": "shop", "url": f"http://127.0.0.1:{endpoint.server_port}/{duemq.cluster}",
                "retry": {"kind": "delays", "delays": ["100ms"]},
            }  # fmt: skip
            with duemq.http as http:
                answer = http.post("/v1/destinations", json=declared)
                assert answer.status_code == 201, answer.text
        yield site


def _shards(http: httpx.Client) -> list[dict[str, Any]]:
    shards: list[dict[str, Any]] = http.get("/v1/cluster").json()["shards"]
    return shards


def test_two_clusters_deliver_their_own_messages_once_and_start_again(site: Site) -> None:
    both = (site.production, site.staging)
    for again in range(2):
        for duemq in both:
            duemq.send(f"orders.{duemq.cluster}", COUNT)
            duemq.send("destination.shop", COUNT // 4)
        for duemq in both:
            expected = [text for text in duemq.sent if " orders" in text]
            wait_for(lambda: len(site.orders(duemq)) >= len(expected), "the deliveries")  # noqa: B023
        handed = {(f"/{duemq.cluster}", text) for duemq in both for text in duemq.sent if " destination" in text}
        wait_for(lambda: handed <= Endpoint.received.keys(), "the messages of the destination")  # noqa: B023
        if again == 0:
            for duemq in both:
                duemq.stop()
                duemq.start()
    for duemq in both:
        assert sorted(site.orders(duemq)) == sorted(text for text in duemq.sent if " orders" in text)
    assert set(Endpoint.received) == handed, "nothing of the other cluster"
    assert {*Endpoint.received.values()} == {1}
    for duemq in both:
        with duemq.http as http:
            wait_for(lambda: sum(shard["pending"] for shard in _shards(http)) == 0, "the last entries")
            assert all(shard["master"] == f"{duemq.cluster}-node" for shard in _shards(http))
            accepted = sum(shard["outcomes"]["accepted"] for shard in _shards(http))
            assert accepted == len(duemq.sent) + COUNT // 2, "and one retry of each of the destination"


def test_nothing_of_duemqs_own_is_shared(site: Site) -> None:
    own = {"buffer", "ledger", "admin", "jobs", "trail", "clock", "relays"}
    names = site.topics()
    for prefix in ("duemq.", "duemq.staging."):
        assert {prefix + part for part in own} <= names
    assert {"destination.shop", "duemq.staging.destination.shop", "retry.duemq.staging.destination.shop"} <= names
    assert {"destination.shop", "duemq.staging.destination.shop"} <= site.groups()
    for duemq in (site.production, site.staging):
        with duemq.http as http:
            assert {topic["topic"] for topic in http.get("/v1/topics").json()["topics"]} == {
                "duemq.clock", "duemq.dlq", "orders.duemq", "orders.staging",
                "destination.shop", "retry.destination.shop", "dlq.destination.shop",
            }  # fmt: skip
            for topic in ("duemq.staging.ledger", "duemq.ledger"):
                assert http.get(f"/v1/topics/{topic}/records").status_code in (403, 404)
            for topic in ("duemq.staging.buffer", "retry.duemq.staging.destination.shop"):
                refused = http.post("/v1/messages", json={"topic": topic, "payload": "x"})
                assert refused.json()["code"] == "bad_topic", refused.text
    for duemq, most in ((site.production, 10), (site.staging, 20)):
        with duemq.http as http:
            cursor = http.get(f"/v1/topics/orders.duemq/records?max={most}").json()["cursor"]
            assert http.put("/v1/topics/orders.duemq/consumers/billing", json={"cursor": cursor}).is_success
    with site.production.http as one, site.staging.http as other:
        cursors = [http.get("/v1/topics/orders.duemq/consumers/billing").json()["cursor"] for http in (one, other)]
    assert cursors[0] != cursors[1]


async def _give_up(bootstrap: str, topic: str, group: str) -> None:
    """A consumer of duemq in this group, until it has given up a message."""
    consumer, last = Consumer(group, bootstrap, ConsumerOptions(start="first", retry=Delays(["50ms"]))), asyncio.Event()

    @consumer.on(topic)
    async def refuse(message: Message) -> None:
        if message.retried:
            last.set()
        raise RuntimeError(f"no stock for {message.text}")

    await consumer.start()
    try:
        await asyncio.wait_for(last.wait(), 300)
    finally:
        await consumer.stop()


def _reader(http: httpx.Client, id_: str, group: str) -> Any:
    story = http.get(f"/v1/messages/{id_}/story")
    assert story.status_code == 200, story.text
    return next((one for one in story.json()["readers"] if one["group"] == group), {"state": None})


def test_each_tells_the_story_of_its_messages_at_destinations_and_consumers(site: Site) -> None:
    for duemq in (site.production, site.staging):
        group, topic = f"team-{duemq.cluster}", f"bills.{duemq.cluster}"
        with duemq.http as http:
            sent = [
                http.post("/v1/messages", json=where | {"payload": "a pen", "key": "k", "deliver_after": "1ms"})
                for where in ({"destination": "shop"}, {"topic": topic})
            ]
            handed, billed = (answer.json()["id"] for answer in sent)
            told = "destination.shop"
            wait_for(lambda: _reader(http, handed, told)["state"] == "accepted", "the second attempt")  # noqa: B023
            assert [one["event"] for one in _reader(http, handed, told)["events"]] == ["failed"]
            if duemq is site.staging:
                continue  # consumers of applications send back through the buffer of the default cluster
            wait_for(lambda: http.get(f"/v1/topics/{topic}").status_code == 200, "the delivery")  # noqa: B023
            asyncio.run(_give_up(site.bootstrap, topic, group))
            wait_for(lambda: _reader(http, billed, group)["state"] == "dead", "the dead letter")  # noqa: B023
            *failed, dead = _reader(http, billed, group)["events"]
            assert [one["error"] for one in failed] == ["no stock for a pen"] * 2
            assert (dead["topic"], dead["reason"], dead["letter"]) == (f"dlq.{group}", "retries", "0:0")


@pytest.mark.slow  # two audits by Spark
def test_the_audit_of_each_finds_nothing_wrong(site: Site) -> None:
    jars = {JARS_VARIABLE: str(need(spark_jars))}
    for duemq, prefix in ((site.production, "duemq."), (site.staging, "duemq.staging.")):
        topics = [f"orders.{duemq.cluster}", "destination.shop", "retry.destination.shop"]
        audited = run(
            "spark", "audit", "--kafka", site.bootstrap, "--kafka-set", f"prefix={prefix}", "--json",
            "--out", site.folder / f"audit-{duemq.cluster}", "--master", "local[2]",
            *(word for topic in topics for word in ("--topics", topic)),
            *(word for name, value in SPARK.items() for word in ("--conf", f"{name}={value}")),
            variables=jars, within_s=600,
        )  # fmt: skip
        assert audited.returncode == 0, (audited.stdout[-3_000:], audited.stderr[-3_000:])
        assert json.loads(audited.stdout)["violations"] == {}


def test_a_cluster_that_is_new_does_not_start_on_the_logs_of_another(site: Site) -> None:
    with ExitStack() as stack:
        # A staging with another ZooKeeper, under the name of production.
        stranger = site.process("node", "stranger", stack, **{"zookeeper.chroot": "/elsewhere"})
        said = site.refused(stranger)
        assert "topic 'duemq.buffer' has records, and cluster" in said and "another name (cluster)" in said
        wrong = site.process("node", "wrong", stack, cluster="staging", **{"kafka.prefix": "duemq."})
        assert "the topics of cluster staging begin with duemq.staging." in site.refused(wrong)
        blind = site.process("relay", "blind", stack, cluster="staging", **{"zookeeper.hosts": ""})
        assert "the prefix of the topics of cluster staging is not known" in site.refused(blind)
    site.goes_on(site.production)


def test_a_topic_that_was_made_again_is_refused(site: Site) -> None:
    staging = site.staging
    node, proxy, _ = staging.processes
    staging.stop()
    asyncio.run(delete_topic(site.bootstrap, "duemq.staging.buffer"))
    said = site.refused(node)
    assert "topic 'duemq.staging.buffer' has the id" in said and "recreated, mirrored or restored" in said
    assert "topic 'duemq.staging.buffer' has the id" in site.refused(proxy)
    site.goes_on(site.production)


def test_masters_stop_at_what_another_cluster_wrote_to_their_ledgers(site: Site) -> None:
    production, shards = site.production, 4

    async def write() -> None:
        """As an older duemq of another name, which took the same topics."""
        bus = await KafkaBus.open(KafkaOptions(site.bootstrap, cluster="laptop"))
        try:
            for shard in range(shards):
                committer = await bus.committer(f"shard-{shard}")
                record = pack_record(None, (), Barrier(0, int(time.time() * 1000)).encode())
                await committer.commit({("duemq.ledger", shard): [record]})
                await committer.close()
        finally:
            await bus.close()

    asyncio.run(write())
    log = production.processes[0].log
    said = "two clusters have written to its ledger"

    def all_stopped() -> bool:
        if all(f"shard {shard}: {said}" in log.read_text() for shard in range(shards)):
            return True
        with suppress(AssertionError):  # refused once no shard is left
            production.send("orders.duemq", 1)  # to a shard that has not stopped: each stops with its next commit
        return False

    wait_for(all_stopped, "all shards to stop")
    with production.http as http:
        wait_for(lambda: all(one["master"] is None for one in http.get("/v1/cluster").json()["shards"]), "no master")
        assert said in json.dumps(http.get("/v1/cluster").json()["nodes"])
    assert {*Counter(site.orders(production)).values()} <= {1}
    for shard in range(shards):
        done = run("shard", "recover", shard, "--data", production.processes[0].data, "--accept-loss")
        assert done.returncode == 0, done.stderr
    wait_for(
        lambda: {*production.sent} & {*site.orders(production)} >= _orders(production), "all of it, once recovered"
    )
    site.goes_on(production)


def _orders(duemq: Duemq) -> set[str]:
    return {text for text in duemq.sent if " orders" in text}


def test_a_cluster_of_another_name_from_before_prefixes_goes_on_with_its_topics(tmp_path: Path) -> None:
    need_servers()
    with ExitStack() as stack:
        site = Site(tmp_path, stack)
        zookeeper = KazooClient(site.servers.zookeeper.hosts)
        zookeeper.start()
        stack.callback(zookeeper.stop)
        secret = base64.b64encode(b"s" * 16).decode()
        before = {"format": 1, "cluster": "0123456789abcdef", "shards": 2, "secret": secret}
        zookeeper.create("/duemq/staging/meta", json.dumps(before).encode(), makepath=True)
        legacy = Duemq("staging", site.staging.processes[:2])
        for _ in range(2):
            legacy.start()
            site.goes_on(legacy)
            legacy.stop()
        topics = site.topics()
        assert {"duemq.buffer", "duemq.ledger"} <= topics and not any("duemq.staging" in name for name in topics)
        now = json.loads(zookeeper.get("/duemq/staging/meta")[0])
        assert now.items() >= before.items(), "an older version can still read it"
        assert {*now["topics"]} == {"duemq.buffer", "duemq.ledger"}
        # A new cluster beside it has topics of its own.
        beside = Duemq("duemq2", [site.process("node", "duemq2", stack, cluster="duemq2")])
        beside.start()
        assert "duemq.duemq2.buffer" in site.topics()
