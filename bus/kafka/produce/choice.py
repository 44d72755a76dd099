"""Chooses the transaction protocol of a committer when it opens (ADR 35)."""

from __future__ import annotations

from aiokafka import errors

from duemq.bus.kafka.options import KafkaOptions
from duemq.bus.kafka.produce.producer import Producer, ProducerSetup
from duemq.bus.kafka.produce.v1.producer import ProducerV1
from duemq.bus.kafka.produce.v2.producer import ProducerV2
from duemq.bus.kafka.requests.api_versions import ApiVersionsRequest, finalized_level, offers
from duemq.bus.kafka.requests.transaction_requests import VERSIONS
from duemq.bus.kafka.requests.wire import Wire
from duemq.model.errors import LogFailed

_FEATURE, _LEVEL = "transaction.version", 2


async def uses_v2(options: KafkaOptions, wire: Wire) -> bool:
    """Whether the cluster uses transactions of version 2 and `options` allow them. Raises LogFailed."""
    if options.transactions == "v1":
        return False
    try:
        answer = await wire.ask_any(ApiVersionsRequest())
    except NotImplementedError:  # brokers before 3.9
        return False
    except LogFailed as error:
        if isinstance(error.__cause__, errors.IncompatibleBrokerVersion):
            return False
        raise
    in_use = finalized_level(answer, _FEATURE) >= _LEVEL
    return in_use and all(offers(answer, key, version) for key, version in VERSIONS.items())


def make_producer(setup: ProducerSetup, *, v2: bool) -> Producer:
    return ProducerV2(setup) if v2 else ProducerV1(setup)
