"""What a request comes to when its broker does not answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.errors import RequestTimedOutError

from duemq.bus.kafka.client import mend_timeouts

CONNECTION = (1, ConnectionGroup.DEFAULT)


class Silent:
    """A connection to a broker that is frozen."""

    def __init__(self) -> None:
        self.answers: list[asyncio.Future[None]] = []
        self.closed = False

    def connected(self) -> bool:
        return not self.closed

    def send(self, request: Any, expect_response: bool) -> asyncio.Future[None]:
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]

    def close(self, reason: Any = None) -> None:
        self.closed = True


def test_each_request_of_a_connection_that_went_away_times_out() -> None:
    async def run() -> None:
        client: Any = AIOKafkaClient()
        mend_timeouts(client)
        silent = client._conns[CONNECTION] = Silent()
        first, second = (asyncio.create_task(client.send(1, None)) for _ in range(2))
        while len(silent.answers) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        silent.answers[0].set_exception(TimeoutError())
        with pytest.raises(RequestTimedOutError):
            await first
        assert silent.closed
        del client._conns[CONNECTION]  # a third request makes a new connection
        silent.answers[1].set_exception(TimeoutError())
        with pytest.raises(RequestTimedOutError):
            await second
        client._conns.clear()

    asyncio.run(run())
