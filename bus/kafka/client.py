"""A defect of aiokafka 0.14 that a frozen broker brings about, mended from outside."""

from __future__ import annotations

from typing import Any

from aiokafka.errors import RequestTimedOutError


def mend_timeouts(client: Any) -> None:
    """Have every request of an AIOKafkaClient that gets no answer raise RequestTimedOutError.

    When several requests time out on one connection, the first one closes it and the next request replaces it. The
    others then look for a connection that is not there, and `send` raises KeyError: that ends aiokafka's background
    tasks, and is no KafkaError to anybody.
    """
    send = client.send

    async def sending(node: int, request: Any, **options: Any) -> Any:
        try:
            return await send(node, request, **options)
        except KeyError as error:
            raise RequestTimedOutError from error

    client.send = sending
