"""The rights that docs/cluster.md lists are enough, on brokers that allow nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from duemq.bus.base import wall_clock
from duemq.bus.kafka.bus import KafkaBus
from duemq.bus.kafka.topics.inspection import Inspection
from duemq.cluster.internal_topics import ADMIN, BUFFER, JOBS, LEDGER, RELAYS, TRAIL, create_logs
from duemq.dev.servers.kafka import KafkaServers
from duemq.model.names import consumer_cursor
from tests.functional.kafka.kafka_bus import frames, secure, values
from tests.support.servers.documented_rights import commands
from tests.support.servers.kafka_rights import AUTHORIZER, allow
from tests.support.servers.real_servers import need_servers

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("connections_are_closed")]


async def test_the_documented_rights_are_enough(tmp_path: Path) -> None:
    need_servers()
    extra = AUTHORIZER | {"allow.everyone.if.no.acl.found": "false"}
    with KafkaServers(tmp_path / "kafka", secure=True, extra=extra) as servers:
        allow(servers.bootstrap, servers.plain.name, commands())
        options = secure(servers, "PLAIN")
        bus = await KafkaBus.open(options, abandoned=["import"])
        try:
            await create_logs(bus, 2)
            await bus.create_log(RELAYS, 1)
            await bus.create_topic("orders", 1)
            committer = await bus.committer("shard-0", lambda: {"orders"})
            await committer.commit({(LEDGER, 0): frames("entry"), ("orders", 0): frames("message")})
            await committer.close()
            own = (BUFFER, ADMIN, JOBS, TRAIL, RELAYS)
            await bus.append({(topic, 0): frames("record") for topic in own})
            assert await values(bus, "orders") == ["message"]
            for topic in (LEDGER, ADMIN, JOBS, TRAIL):
                await bus.trim(topic, 0, 1)
                assert await bus.start_offset(topic, 0) == 1
            await bus.trim_older_than(RELAYS, wall_clock() + 60_000)
            await bus.set_consumer_cursor("orders", consumer_cursor("reader"), b"cursor")
            assert await bus.get_consumer_cursor("orders", consumer_cursor("reader")) == b"cursor"
            assert abs(await bus.clock_offset_ms()) < 60_000
            assert bus.misfits() == {}
        finally:
            await bus.close()
        inspection = await Inspection.open(options, wall_clock)
        assert await inspection.max_transaction_ms() == 60_000
        assert await inspection.misfit(BUFFER, expires=True) is None
        await inspection.close()
