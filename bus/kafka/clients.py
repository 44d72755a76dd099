"""Creates all aiokafka clients that duemq uses, with the fixes that they need.

None of these clients makes brokers create a topic by requesting it. A test finds any client that is created elsewhere.
The arguments are those of aiokafka's classes.
"""

from __future__ import annotations

from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient

from duemq.bus.kafka.aiokafka_internals import (
    client_of,
    make_no_topics,
    mend_leaders,
    mend_missing_offsets,
    mend_requests,
)


def new_client(**settings: Any) -> Any:
    """A client that is used only for requests."""
    return _mended(AIOKafkaClient(**settings))


def new_sending_client(**settings: Any) -> Any:
    """A client for the requests of a producer."""
    client = new_client(**settings)
    mend_leaders(client)
    return client


def new_producer(**settings: Any) -> Any:
    producer = AIOKafkaProducer(**settings)
    mend_leaders(_mended(producer.client))
    return producer


def new_consumer(**settings: Any) -> Any:
    consumer = AIOKafkaConsumer(**settings)
    mend_missing_offsets(_mended(client_of(consumer)))
    return consumer


def new_admin(**settings: Any) -> Any:
    admin = AIOKafkaAdminClient(**settings)
    mend_missing_offsets(_mended(client_of(admin)))
    return admin


def _mended(client: Any) -> Any:
    mend_requests(client)
    make_no_topics(client)
    return client
