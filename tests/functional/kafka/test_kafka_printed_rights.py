"""The rights that `duemq kafka-acls` prints are enough, on brokers that allow nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from duemq.bus.base import Bus, wall_clock
from duemq.bus.kafka.bus import KafkaBus
from duemq.bus.kafka.inspection import Inspection
from duemq.bus.kafka.named_bus import NamedBus
from duemq.bus.kafka.options import KafkaOptions
from duemq.cluster.topics.internal_topics import ADMIN, BUFFER, JOBS, LEDGER, RELAYS, TRAIL, create_logs
from duemq.dev.kafka.kafka import KafkaServers
from duemq.model.messages.names import consumer_cursor
from duemq.model.topics.topic_names import OWN, TopicNames, prefix_of
from tests.functional.kafka.kafka_bus import frames, secure, values
from tests.support.servers.kafka_rights import AUTHORIZER, allow
from tests.support.servers.printed_rights import printed_rights
from tests.support.servers.real_servers import need_servers

DEAD = "dlq.destination.shop"
pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("connections_are_closed")]


async def test_the_printed_rights_are_enough(tmp_path: Path) -> None:
    need_servers()
    extra = AUTHORIZER | {"allow.everyone.if.no.acl.found": "false"}
    with KafkaServers(tmp_path / "kafka", secure=True, extra=extra) as servers:
        for cluster in ("staging", "duemq"):  # the rights of the second one reach to topics of the first
            lines = printed_rights(tmp_path, "--set", f"cluster={cluster}", "--topic", "orders", "--topic", "mails.*")
            allow(servers.bootstrap, servers.plain.name, lines)
            names = TopicNames(prefix_of(cluster))
            await use_all_rights(replace(secure(servers, "PLAIN"), cluster=cluster, names=names), f"mails.{cluster}")


async def use_all_rights(options: KafkaOptions, topic: str) -> None:
    bus: Bus = await KafkaBus.open(options, abandoned=["import"])
    if options.names.prefix != OWN:
        bus = NamedBus(bus, options.names)
    try:
        await create_logs(bus, 2)
        await bus.create_log(RELAYS, 1)
        for made in (topic, "destination.shop", "retry.destination.shop", DEAD):
            await bus.create_topic(made, 1)
        committer = await bus.committer("shard-0", lambda: {topic})
        await committer.commit({(LEDGER, 0): frames("entry"), (topic, 0): frames("message")})
        await committer.close()
        own = (BUFFER, ADMIN, JOBS, TRAIL, RELAYS)
        await bus.append({(name, 0): frames("record") for name in (*own, "destination.shop", DEAD)})
        assert await values(bus, topic) == ["message"]
        for name in (LEDGER, ADMIN, JOBS, TRAIL, DEAD):
            await bus.trim(name, 0, 1)
            assert await bus.start_offset(name, 0) == 1
        await bus.trim_older_than(RELAYS, wall_clock() + 60_000)
        await bus.set_consumer_cursor(topic, consumer_cursor("reader"), b"cursor")
        assert await bus.get_consumer_cursor(topic, consumer_cursor("reader")) == b"cursor"
        assert abs(await bus.clock_offset_ms()) < 60_000
        assert bus.misfits() == {}
    finally:
        await bus.close()
    inspection = await Inspection.open(options, wall_clock)
    assert await inspection.max_transaction_ms() == 60_000
    assert await inspection.misfit(options.names.on_brokers(BUFFER), expires=True) is None
    await inspection.close()
