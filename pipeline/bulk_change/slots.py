"""Limits the number of concurrent requests from a machine, however many tasks run on it. Does not use Spark.

There are many small tasks, so that a failure repeats minutes of work and not hours. Spark runs one task per core. To
send a request, a task needs a slot, which is a lock on a file; their number limits the concurrent requests.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_LOOK_S: Final = 0.02


class Slots:
    """`count` slots for `what` on each machine, shared between processes. If a process is killed, its slot is free."""

    def __init__(self, what: str, count: int) -> None:
        self._name, self._count = hashlib.sha256(f"{what} {count}".encode()).hexdigest()[:16], count

    @contextmanager
    def one(self) -> Iterator[None]:
        """Wait for a slot, and hold it inside the block."""
        folder = Path(tempfile.gettempdir()) / f"duemq-slots-{os.getuid()}-{self._name}"
        folder.mkdir(mode=0o700, exist_ok=True)
        first = random.randrange(self._count)
        while True:
            for number in range(self._count):
                handle = os.open(folder / str((first + number) % self._count), os.O_RDWR | os.O_CREAT, 0o600)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    os.close(handle)
                    continue
                try:
                    yield
                finally:
                    os.close(handle)  # releases the lock
                return
            time.sleep(_LOOK_S)
