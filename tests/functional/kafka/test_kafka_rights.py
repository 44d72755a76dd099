"""What brokers with an authorizer do not let duemq's user do: each is that topic's own refusal, with its reason."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace

import pytest

from duemq.bus.base import WriteRefused
from duemq.bus.kafka.bus import KafkaBus
from duemq.dev.kafka.kafka import KafkaServers
from tests.functional.kafka.kafka_bus import both_protocols, frames, new_topic, own_log, secure, values
from tests.support.patience import SERVERS_S
from tests.support.servers.kafka_rights import FORBIDDEN, deny_creating, deny_writing

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("connections_are_closed")]

transactions = both_protocols


async def test_a_topic_that_may_not_be_made_is_refused_and_the_next_one_is_made(kafka_secure: KafkaServers) -> None:
    deny_creating(kafka_secure.bootstrap, kafka_secure.plain.name)
    bus = await KafkaBus.open(secure(kafka_secure, "PLAIN"))
    try:
        with pytest.raises(WriteRefused) as refused:
            await bus.create_topic(FORBIDDEN + secrets.token_hex(4), 1)
        assert refused.value.reason == "not_authorized"
        assert "allow duemq's user to create topics" in str(refused.value)
        topic = await new_topic(bus)
        await bus.append({(topic, 0): frames("taken")})
        assert await values(bus, topic) == ["taken"]
    finally:
        await bus.close()


async def test_a_topic_that_may_not_be_written_fails_its_commit_alone(
    kafka_secure: KafkaServers, transactions: str
) -> None:
    bus = await KafkaBus.open(replace(secure(kafka_secure, "PLAIN"), transactions=transactions))
    try:
        ledger, denied, good = await own_log(bus), await new_topic(bus), await new_topic(bus)
        deny_writing(kafka_secure.bootstrap, kafka_secure.plain.name, denied)
        committer = await bus.committer("shard-0")
        with pytest.raises(WriteRefused) as refused:
            async with asyncio.timeout(SERVERS_S):
                while True:  # the broker has answered before its authorizer knows
                    await committer.commit({(ledger, 0): frames("entry"), (denied, 0): frames("before")})
        before = len(await values(bus, ledger))
        assert (refused.value.topic, refused.value.reason) == (denied, "not_authorized")
        await committer.close()
        committer = await bus.committer("shard-0")
        await committer.commit({(good, 0): frames("yes"), (ledger, 0): frames("yes")})
        assert await values(bus, good) == ["yes"]
        assert await values(bus, ledger) == ["entry"] * before + ["yes"]
        assert await values(bus, denied) == ["before"] * before
        await committer.close()
    finally:
        await bus.close()
