"""Headers, keys and payloads go through a real broker, and a client that is not ours reads them there."""

from __future__ import annotations

import asyncio
from typing import Any

import aio_pika
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duemq.relay.base import Result
from tests.support.destinations.rabbitmq_node import RabbitMQNode
from tests.support.outlets.rabbitmq_site import rabbitmq_outlet
from tests.support.outlets.site import out_message

_QUEUE = "headers"
_TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
_NOT_MAPPED = ("x-delay", "delay", "content-type", "content-encoding")  # times of duemq's own, and properties
# aio-pika cuts names off at 128 bytes when it writes them, not when it reads them.
_NAMES = (_TEXT | st.sampled_from(["a", "b", "CC", "BCC", "x-death", "x-stream-filter-value", "n" * 255])).filter(
    lambda name: not name.startswith(("duemq-", "x-duemq-")) and name.lower() not in _NOT_MAPPED
)
_VALUES = st.binary(max_size=60) | _TEXT.map(str.encode)
_MESSAGES = st.lists(
    st.tuples(st.binary(max_size=300), st.none() | _VALUES, st.lists(st.tuples(_NAMES, _VALUES), max_size=8)),
    min_size=1, max_size=20,
)  # fmt: skip


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sent=_MESSAGES)
def test_they_arrive_byte_for_byte(rabbitmq: RabbitMQNode, sent: list[Any]) -> None:
    arrived = asyncio.run(_through(rabbitmq, sent))
    assert len(arrived) == len(sent)
    for (body, key, headers), message in zip(sent, arrived, strict=True):
        assert message.body == body
        table = dict(message.headers)
        id_ = table.pop("duemq-id")
        assert isinstance(id_, str) and str(message.message_id).startswith(f"{id_}:")
        assert table.pop("duemq-due") == 1_795_000_000_000
        assert _bytes(table.pop("duemq-key", None)) == key
        expected: dict[str, Any] = {}
        for name, value in headers:
            expected.setdefault(f"duemq-{name}" if name in ("CC", "BCC") else name, []).append(value)
        found = {
            name: list(map(_bytes, value if isinstance(value, list) else [value])) for name, value in table.items()
        }
        assert found == expected
        assert list(found) == list(expected)


async def _through(node: RabbitMQNode, sent: list[Any]) -> list[aio_pika.abc.AbstractIncomingMessage]:
    async with await aio_pika.connect(node.url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(_QUEUE, durable=True)
        await queue.purge()
        outlet = rabbitmq_outlet(node.url, routing_key=_QUEUE)
        replies = await asyncio.gather(
            *(
                outlet.send(out_message(number, payload=body, key=key, headers=headers))
                for number, (body, key, headers) in enumerate(sent)
            )
        )
        await outlet.close()
        assert {reply.result for reply in replies} == {Result.ACCEPTED}
        return [await queue.get(no_ack=True) for _ in sent]


def _bytes(value: Any) -> bytes | None:
    return value if value is None else value.encode() if isinstance(value, str) else bytes(value)
