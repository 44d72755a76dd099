"""A reader whose broker goes away and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from duemq.client.consumer.kafka.positions import metadata_of
from duemq.client.lag import LagReader
from duemq.dev.kafka.kafka import KafkaServers
from duemq.model.errors import Unavailable
from tests.functional.lag.lag_site import LagSite
from tests.support.consumer.consumer_site import new_group, new_topic, send, until
from tests.support.servers.real_servers import need_servers

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServers]:
    """A broker for this test alone, in place of the shared one."""
    need_servers()
    with KafkaServers(tmp_path_factory.mktemp("kafka-lag")) as servers:
        yield servers


async def test_the_reader_goes_on_after_the_broker_was_away(kafka: KafkaServers) -> None:
    topic, group = await new_topic(kafka.bootstrap, 3), new_group()
    await send(kafka.bootstrap, topic, [b"%d" % n for n in range(9)], partition=1)
    await LagSite(kafka.bootstrap).commit(group, {(topic, 1): (2, metadata_of(4))})
    async with LagReader(kafka.bootstrap, kafka={"request_timeout_ms": 1_500}) as reader:
        (before,) = await reader.read([group])
        assert (before.total.lag, before.total.inflight, before.total.unknown) == (7, 2, 2)
        kafka.kill()
        with pytest.raises(Unavailable):
            await reader.read([group])
        await asyncio.to_thread(kafka.start)

        async def again() -> bool:
            try:
                (found,) = await reader.read([group])
            except Unavailable:
                return False
            return (found.total.lag, found.total.inflight, found.total.unknown) == (7, 2, 2)

        await until(again, "the same figures as before")
