"""How many requests are under way from one machine at once, however many tasks run on it. No Spark in here.

Tasks are many and small, so that one that fails repeats minutes of work and not hours. Spark runs as many of them as
there are cores; a slot, which is a lock on a file, bounds how many of them ask the server at the same time.
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
    """`count` of them on each machine, shared by all that name the same `what`, and given back where a process dies."""

    def __init__(self, what: str, count: int) -> None:
        self._name, self._count = hashlib.sha256(f"{what} {count}".encode()).hexdigest()[:16], count

    @contextmanager
    def one(self) -> Iterator[None]:
        """Hold one for the time of the block; waits for it."""
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
                    os.close(handle)  # which lets go of it
                return
            time.sleep(_LOOK_S)
