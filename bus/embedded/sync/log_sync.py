"""Syncs RocksDB's write-ahead log, by the kernel's asynchronous IO or in a thread.

RocksDB's own sync blocks, so it needs a thread, and switching to the thread and back costs more than the sync itself
(ADR 90). The kernel can sync the log's newest file without a thread. But when RocksDB begins a new file, the older
files and the folder must be synced, too, and only RocksDB knows when that happens. So if the newest known file has not
grown since the last sync, RocksDB does the sync. If the file has grown, it contains the record written since then: only
one record is written between two syncs. Then the kernel's sync is enough.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from rocksdict import Rdict

from duemq.bus.embedded.sync.aio import Aio

log = logging.getLogger(__name__)

_NONE = -1


def kernel_aio() -> Aio | None:
    """The kernel's asynchronous IO; None if this system has none."""
    try:
        return Aio()
    except OSError as error:
        log.info("log: syncs take a thread, the kernel has no asynchronous ones: %s", error, extra={"action": "sync"})
        return None


class LogSync:
    """Runs one sync at a time.

    `done` is called in the event loop when a sync ends, with the error if it failed. `on_sync` is called for each sync
    that begins; its argument is true if the kernel does it asynchronously.

    After a failed sync there must be no other: the kernel forgets the failure, and the next sync would succeed although
    the data is not on disk.
    """

    def __init__(
        self,
        db: Rdict,
        done: Callable[[Exception | None], None],
        aio: Callable[[], Aio | None],
        on_sync: Callable[[bool], None],
    ) -> None:
        self._db, self._done, self._aio, self._on_sync = db, done, aio(), on_sync
        self._loop = asyncio.get_running_loop()
        self._file, self._size = _NONE, 0  # the newest file of the log, synced up to this size
        # A queue and a thread are enough: an executor's futures would cost more than the sync.
        self._requests: SimpleQueue[bool] = SimpleQueue()
        self._thread = Thread(target=self._run, name="duemq-log-sync", daemon=True)
        self._thread.start()
        if self._aio is not None:
            self._loop.add_reader(self._aio.ends, self._on_end)

    def start(self) -> None:
        """Sync the record that was written since the last sync."""
        if self._aio is not None and self._file != _NONE:
            size = os.fstat(self._file).st_size
            if size > self._size:
                self._size = size
                try:
                    self._aio.start(self._file)
                    self._on_sync(True)
                    return
                except OSError as error:
                    log.info("log: syncs take a thread from now on: %s", error, extra={"action": "sync"})
                    self._close_aio()
        self._on_sync(False)
        self._requests.put(True)

    def close(self) -> None:
        """Call it only while no sync runs."""
        self._requests.put(False)
        self._thread.join()
        self._close_aio()

    def _on_end(self) -> None:
        assert self._aio is not None
        failure: Exception | None = None
        try:
            if not self._aio.take_result():
                return
        except OSError as error:
            failure = error
        self._done(failure)

    def _run(self) -> None:
        while self._requests.get():
            newest, failure = None, None
            try:
                newest = self._newest_file()  # found before the sync, so that the sync includes it
                self._db.flush_wal(True)
            except Exception as error:
                failure = error
            with suppress(RuntimeError):  # the loop was closed while the bus was open: no task is waiting
                self._loop.call_soon_threadsafe(self._after_thread, newest, failure)

    def _newest_file(self) -> Path | None:
        if self._aio is None:
            return None
        return max(Path(self._db.path()).glob("*.log"), key=lambda path: int(path.stem), default=None)

    def _after_thread(self, newest: Path | None, failure: Exception | None) -> None:
        if newest is not None and failure is None:
            self._close_file()
            with suppress(OSError):  # RocksDB deleted it: there is a newer file
                self._file = os.open(newest, os.O_RDONLY | os.O_CLOEXEC)
                self._size = os.fstat(self._file).st_size
        self._done(failure)

    def _close_aio(self) -> None:
        self._close_file()
        if self._aio is not None:
            self._loop.remove_reader(self._aio.ends)
            self._aio.close()
            self._aio = None

    def _close_file(self) -> None:
        if self._file != _NONE:
            os.close(self._file)
            self._file = _NONE
