"""What a real RocketMQ makes of messages, and what becomes of them when it is killed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from duemq.relay.base import Result
from tests.support.outlets.site import out_message
from tests.support.patience import SERVERS_S

if TYPE_CHECKING:
    from duemq.relay.rocketmq.outlet import RocketMqOutlet
    from tests.support.rocketmq.server import RocketMQServer

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def opened(server: RocketMQServer, **options: Any) -> AsyncIterator[RocketMqOutlet]:
    from tests.support.outlets.rocketmq_site import rocketmq_outlet  # gRPC and the client: over a second

    outlet = rocketmq_outlet(server.endpoint, **options)
    try:
        yield outlet
    finally:
        await outlet.close()


async def test_a_kill_of_the_broker_loses_nothing(rocketmq: RocketMQServer) -> None:
    total = 2_000
    await asyncio.to_thread(rocketmq.create_topic, "killed-outlet")
    doubtful: set[int] = set()
    done = 0
    async with opened(rocketmq, topic="killed-outlet") as outlet:
        numbers = iter(range(total))

        async def work() -> None:
            nonlocal done
            for number in numbers:
                message = out_message(number, payload=b"%d" % number, key=b"key-%d" % number)
                while (await outlet.send(message)).result is not Result.ACCEPTED:
                    doubtful.add(number)
                    await asyncio.sleep(0.2)
                done += 1

        working = asyncio.gather(*(work() for _ in range(outlet.concurrency)))
        while done < total // 3:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert not doubtful
        await asyncio.to_thread(rocketmq.kill)
        assert done < total
        await asyncio.to_thread(rocketmq.start)
        async with asyncio.timeout(SERVERS_S):
            await working
    assert len(doubtful) <= outlet.concurrency
    stored = await asyncio.to_thread(rocketmq.stored, "killed-outlet")
    arrived = Counter(int(one.body) for one in stored)
    assert set(arrived) == set(range(total))
    assert {number for number, times in arrived.items() if times > 1} <= doubtful
    for one in stored:  # by which a consumer knows a repeat
        id_ = out_message(int(one.body)).id
        assert one.message_id.startswith(f"{id_}:") and one.properties["duemq-id"] == id_
        assert one.keys == {id_, f"key-{int(one.body)}"}


async def test_what_it_answers(rocketmq: RocketMQServer) -> None:
    async with opened(rocketmq, topic="nowhere") as outlet:
        reply = await outlet.send(out_message(1))
        assert (reply.result, reply.status) == (Result.FAILED, "TOPIC_NOT_FOUND")
        await asyncio.to_thread(rocketmq.create_topic, "nowhere")
        assert (await outlet.send(out_message(1))).result is Result.ACCEPTED
        reply = await outlet.send(out_message(1, payload=b"x" * ((4 << 20) + 1)))
        assert (reply.result, reply.status) == (Result.REJECTED, "MESSAGE_BODY_TOO_LARGE")
        reply = await outlet.send(out_message(1, headers=[("h", b"x" * 16_384)]))
        assert (reply.result, reply.status) == (Result.REJECTED, "MESSAGE_PROPERTIES_TOO_LARGE")
        many = [(f"h{number}", b"\xff") for number in range(300)]
        assert (await outlet.send(out_message(1, headers=many, key=b"\xff"))).result is Result.ACCEPTED
    async with opened(rocketmq, topic="nowhere", fifo=True) as outlet:
        reply = await outlet.send(out_message(1))
        assert (reply.result, reply.status) == (Result.FAILED, "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE")


async def test_messages_that_it_refuses_take_no_others_with_them(rocketmq: RocketMQServer) -> None:
    await asyncio.to_thread(rocketmq.create_topic, "refused")
    messages = [out_message(number, payload=b"%d" % number, key=b"key-%d" % number) for number in range(300)]
    messages[10] = out_message(10, payload=b"x" * ((4 << 20) + 1))
    messages[150] = out_message(150, headers=[("h", b"x" * 16_384)])
    async with opened(rocketmq, topic="refused", tag="paid") as outlet:
        replies = await asyncio.gather(*map(outlet.send, messages))
    assert (replies[10].result, replies[10].status) == (Result.REJECTED, "MESSAGE_BODY_TOO_LARGE")
    assert (replies[150].result, replies[150].status) == (Result.REJECTED, "MESSAGE_PROPERTIES_TOO_LARGE")
    assert sum(reply.result is Result.ACCEPTED for reply in replies) == 298
    stored = await asyncio.to_thread(rocketmq.stored, "refused")
    assert sorted(int(one.body) for one in stored) == [n for n in range(300) if n not in (10, 150)]
    for one in stored:
        id_ = messages[int(one.body)].id
        assert one.message_id.startswith(f"{id_}:") and one.properties["duemq-id"] == id_
        assert one.keys == {id_, f"key-{int(one.body)}"}
        assert one.tag == "paid"


async def test_a_broker_that_takes_nothing(rocketmq: RocketMQServer) -> None:
    await asyncio.to_thread(rocketmq.create_topic, "taken")
    async with opened(rocketmq, topic="taken") as outlet:
        assert (await outlet.send(out_message(0))).result is Result.ACCEPTED
        with rocketmq.full_disk():
            replies = await asyncio.gather(*(outlet.send(out_message(number)) for number in range(1, 20)))
        assert {(reply.result, reply.status) for reply in replies} == {(Result.AWAY, "INTERNAL_SERVER_ERROR")}
        replies = await asyncio.gather(*(outlet.send(out_message(number)) for number in range(1, 20)))
        assert {reply.result for reply in replies} == {Result.ACCEPTED}
        await asyncio.to_thread(rocketmq.make_read_only, "taken")
        async with asyncio.timeout(SERVERS_S):  # the proxy asks for routes from time to time
            while (reply := await outlet.send(out_message(0))).result is Result.ACCEPTED:  # noqa: ASYNC110
                await asyncio.sleep(0.5)
        assert (reply.result, reply.status) == (Result.AWAY, "FORBIDDEN")
    stored = Counter(one.message_id for one in await asyncio.to_thread(rocketmq.stored, "taken"))
    stored.pop(out_message(0).identity)
    assert stored == {out_message(number).identity: 1 for number in range(1, 20)}


async def test_a_key_is_a_message_group(rocketmq: RocketMQServer) -> None:
    await asyncio.to_thread(rocketmq.create_topic, "groups", kind="FIFO")
    keys = [None, b"", b" ", b"plain", b"\xff", b"x" * 63, b"x" * 64]
    async with opened(rocketmq, topic="groups", fifo=True, tag="paid") as outlet:
        for _ in range(3):
            for number, key in enumerate(keys):
                assert (await outlet.send(out_message(number, key=key))).result is Result.ACCEPTED
    stored = await asyncio.to_thread(rocketmq.stored, "groups")
    assert len(stored) == 3 * len(keys)
    assert {one.tag for one in stored} == {"paid"}
    for number in range(len(keys)):
        assert len({one.queue for one in stored if one.message_id == out_message(number).identity}) == 1


async def test_it_goes_on_after_a_silence(rocketmq: RocketMQServer) -> None:
    await asyncio.to_thread(rocketmq.create_topic, "silent")
    async with opened(rocketmq, topic="silent", timeout=4_000) as outlet:
        assert (await outlet.send(out_message(0))).result is Result.ACCEPTED
        rocketmq.pause()
        try:
            reply = await outlet.send(out_message(1))
        finally:
            rocketmq.resume()
        assert (reply.result, reply.status, reply.overloaded) == (Result.FAILED, "DEADLINE_EXCEEDED", True)
        async with asyncio.timeout(SERVERS_S):
            while (await outlet.send(out_message(1))).result is not Result.ACCEPTED:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    stored = await asyncio.to_thread(rocketmq.stored, "silent")
    assert {one.message_id for one in stored} == {out_message(0).identity, out_message(1).identity}


def test_the_client_writes_no_log_file(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = "import duemq.relay.rocketmq.outlet"
    subprocess.run([sys.executable, "-P", "-W", "error", "-c", code], check=True, env={"HOME": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []
