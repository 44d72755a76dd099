"""Requests that reach the broker after their client gave them up: they must not touch what came later.

`python -m tests.chaos.delayed` plays many of them at random.
"""

from __future__ import annotations

import secrets
from dataclasses import replace

import pytest

from duemq.bus.kafka.bus import KafkaBus
from duemq.dev.kafka.kafka import KafkaServers
from tests.chaos.delayed.holds import Api, Hold
from tests.chaos.delayed.proxy import Proxy
from tests.chaos.topics import make_topic
from tests.functional.kafka.kafka_bus import deliver, options, own_log, values

pytestmark = [pytest.mark.anyio, pytest.mark.smoke]

_SMALL = {"max.message.bytes": "1300"}  # two messages a batch: a transaction has several requests
_REQUEST_MS = 2_000


def messages(number: int) -> list[str]:
    return [f"{number}.{each} " + "x" * 400 for each in range(6)]


@pytest.mark.parametrize(
    ("transactions", "after"), [("v1", Api.ADD_PARTITIONS), ("v1", Api.PRODUCE), ("auto", Api.PRODUCE)]
)
@pytest.mark.parametrize("cut_s", [0.0, None], ids=["connection closed", "timed out"])
async def test_a_late_commit_does_not_end_the_next_transaction(
    kafka: KafkaServers, two: tuple[KafkaBus, KafkaBus], transactions: str, cut_s: float | None, after: Api
) -> None:
    """KIP-890: a producer that sends its EndTxn again in the same epoch is at the mercy of the first one."""
    reading = two[1]
    topic = f"topic-{secrets.token_hex(4)}"
    await make_topic(kafka.bootstrap, topic, 1, settings=_SMALL)
    async with Proxy(int(kafka.bootstrap.rpartition(":")[2])) as proxy:
        near = replace(options(await proxy.open_door(), transactions=transactions), request_timeout_ms=_REQUEST_MS)
        bus = await KafkaBus.open(near)
        try:
            ledger = await own_log(bus)
            await reading.create_log(ledger, 1)
            committer = await deliver(bus, ledger, topic, 0, messages(0))
            held_s = 0.3 if cut_s is not None else _REQUEST_MS / 1_000 + 0.5
            hold = Hold(Api.END_TXN, f"duemq-{near.cluster}-shard-0".encode(), held_s, cut_s=cut_s, after=after)
            proxy.hold([hold])
            committer = await deliver(bus, ledger, topic, 1, messages(1), committer)
            await hold.armed.wait()
            for number in (2, 3):
                committer = await deliver(bus, ledger, topic, number, messages(number), committer)
            await hold.ended.wait()
            assert hold.met and hold.code, "the late request was carried out, in the midst of another transaction"
            assert await values(reading, ledger) == [f"entry {number}" for number in range(4)]
            assert await values(reading, topic) == [message for number in range(4) for message in messages(number)]
        finally:
            await bus.close()
