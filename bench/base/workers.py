"""The processes that send and read. They are separate from one another and from the process that shows progress."""

import asyncio
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_PROGRESS_EVERY_S = 0.1


class WorkerError(RuntimeError):
    """A sending or reading process failed; the text is the process's traceback."""


class WorkerLink:
    """A worker's end of the pipe, which sends progress and receives the request to stop."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._next_at = 0.0
        self.stopped = asyncio.Event()

    def listen(self) -> None:
        """Wait for the request to stop: any input, or the end of the pipe, which means that the bench itself has
        died."""
        loop = asyncio.get_running_loop()

        def hear() -> None:
            loop.remove_reader(self._pipe.fileno())
            self.stopped.set()

        loop.add_reader(self._pipe.fileno(), hear)
        os.set_blocking(self._pipe.fileno(), True)  # undoes uvloop's change: Connection.send cannot send partially

    def progress(self, count: int) -> None:
        """Report how many messages are done so far. Reports are sent at most ten times a second."""
        if (now := time.monotonic()) >= self._next_at:
            self._next_at = now + _PROGRESS_EVERY_S
            self._pipe.send(("progress", count))


def _main(pipe: Connection, job: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    import uvloop

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the bench, which then ends its workers

    async def run() -> Any:
        link = WorkerLink(pipe)
        link.listen()
        return await job(link, *args, **kwargs)

    try:
        pipe.send(("done", uvloop.run(run())))
    except BrokenPipeError:
        pass
    except BaseException:
        pipe.send(("failed", traceback.format_exc()))


class BenchWorker(Generic[R]):
    """One process that runs the coroutine function `job(link, *args)` on uvloop. A pipe returns the result."""

    def __init__(
        self, job: Callable[Concatenate[WorkerLink, P], Awaitable[R]], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_main, args=(theirs, job, args, kwargs), name=job.__name__, daemon=True)
        self._process.start()
        theirs.close()
        self._answer: tuple[str, Any] | None = None
        self.count = 0

    def poll(self, wait_s: float = 0.0) -> bool:
        """Receive the process's output, for at most `wait_s` seconds. Returns True if the process is done."""
        while self._answer is None and self._pipe.poll(wait_s):
            try:
                kind, value = self._pipe.recv()
            except (EOFError, OSError):
                self._process.join(5)
                kind, value = "failed", f"{self._process.name} ended with exit code {self._process.exitcode}"
            if kind == "progress":
                self.count, wait_s = value, 0.0
            else:
                self._answer = (kind, value)
        return self._answer is not None

    def stop(self) -> None:
        """Ask the process to finish its current work."""
        if self._answer is None:
            self._pipe.send("stop")

    def result(self, within_s: float = 120.0) -> R:
        """The job's return value. Raises WorkerError if it failed or took longer than `within_s`."""
        deadline = time.monotonic() + within_s
        while not self.poll(0.2):
            if time.monotonic() > deadline:
                raise WorkerError(f"{self._process.name} gave no result within {within_s:.0f} s")
        self._process.join(5)
        assert self._answer is not None
        kind, value = self._answer
        if kind == "failed":
            raise WorkerError(value)
        result: R = value
        return result

    def end(self) -> None:
        """Kill the process. Idempotent."""
        if self._process.is_alive():
            self._process.terminate()
        self._process.join(5)
        self._pipe.close()
