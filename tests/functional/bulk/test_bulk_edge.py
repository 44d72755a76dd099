"""What an audit reads of a real Kafka: retention, open transactions, and shards that no node has ever led."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.structs import TopicPartition
from pyspark.sql import SparkSession

from duemq.bench.spark.audit import fill
from duemq.bus.kafka.record_batches import to_kafka
from duemq.dev.kafka.kafka import KafkaServers
from duemq.model.errors import Unavailable
from duemq.model.messages.message import Draft, schedule_frame
from duemq.pipeline.audit import sums
from duemq.pipeline.audit.job import audit
from duemq.pipeline.audit.read import MARGIN_MS, topic_ranges
from duemq.pipeline.audit.report import verdict
from duemq.pipeline.logs.kafka import configured
from duemq.pipeline.logs.ranges import Logs, Retention
from tests.support.consumer.consumer_site import new_topic, send
from tests.support.spark.spark_site import spark_tests

pytestmark = spark_tests

DAY = 86_400_000


async def make(bootstrap: str, name: str, **config: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        settings = {one.replace("_", "."): value for one, value in config.items()}
        await admin.create_topics([NewTopic(name, 2, 1, topic_configs=settings)])
    finally:
        await admin.close()


async def delete_all(bootstrap: str, topic: str, partition: int, end: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(topic, partition): RecordsToDelete(end)})
    finally:
        await admin.close()


def test_retention_is_what_the_topic_is_configured_for(kafka: KafkaServers) -> None:
    weekly = {"cleanup_policy": "delete", "retention_ms": str(7 * DAY), "retention_bytes": "123456"}
    asyncio.run(make(kafka.bootstrap, "edge-weekly", **weekly))
    asyncio.run(make(kafka.bootstrap, "edge-compact", cleanup_policy="compact"))
    asyncio.run(make(kafka.bootstrap, "edge-both", cleanup_policy="compact,delete", retention_ms="-1"))
    logs = Logs(kafka.bootstrap)
    assert logs.retention(["edge-weekly", "edge-compact", "edge-both"]) == {
        "edge-weekly": Retention(7 * DAY, 123_456), "edge-compact": Retention(compacts=True),
        "edge-both": Retention(compacts=True),
    }  # fmt: skip


def test_an_open_transaction_is_seen_and_waited_for(kafka: KafkaServers) -> None:
    topic = asyncio.run(new_topic(kafka.bootstrap))
    asyncio.run(send(kafka.bootstrap, topic, [b"1"], partition=0))
    logs = Logs(kafka.bootstrap)

    async def look() -> None:
        async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, transactional_id="edge") as producer:
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"2", partition=0)
            ends, still_open = await asyncio.to_thread(logs.settled_ends, [topic], 0.3)
            assert ends == {TopicPartition(topic, 0): 1} and still_open == [f"{topic} 0"]
            waiting = asyncio.create_task(asyncio.to_thread(logs.settled_ends, [topic], 60.0))
            await producer.commit_transaction()
            ends, still_open = await waiting
            assert ends[TopicPartition(topic, 0)] >= 2 and still_open == []  # perhaps with the mark of the commit

    asyncio.run(look())


async def schedule(bootstrap: str, shard: int, count: int) -> None:
    """Commands in a partition of the buffer that comes to be for them."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_partitions({"duemq.buffer": NewPartitions(shard + 1)})
    finally:
        await admin.close()
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for n in range(count):
            key, value, headers = to_kafka(schedule_frame(Draft("bench-orders", b"%d" % n), 2_000_000_000_000 + n))
            await producer.send_and_wait("duemq.buffer", value, key, partition=shard, headers=headers)


@pytest.fixture
def filled(own_kafka: KafkaServers) -> str:
    """A Kafka with a history of 4,000 messages of four shards."""
    fill(own_kafka.bootstrap, 4_000)
    return own_kafka.bootstrap


def test_a_shard_that_no_node_has_led_and_records_that_are_gone(
    spark: SparkSession, filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = audit(spark, filled, tmp_path)
    assert clean.clean and clean.unknown == 0 and clean.accepted == 4_000, (clean.violation_counts, clean.shown)
    assert verdict(clean) == "Every message is accounted for"
    asyncio.run(schedule(filled, 4, 50))
    waiting = audit(spark, filled, tmp_path)
    assert waiting.clean and waiting.account == clean.account and waiting.late == clean.late
    assert waiting.waiting == {4: 50} and waiting.others == {"not applied yet": 50} and waiting.unknown == 50
    assert verdict(waiting) == "No violation; 50 messages wait in 1 shard without a ledger entry in this range"
    assert any("shard 4: the ledger has no entry" in note for note in waiting.notes)
    monkeypatch.setattr(sums, "FEW", 0)
    every = audit(spark, filled, tmp_path)
    for name in ("account", "others", "waiting", "late", "violation_counts"):
        assert getattr(every, name) == getattr(waiting, name), name
    monkeypatch.undo()
    # Somebody deletes records: by the topic's configuration they would still be there.
    logs = Logs(filled)
    gone = logs.ranges(["bench-orders"])["bench-orders"]
    asyncio.run(delete_all(filled, "bench-orders", 0, gone.ends[0]))
    known_from = topic_ranges(logs, [], None, None).known_from
    first = min(logs.first_times(["bench-mails"]).values())
    assert known_from["bench-mails"] == -1 and 6 * DAY < first - known_from["bench-orders"] < 7 * DAY + MARGIN_MS
    lost = audit(spark, filled, tmp_path)
    of_file = every.account["delivered"] - lost.account["delivered"]
    assert lost.violation_counts == {"lost": of_file} and of_file > 500 and lost.account["lost"] == of_file


class OAuthKafka(KafkaServers):
    """A broker with one more listener, which wants a token. It takes unsigned ones, as Kafka's own examples have it."""

    _MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._token_ports = self._by_server(())

    @property
    def bootstrap_of_tokens(self) -> str:
        return f"127.0.0.1:{self._token_ports[1]}"

    @property
    def login(self) -> dict[str, str]:
        return {
            "kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "OAUTHBEARER",
            "kafka.sasl.jaas.config": f'{self._MODULE} unsecuredLoginStringClaim_sub="spark";',
        }  # fmt: skip

    def _settings(self, number: int) -> dict[str, str]:
        found = super()._settings(number)
        for name in ("listeners", "advertised.listeners"):
            found[name] += f",TOKEN://127.0.0.1:{self._token_ports[number]}"
        found["listener.security.protocol.map"] += ",TOKEN:SASL_PLAINTEXT"
        found["listener.name.token.sasl.enabled.mechanisms"] = "OAUTHBEARER"
        login = f'{self._MODULE} unsecuredLoginStringClaim_sub="broker";'
        return found | {"listener.name.token.oauthbearer.sasl.jaas.config": login}


def test_an_audit_of_a_kafka_that_wants_a_token(spark: SparkSession, tmp_path: Path) -> None:
    with OAuthKafka(tmp_path / "kafka") as servers:
        fill(servers.bootstrap, 400)
        kafka = configured(servers.bootstrap_of_tokens, servers.login, {})
        result = audit(spark, kafka, tmp_path / "audit")
        assert result.clean and result.accepted == 400 and result.unknown == 0
        with pytest.raises(Unavailable, match="does not answer"):
            Logs(servers.bootstrap_of_tokens).topics()
