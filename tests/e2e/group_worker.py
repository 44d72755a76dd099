"""A worker of a group that notes its messages and the answers: `python -m tests.e2e.group_worker URL FILE`.

It acks most messages, nacks some, and forgets some. Each line of the file is a JSON document.
"""

from __future__ import annotations

import os
import random
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson

from duemq.client import Client, Group, LeaseEnded, ReceivedMessage, Unavailable, Unreachable

TOPIC, GROUP = "orders", "workers"
VISIBILITY_MS = 3_000
_NACKED, _FORGOTTEN = 0.03, 0.01


def work(url: str, path: Path) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(event: str, message: ReceivedMessage, asked_ms: float) -> None:
        """`asked`, `at`: when the request began and was answered, epoch ms."""
        line: dict[str, Any] = {
            "event": event, "payload": int(message.payload), "asked": asked_ms, "at": time.time() * 1000,
            "until": message.lease_ends_at_ms, "attempt": message.attempt,
        }  # fmt: skip
        os.write(file, orjson.dumps(line) + b"\n")

    with Client(url) as client:
        group = client.group(TOPIC, GROUP)
        while True:
            asked_ms = time.time() * 1000
            try:
                received = group.receive(
                    max=20, wait=timedelta(seconds=1), visibility=timedelta(milliseconds=VISIBILITY_MS)
                )
                for message in received:
                    note("received", message, asked_ms)
                _answer(group, received, note)
            except (Unavailable, Unreachable):
                time.sleep(0.1)


def _answer(group: Group, received: Any, note: Any) -> None:
    chances = [random.random() for _ in received]
    acked = [message for message, chance in zip(received, chances, strict=True) if chance > _NACKED + _FORGOTTEN]
    asked_ms = time.time() * 1000
    for message in acked:
        note("acking", message, asked_ms)
    errors = group.ack_many([message.receipt for message in acked])
    for message, error in zip(acked, errors, strict=True):
        note("acked" if error is None else "late", message, asked_ms)
    for message, chance in zip(received, chances, strict=True):
        if chance <= _NACKED:
            asked_ms = time.time() * 1000
            note("nacking", message, asked_ms)
            with suppress(LeaseEnded):
                group.nack(message.receipt)
                note("nacked", message, asked_ms)


if __name__ == "__main__":
    work(sys.argv[1], Path(sys.argv[2]))
