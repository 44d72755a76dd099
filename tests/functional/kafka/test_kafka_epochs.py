"""Which protocol of transactions commits use on real brokers, and what becomes of it once all epochs were used."""

from __future__ import annotations

import pytest

from duemq.bus.kafka.bus import KafkaBus
from duemq.bus.kafka.produce.v1.producer import ProducerV1
from duemq.bus.kafka.produce.v2.producer import ProducerV2
from duemq.bus.kafka.produce.v2.sends import Epoch
from duemq.bus.kafka.requests.transaction_requests import InitProducerIdRequest
from duemq.dev.kafka.kafka import KafkaServers
from duemq.model.errors import Fenced
from tests.functional.kafka.kafka_bus import frames, new_topic, options, own_log, values

pytestmark = pytest.mark.anyio

LAST = 32_766  # the last one that brokers give to a client


@pytest.mark.smoke
@pytest.mark.parametrize(("transactions", "kind"), [("auto", ProducerV2), ("v1", ProducerV1)])
async def test_the_newest_protocol_of_the_cluster_is_used_unless_it_is_refused(
    kafka: KafkaServers, transactions: str, kind: type[object]
) -> None:
    bus = await KafkaBus.open(options(kafka.bootstrap, transactions=transactions))
    assert type((await bus.committer("shard-0")).producer) is kind
    await bus.close()


async def test_masters_of_both_protocols_take_over_from_each_other(kafka: KafkaServers) -> None:
    """As in an upgrade of a cluster, and after `kafka.transactions` was changed."""
    new = options(kafka.bootstrap)
    old = options(kafka.bootstrap, new.cluster, "v1")
    buses = [await KafkaBus.open(each) for each in (old, new)]
    ledger, topic = await own_log(buses[0]), await new_topic(buses[0])
    await buses[1].create_log(ledger, 1)
    before = None
    for number in range(6):
        committer = await buses[number % 2].committer("shard-0")
        for part in "ab":
            await committer.commit(dict.fromkeys(((ledger, 0), (topic, 0)), frames(f"{number}{part}")))
        if before is not None:
            with pytest.raises(Fenced):
                await before.commit({(ledger, 0): frames("never")})
        before = committer
    expected = [f"{number}{part}" for number in range(6) for part in "ab"]
    for bus in buses:
        assert await values(bus, ledger) == await values(bus, topic) == expected
        await bus.close()


@pytest.mark.slow
async def test_commits_go_on_when_all_epochs_of_a_producer_id_were_used(two: tuple[KafkaBus, KafkaBus]) -> None:
    """At 100 cycles a second that is every five minutes."""
    bus, other = two
    ledger, topic = await own_log(bus), await new_topic(bus, 2)
    await other.create_log(ledger, 1)
    committer = await bus.committer("shard-0")
    producer = committer.producer
    assert isinstance(producer, ProducerV2)
    request, epoch = InitProducerIdRequest(producer.transactional_id, 10_000), 0
    while epoch < LAST - 4:
        answer = await producer.client.send(producer.node, request)
        assert not answer.error_code
        epoch = answer.producer_epoch
    producer.epoch, first = Epoch(answer.producer_id, epoch), answer.producer_id
    seen = []
    for number in range(10):
        await committer.commit({(ledger, 0): frames(str(number)), (topic, number % 2): frames(str(number))})
        seen.append(tuple(producer.epoch))
    assert seen[:4] == [(first, LAST - 3 + number) for number in range(4)]
    assert seen[4:] == [(seen[4][0], number) for number in range(6)] and seen[4][0] != first
    newer = await other.committer("shard-0")
    with pytest.raises(Fenced):
        await committer.commit({(ledger, 0): frames("never")})
    await newer.commit({(ledger, 0): frames("10"), (topic, 0): frames("10")})
    assert await values(bus, ledger) == [str(number) for number in range(11)]
    assert await values(other, topic) == ["0", "2", "4", "6", "8", "10"]
    assert await values(other, topic, 1) == ["1", "3", "5", "7", "9"]
