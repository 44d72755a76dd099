"""The RocketMQ that other tests stand on: it keeps what it acknowledged over kill -9, and shows it as it was sent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.support.patience import SERVERS_S
from tests.support.rocketmq.client import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    InternalErrorException,
    Message,
    Producer,
    SimpleConsumer,
)
from tests.support.rocketmq.server import RocketMQServer
from tests.support.rocketmq.stored import stored


@contextmanager
def running(client: Producer | SimpleConsumer) -> Iterator[None]:
    client.startup()
    try:
        yield
    finally:
        client.shutdown()


def send(server: RocketMQServer, topic: str, bodies: list[bytes]) -> list[str]:
    """The message ids that it acknowledged."""
    producer = Producer(ClientConfiguration(server.endpoint, Credentials(), request_timeout=30), (topic,))
    with running(producer):
        return [producer.send(message(topic, body)).message_id for body in bodies]


def message(topic: str, body: bytes) -> Message:
    one = Message()
    one.topic, one.body, one.tag = topic, body, "paid"
    one.keys = "id-1"
    one.keys = "order-7"
    one.add_property("trace parent", "ü {a=b}, c")
    return one


def consume(server: RocketMQServer, topic: str, count: int) -> list[Message]:
    """Receive and acknowledge so many."""
    server.create_group("tests")
    consumer = SimpleConsumer(
        ClientConfiguration(server.endpoint, Credentials()), "tests", {topic: FilterExpression()}, await_duration=2
    )
    found: list[Message] = []
    deadline = time.monotonic() + SERVERS_S
    with running(consumer):
        while len(found) < count and time.monotonic() < deadline:
            with suppress(InternalErrorException):  # until the proxy has the settings, which the client sends apart
                for one in consumer.receive(32, 60):
                    consumer.ack(one)
                    found.append(one)
    return found


@pytest.mark.smoke
def test_a_killed_broker_comes_back_with_what_it_acknowledged(rocketmq: RocketMQServer) -> None:
    rocketmq.create_topic("killed")
    before = [bytes(range(256)), *(b"%d" % number for number in range(200))]
    ids = send(rocketmq, "killed", before)
    rocketmq.kill()
    assert not rocketmq.serves("killed")
    rocketmq.start()
    ids += send(rocketmq, "killed", [b"after"])

    kept = rocketmq.stored("killed")
    assert rocketmq.count("killed") == len(kept)
    assert sorted((one.message_id, one.body) for one in kept) == sorted(zip(ids, [*before, b"after"], strict=True))
    for one in kept:
        assert one.tag == "paid"
        assert one.keys == {"id-1", "order-7"}
        assert one.properties["trace parent"] == "ü {a=b}, c"

    consumed = consume(rocketmq, "killed", len(kept))
    assert sorted(one.body for one in consumed) == sorted([*before, b"after"])
    for one in consumed:
        assert one.tag == "paid"
        assert one.keys == {"id-1", "order-7"}
        assert one.properties["trace parent"] == "ü {a=b}, c"


def test_what_mqadmin_prints_of_other_things_is_no_message() -> None:
    printed = (
        "MSGID: A1 MessageExt [brokerName=broker, queueId=3, storeSize=9, queueOffset=12, sysFlag=0, "
        "toString()=Message{topic='t', flag=0, properties={UNIQ_KEY=A1, a b={c=d}, KEYS=x y}, body=[-1, 0, 127], "
        "transactionId='null'}] BODY: NOT PRINT BODY"
    )
    (one,) = stored(["minOffset=0, maxOffset=2, MessageQueue [topic=t, brokerName=broker, queueId=1]", printed, "---"])
    assert (one.message_id, one.queue, one.offset, one.body) == ("A1", 3, 12, b"\xff\x00\x7f")
    assert one.properties == {"UNIQ_KEY": "A1", "a b": "{c=d}", "KEYS": "x y"}
    assert one.keys == {"x", "y"}
    assert one.tag is None
