"""What the tests of the Kafka plug share: names of their own, and reading to the end."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.record.util import calc_crc32c

from duemq.bus.base import Bus, Committer
from duemq.bus.kafka.bus import KafkaBus
from duemq.bus.kafka.options import TRANSACTIONS, KafkaOptions
from duemq.dev.kafka.kafka import KafkaServers
from duemq.model.errors import Fenced, Unavailable
from duemq.model.messages.record import pack_record, unpack_record
from tests.support.patience import SERVERS_S


def frames(*texts: str) -> list[bytes]:
    return [pack_record(None, (), text.encode()) for text in texts]


@pytest.fixture(params=TRANSACTIONS)
def both_protocols(request: pytest.FixtureRequest) -> str:
    """For a module whose tests run with both: `transactions = both_protocols`."""
    transactions: str = request.param
    return transactions


def options(bootstrap: str, cluster: str | None = None, transactions: str = "auto") -> KafkaOptions:
    return KafkaOptions(bootstrap, cluster=cluster or secrets.token_hex(4), transactions=transactions)


async def own_log(bus: KafkaBus, partitions: int = 1) -> str:
    return (await bus.create_log(f"log-{secrets.token_hex(4)}", partitions)).name


async def new_topic(bus: KafkaBus, partitions: int = 1) -> str:
    return (await bus.create_topic(f"topic-{secrets.token_hex(4)}", partitions)).name


async def deliver(
    bus: KafkaBus, ledger: str, topic: str, number: int, messages: Sequence[str], committer: Committer | None = None
) -> Committer:
    """Commit an entry of this number and its messages, as a master does: after a failure a new committer looks whether
    the ledger has the entry. The committer to go on with."""
    async with asyncio.timeout(SERVERS_S):
        while True:
            try:
                committer = committer or await bus.committer("shard-0")
                if f"entry {number}" not in await values(bus, ledger):
                    await committer.commit({(ledger, 0): frames(f"entry {number}"), (topic, 0): frames(*messages)})
                return committer
            except (Fenced, Unavailable):
                committer = None


async def values(bus: Bus, topic: str, partition: int = 0, start: int = 0) -> list[str]:
    """The payloads from `start` to the end as it is now, read as a shard reads its own logs."""
    end = await bus.end_offset(topic, partition)
    subscription = bus.subscribe(topic, partition)
    found: list[str] = []
    async with asyncio.timeout(SERVERS_S):
        while True:
            whole = bus.reach(topic, partition) >= end
            records = await bus.read(topic, partition, start, 1_000)
            found += [unpack_record(record.frame).payload.decode() for record in records]
            start = records[-1].offset + 1 if records else start
            if not records and whole:
                break
            if not records:
                await subscription.wait(1)
    subscription.close()
    return found


def secure(servers: KafkaServers, mechanism: str, password: str | None = None) -> KafkaOptions:
    user = servers.plain if mechanism == "PLAIN" else servers.scram
    return KafkaOptions(
        servers.secure_bootstrap, protocol="SASL_SSL", mechanism=mechanism, user=user.name,
        password=password or user.password, ca=str(servers.ca_file),
    )  # fmt: skip


def batch_with_a_bad_name(producer: AIOKafkaProducer, more: Sequence[tuple[str, bytes | None]] = ()) -> Any:
    """Records `one`, `two` and `three`; a header name of the second is not UTF-8, which aiokafka would not write."""
    batch = producer.create_batch()
    for name, value in (("good", b"one"), ("NAME", b"two"), ("good", b"three")):
        batch.append(timestamp=None, key=None, value=value, headers=[(name, b"1"), *more])
    raw = batch._builder.build()
    at = raw.index(b"NAME")
    raw[at : at + 4] = b"a\xff\xfez"
    raw[17:21] = calc_crc32c(raw[21:]).to_bytes(4, "big")
    batch._buffer = raw
    batch.close()
    return batch
