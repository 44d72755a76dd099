"""One member of a group as a separate process, to be killed: it records each message when its handler starts.

    python -m tests.chaos.consumer_worker BOOTSTRAP GROUP TOPIC FOLDER FIRST_LEVEL

A line: time (ns), the message's first partition and offset, attempt, due (ms), sequence number.
Messages whose number ends in 7 fail twice; those ending in 003 are rejected.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from duemq.client.consumer import Consumer, ConsumerOptions, Levels, Message, Reject

FAILS, REJECTED = 7, 3
_WORK_S = 0.005


def fails(number: int) -> bool:
    return number % 10 == FAILS


def rejected(number: int) -> bool:
    return number % 1_000 == REJECTED


async def main(bootstrap: str, group: str, topic: str, folder: str, first_level: str) -> None:
    options = ConsumerOptions(
        start="first", session_s=2, concurrency=32, stop_s=5, retry=Levels(first=int(first_level)), timeout_s=10
    )
    consumer = Consumer(group, bootstrap, options)
    log = os.open(Path(folder) / f"{time.time_ns()}-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    @consumer.on(topic)
    async def handle(message: Message) -> None:
        origin, number = message.origin, int(message.payload)
        line = f"{time.time_ns()} {origin.partition} {origin.offset} {message.attempt} {message.due_ms or 0} {number}\n"
        os.write(log, line.encode())  # survives a kill -9 of this process
        await asyncio.sleep(_WORK_S)
        if fails(number) and message.attempt <= 2:
            raise ValueError("not yet")
        if rejected(number):
            raise Reject("never")
        os.write(log, f"done {number}\n".encode())

    await consumer.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
