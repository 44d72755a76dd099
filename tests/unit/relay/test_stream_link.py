"""What a broker of streams may do to a connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from aiokafka.structs import TopicPartition
from rstream import schema

from duemq.relay.base import Reply, Result
from duemq.relay.rabbitmq.stream.outlet import StreamOutlet
from tests.support.outlets.site import out_message
from tests.support.outlets.stream_broker import StreamBroker

pytestmark = pytest.mark.anyio
_PARTITION = TopicPartition("orders", 0)


@pytest.fixture
async def broker() -> AsyncIterator[StreamBroker]:
    async with StreamBroker() as broker:
        yield broker


@pytest.fixture
async def outlet(broker: StreamBroker) -> AsyncIterator[StreamOutlet]:
    outlet = broker.outlet()
    outlet.pulled(_PARTITION, "log", range(10), 0)
    yield outlet
    await outlet.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def outcome(reply: Reply) -> tuple[Result, str]:
    return reply.result, reply.status


async def test_the_leader_is_looked_up() -> None:
    async with StreamBroker() as leader, StreamBroker(leader=leader.port) as follower:
        outlet = follower.outlet()
        assert outcome(await outlet.send(out_message(1))) == (Result.ACCEPTED, "confirm")
        await outlet.close()
        assert (follower.published, len(leader.published)) == ([], 1)


async def test_where_the_leader_cannot_be_reached_nothing_is_written() -> None:
    async with StreamBroker(leader=1) as broker:
        outlet = broker.outlet()
        assert outcome(await outlet.send(out_message(1))) == (Result.AWAY, "unreachable")
        await outlet.close()
        assert broker.published == []


async def test_where_another_broker_answers_for_the_leader_nothing_is_written() -> None:
    async with StreamBroker() as one, StreamBroker() as other:
        one.leader, other.leader = other.port, one.port
        outlet = one.outlet()
        assert outcome(await outlet.send(out_message(1))) == (Result.AWAY, "leader")
        await outlet.close()
        assert one.published == other.published == []


@pytest.mark.parametrize(
    ("request_", "code", "status"),
    [
        (schema.SaslAuthenticate, 8, "AUTHENTICATION_FAILURE"), (schema.Open, 12, "VIRTUAL_HOST_ACCESS_FAILURE"),
        (schema.Metadata, 2, "STREAM_DOES_NOT_EXIST"), (schema.DeclarePublisher, 16, "ACCESS_REFUSED"),
        (schema.Metadata, 99, "99"),
    ],
)  # fmt: skip
async def test_what_it_refuses(
    broker: StreamBroker, outlet: StreamOutlet, request_: type[schema.Frame], code: int, status: str
) -> None:
    broker.codes[request_], broker.silent = code, True
    assert outcome(await outlet.send(out_message(0))) == (Result.AWAY, status)
    broker.codes.clear()
    broker.silent = False
    assert (await outlet.send(out_message(0))).result is Result.ACCEPTED


async def test_a_virtual_host_that_rstream_cannot_name(broker: StreamBroker) -> None:
    outlet = broker.outlet(virtual_host="%C3%BC")
    assert outcome(await outlet.send(out_message(0))) == (Result.AWAY, "VIRTUAL_HOST_ACCESS_FAILURE")
    assert broker.connections == 0


async def test_a_broker_that_answers_nothing_is_given_up(broker: StreamBroker) -> None:
    broker.deaf = True
    outlet = broker.outlet(timeout=200)
    assert outcome(await outlet.send(out_message(0))) == (Result.AWAY, "timeout")
    await outlet.close()
    await until(lambda: all(writer.is_closing() for writer in broker.writers))


async def test_a_message_that_it_refuses_ends_the_connection_and_is_written_again_first(
    broker: StreamBroker, outlet: StreamOutlet
) -> None:
    broker.silent = True
    sending = [asyncio.create_task(outlet.send(out_message(number))) for number in range(3)]
    await until(lambda: len(broker.published) == 3)
    publisher = broker.published[0][0]
    broker.say(schema.PublishError(publisher, [schema.PublishingError(1, 16)]))
    assert {outcome(reply) for reply in await asyncio.gather(*sending)} == {(Result.AWAY, "ACCESS_REFUSED")}
    broker.silent = False
    broker.published.clear()
    assert (await outlet.send(out_message(3))).result is Result.ACCEPTED
    assert [number for _, number in broker.published] == [0, 1, 2, 3]
    assert broker.connections == 2
    assert (await outlet.send(out_message(1))).result is Result.ACCEPTED
    assert len(broker.published) == 4, "it was stored when nobody waited for it"


@pytest.mark.parametrize(
    ("frame", "status"),
    [
        (schema.MetadataUpdate(schema.MetadataInfo(6, "orders")), "STREAM_NOT_AVAILABLE"),
        (schema.Close(1, 1, "closed by an operator"), "CONNECTION_CLOSED"),
    ],
)
async def test_what_ends_a_connection(
    broker: StreamBroker, outlet: StreamOutlet, frame: schema.Frame, status: str
) -> None:
    broker.silent = True
    sending = asyncio.create_task(outlet.send(out_message(0)))
    await until(lambda: broker.published)
    broker.say(frame)
    assert outcome(await sending) == (Result.AWAY, status)


async def test_a_silent_broker_is_away() -> None:
    async with StreamBroker(heartbeat_s=1) as broker:
        broker.silent = True
        outlet = broker.outlet()
        async with asyncio.timeout(30):
            assert outcome(await outlet.send(out_message(0))) == (Result.AWAY, "heartbeat")
        await outlet.close()


async def test_a_broker_that_confirms_nothing_is_away() -> None:
    async with StreamBroker() as broker:
        outlet = broker.outlet(timeout=2_000)
        await outlet.send(out_message(0))
        broker.silent = True
        async with asyncio.timeout(2.1):  # of the destination
            sending = asyncio.gather(*(outlet.send(out_message(number)) for number in (1, 2)))
            while not sending.done():
                broker.say(schema.Heartbeat())
                await asyncio.sleep(0.1)
        assert {outcome(reply) for reply in await sending} == {(Result.AWAY, "unconfirmed")}
        await outlet.close()


async def test_records_that_come_in_another_order_are_written_in_theirs(
    broker: StreamBroker, outlet: StreamOutlet
) -> None:
    await asyncio.gather(*(outlet.send(out_message(number)) for number in (2, 0, 1)))
    assert [number for _, number in broker.published] == [0, 1, 2]
    assert {publisher for publisher, _ in broker.published} == {0}


async def test_another_log_has_another_name_and_what_was_in_flight_keeps_its_own(
    broker: StreamBroker, outlet: StreamOutlet
) -> None:
    broker.silent = True
    sending = asyncio.create_task(outlet.send(out_message(0)))
    await until(lambda: broker.published)
    outlet.pulled(_PARTITION, "made anew", [0], 0)
    broker.say(schema.Close(1, 1, "closed"))
    assert (await sending).result is Result.AWAY
    broker.silent = False
    broker.names.clear()
    broker.published.clear()
    anew = out_message(100)
    anew.record.offset = 0
    assert (await outlet.send(anew)).result is Result.ACCEPTED
    assert broker.published == [(0, 0), (1, 0)]
    unnamed, former, name = broker.names
    assert unnamed == "" and former != name


async def test_behind_one_that_does_not_come_they_go_on_without_an_id(
    broker: StreamBroker, outlet: StreamOutlet
) -> None:
    async with asyncio.timeout(30):
        await asyncio.gather(*(outlet.send(out_message(number)) for number in (1, 2)))
    assert {publisher for publisher, _ in broker.published} == {255}
    for number in (1, 2):
        outlet.ended(out_message(number).record)
    await asyncio.gather(*(outlet.send(out_message(number)) for number in (0, 3)))
    assert broker.published[2:] == [(0, 0), (0, 3)]


async def test_one_that_gave_up_holds_up_nobody(broker: StreamBroker, outlet: StreamOutlet) -> None:
    """It waited for its turn, which came when it was gone."""
    await outlet.send(out_message(0))
    waiting = asyncio.create_task(outlet.send(out_message(2)))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(30):
        replies = await asyncio.gather(*(outlet.send(out_message(number)) for number in (3, 1)))
    assert {reply.result for reply in replies} == {Result.ACCEPTED}


async def test_frames_are_no_larger_than_the_broker_wants() -> None:
    async with StreamBroker(frame_bytes=8_192) as broker:
        outlet = broker.outlet()
        large = out_message(0, payload=b"x" * 8_000)
        assert outcome(await outlet.send(large)) == (Result.ACCEPTED, "confirm")
        assert outcome(await outlet.send(out_message(1, payload=b"x" * 8_192))) == (Result.REJECTED, "FRAME_TOO_LARGE")
        replies = await asyncio.gather(*(outlet.send(out_message(n, payload=b"x" * 3_000)) for n in range(2, 20)))
        assert {reply.result for reply in replies} == {Result.ACCEPTED}
        assert broker.largest_frame <= 8_192
        await outlet.close()
