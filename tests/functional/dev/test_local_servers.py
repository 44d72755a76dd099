"""The servers that other tests stand on: they serve, survive kill -9, and go on where they were."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from kazoo.client import KazooClient

from duemq.dev.kafka.kafka import KafkaServers
from duemq.dev.kafka.kafka_security import KafkaUser
from duemq.dev.servers import jars
from duemq.dev.servers.errors import LocalError, NotAvailable
from duemq.dev.servers.process import Process
from duemq.dev.servers.zookeeper import ZooKeeperServers
from tests.support.patience import SERVERS_S
from tests.support.servers.real_servers import need_servers


async def create_topic(kafka: KafkaServers, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    try:
        answer = await admin.create_topics([NewTopic(topic, 1, len(kafka.numbers))])
        assert [error[1] for error in answer.topic_errors] == [0], answer
    finally:
        await admin.close()


async def send(bootstrap: str, topic: str, value: bytes, **security: object) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", **security) as producer:
        await producer.send_and_wait(topic, value)


async def values(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        return [(await asyncio.wait_for(consumer.getone(), SERVERS_S)).value for _ in range(count)]
    finally:
        await consumer.stop()


@pytest.mark.slow
def test_a_killed_broker_comes_back_with_its_records(tmp_path: Path) -> None:
    need_servers()
    with KafkaServers(tmp_path) as kafka:
        asyncio.run(create_topic(kafka, "t"))
        asyncio.run(send(kafka.bootstrap, "t", b"before"))
        kafka.kill(1)
        assert kafka.sees(1) == frozenset()
        kafka.start(1)
        asyncio.run(send(kafka.bootstrap, "t", b"after"))
        assert asyncio.run(values(kafka.bootstrap, "t", 2)) == [b"before", b"after"]


@pytest.mark.slow
def test_three_brokers_go_on_with_two(tmp_path: Path) -> None:
    need_servers()
    with KafkaServers(tmp_path, 3) as kafka:
        asyncio.run(create_topic(kafka, "t"))
        kafka.kill(1)
        asyncio.run(send(kafka.bootstrap, "t", b"with two"))
        kafka.start(1)
        kafka.wait_until_whole()
        assert asyncio.run(values(kafka.bootstrap, "t", 1)) == [b"with two"]


class Stuck:
    """A broker that waits for a controller that is gone, until it is killed."""

    within_s = 0.0

    def resume(self) -> None: ...
    def terminate(self) -> None: ...
    def stop(self, within_s: float = 60.0) -> None:
        self.within_s = within_s
        raise LocalError("waited for kafka-1 to end")


def test_a_broker_left_without_a_controller_does_not_keep_the_others_from_ending(tmp_path: Path) -> None:
    servers = KafkaServers(tmp_path / "kafka", 3)
    stuck: Any = {number: Stuck() for number in servers.numbers}
    servers.processes = stuck
    servers.stop()
    assert all(0 < each.within_s < 60 for each in stuck.values())
    with pytest.raises(LocalError):
        servers.stop(1)


@pytest.mark.parametrize(
    ("mechanism", "user"),
    [("PLAIN", KafkaServers.plain), ("SCRAM-SHA-256", KafkaServers.scram), ("SCRAM-SHA-512", KafkaServers.scram)],
)
def test_the_secure_listener_lets_its_users_in(kafka_secure: KafkaServers, mechanism: str, user: KafkaUser) -> None:
    topic = f"secure-{mechanism}"
    asyncio.run(create_topic(kafka_secure, topic))
    asyncio.run(
        send(
            kafka_secure.secure_bootstrap,
            topic,
            b"hello",
            security_protocol="SASL_SSL",
            ssl_context=ssl.create_default_context(cafile=str(kafka_secure.ca_file)),
            sasl_mechanism=mechanism,
            sasl_plain_username=user.name,
            sasl_plain_password=user.password,
        )
    )
    assert asyncio.run(values(kafka_secure.bootstrap, topic, 1)) == [b"hello"]


def test_zookeeper_keeps_what_it_is_given(zookeeper: ZooKeeperServers) -> None:
    client = KazooClient(zookeeper.hosts)
    client.start()
    try:
        client.create("/local-servers", b"value")
        assert client.get("/local-servers")[0] == b"value"
    finally:
        client.stop()
        client.close()


@pytest.mark.slow
def test_another_zookeeper_leads_when_the_leader_is_killed(tmp_path: Path) -> None:
    need_servers()
    with ZooKeeperServers(tmp_path, 3) as zookeeper:
        killed = zookeeper.wait_for_leader()
        zookeeper.kill(killed)
        assert zookeeper.wait_for_leader() != killed
        zookeeper.start(killed)
        assert zookeeper.mode(killed) == "follower"


def test_a_server_that_ends_is_reported_with_its_last_words(tmp_path: Path) -> None:
    process = Process("fleeting", ["sh", "-c", "echo the disk is full; exit 3"], tmp_path / "log")
    process.start()
    with pytest.raises(LocalError, match=r"fleeting ended with exit code 3:\nthe disk is full"):
        process.until(lambda: False, 300)


def test_a_jar_that_is_not_the_pinned_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = hashlib.sha256(b"wrong").hexdigest()

    def fetch(folder: Path, wanted: tuple[jars.Jar, ...]) -> None:
        for jar in wanted:
            (folder / jar.file_name).write_bytes(b"wrong")

    monkeypatch.setattr(jars, "_by_maven", fetch)
    monkeypatch.setattr(jars, "_by_jgo", fetch)
    with pytest.raises(NotAvailable, match=f"is not the pinned one: its SHA-256 is {wrong}"):
        jars.jars(tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
