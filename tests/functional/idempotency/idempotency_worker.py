"""A process that does the work of some keys once each, and kills itself at a step. Run with what `run` says.

Every effect is a line of the file `effects`, every key whose handler came back is one of `acknowledged`, and every one
in doubt of `doubts`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from duemq.client.idempotency.base import InDoubt, Store
from duemq.client.idempotency.once import once
from duemq.client.idempotency.redis import RedisStore
from duemq.client.idempotency.rocks import RocksStore
from duemq.model.failpoint import Failpoint, no_failpoint

KEYS, AT_ONCE = 16, 4
T0, LEASE_MS = 1_800_000_000_000, 300_000


@dataclass
class Mail:
    id: str


def fatal_at(step: str, number: int) -> Failpoint:
    """kill -9 at the `number`-th time of a step."""
    seen: Counter[str] = Counter()

    def fault(name: str) -> None:
        seen[name] += 1
        if name == step and seen[name] == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return fault


async def work(folder: Path, url: str, at_most_once: bool, now: int, fault: Failpoint = no_failpoint) -> None:
    """All keys, some at once. `url`: of Redis, or empty for RocksDB in the folder."""
    store: Store
    if url:
        store = await RedisStore.open(url, folder.name.encode())
    else:
        store = await RocksStore.open(folder / "store", fault)

    @once(store, scope="worker", at_most_once=at_most_once, clock=lambda: now, failpoint=fault)
    async def handle(mail: Mail) -> str:
        note(folder, "effects", mail.id)
        return f"result of {mail.id}"

    async def one(number: int) -> None:
        try:
            result = await handle(Mail(str(number)))
        except InDoubt:
            note(folder, "doubts", str(number))
        else:
            assert result == f"result of {number}"
            note(folder, "acknowledged", str(number))

    for first in range(0, KEYS, AT_ONCE):
        await asyncio.gather(*(one(number) for number in range(first, first + AT_ONCE)))
    await store.close()


def note(folder: Path, name: str, line: str) -> None:
    """A line in one write: it is there when the process is killed behind this."""
    handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(handle, f"{line}\n".encode())
    os.close(handle)


def noted(folder: Path, name: str) -> Counter[str]:
    path = folder / name
    return Counter(path.read_text().split() if path.exists() else [])


def run(folder: Path, url: str, at_most_once: bool, step: str, number: int) -> int:
    """Its exit code: -9 if it came to that step."""
    command = [sys.executable, "-P", __file__, str(folder), url, str(int(at_most_once)), step, str(number)]
    return subprocess.run(command).returncode


if __name__ == "__main__":
    _folder, _url, _once, _step, _number = sys.argv[1:]
    asyncio.run(work(Path(_folder), _url, _once == "1", T0, fatal_at(_step, int(_number))))
