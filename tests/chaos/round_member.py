"""One member of a group as a separate process, for rounds with a breakage.

    python -m tests.chaos.round_member BOOTSTRAP GROUP TOPIC FOLDER NAME [REDIS]

A message is `generation:number`. A line when a handler starts: `b`, time (ns), generation, number, attempt, due (ms). A
line when it has finished: `d`, time (ns), generation, number. Messages whose number ends in 7 fail twice. With a REDIS
each message is done once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from pathlib import Path

from duemq.client.consumer import Consumer, ConsumerOptions, Delays, Message
from duemq.client.consumer.consumer import Handler
from duemq.client.idempotency import RedisStore, once

MAX_IN_HAND = 500
DELAYS_S = (1, 2, *[2] * 14)
_WORK_S = 0.005


def fails(number: int) -> bool:
    return number % 10 == 7


async def main(bootstrap: str, group: str, topic: str, folder: str, name: str, redis: str = "") -> None:
    options = ConsumerOptions(
        session_s=2, stop_s=5, timeout_s=10, max_in_hand=MAX_IN_HAND, member=name,
        retry=Delays([f"{delay}s" for delay in DELAYS_S]), kafka={"metadata_max_age_ms": 1_000},
    )  # fmt: skip
    consumer = Consumer(group, bootstrap, options)
    log = os.open(Path(folder) / f"{name}-{time.time_ns()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def work(message: Message) -> None:
        generation, number = message.text.split(":")
        line = f"b {time.time_ns()} {generation} {number} {message.attempt} {message.due_ms or 0}\n"
        os.write(log, line.encode())  # survives a kill -9 of this process
        await asyncio.sleep(_WORK_S)
        if fails(int(number)) and message.attempt <= 2:
            raise ValueError("not yet")
        os.write(log, f"d {time.time_ns()} {generation} {number}\n".encode())

    handler: Handler = work
    if redis:
        handler = once(await RedisStore.open(redis), key=lambda message: message.payload, scope=group)(work)
    consumer.add(topic, handler)
    await consumer.run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("duemq.client.consumer.failures").setLevel(logging.ERROR)  # of which there are thousands
    asyncio.run(main(*sys.argv[1:]))
