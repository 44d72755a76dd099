"""The consumer for programs without asyncio: handlers are plain functions, run in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

from duemq.client.consumer.consumer import Consumer
from duemq.client.consumer.message import Message
from duemq.client.consumer.options import ConsumerOptions
from duemq.client.consumer.work.tags import ALL
from duemq.model.errors import Rejected

BlockingHandler = Callable[[Message], object]
H = TypeVar("H", bound=BlockingHandler)


class BlockingConsumer:
    """A `Consumer` whose `run` blocks. At most `options.concurrency` handlers run at once, each in a thread.

    If a handler exceeds its timeout, the message counts as failed and is retried. But a thread cannot be stopped, so
    the handler keeps running. Use timeouts inside the handler, or make it safe to run twice at once
    (docs/guides/idempotency.md). The timeout starts when a thread begins to handle the message: while all threads hang,
    other messages wait without using up retries.
    """

    def __init__(self, group: str, bootstrap: str = "localhost:9092", options: ConsumerOptions | None = None) -> None:
        """Raises what `Consumer` raises."""
        self.options = options or ConsumerOptions()
        self.consumer = Consumer(group, bootstrap, self.options)
        self.threads = ThreadPoolExecutor(self.options.concurrency, thread_name_prefix=f"duemq-{group}")
        self._lock = Lock()
        self._stop: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._stopped = False

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """See `Consumer.counts`."""
        return dict(self.consumer.counts)

    def on(self, topic: str, tags: str = ALL, *, timeout_s: float | None = None) -> Callable[[H], H]:
        """See `Consumer.on`."""

        def add(handler: H) -> H:
            self.add(topic, handler, tags, timeout_s=timeout_s)
            return handler

        return add

    def add(self, topic: str, handler: BlockingHandler, tags: str = ALL, *, timeout_s: float | None = None) -> None:
        """See `Consumer.on`."""
        if asyncio.iscoroutinefunction(handler):
            raise Rejected("bad_handler", f"{handler!r} is `async def`; use Consumer", "handler")

        queued: set[Message] = set()

        def begin(message: Message) -> object:
            queued.discard(message)
            try:
                return handler(message)
            except StopIteration as error:  # a future cannot raise StopIteration: the handler would seem to hang
                raise RuntimeError("the handler raised StopIteration") from error

        async def in_thread(message: Message) -> None:
            queued.add(message)
            try:
                await asyncio.get_running_loop().run_in_executor(self.threads, begin, message)
            finally:
                queued.discard(message)

        self.consumer.add(topic, in_thread, tags, timeout_s=timeout_s, queued=queued.__contains__)

    def run(self) -> None:
        """Work until SIGINT or SIGTERM (in the main thread), or until another thread calls `stop`. Call it once."""
        try:
            asyncio.run(self._run())
        finally:
            self.threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        stop = asyncio.Event()
        with self._lock:
            self._stop = asyncio.get_running_loop(), stop
            if self._stopped:
                return
        await self.consumer.run(stop)

    def stop(self) -> None:
        """Let `run` wait for running handlers and return. May be called from any thread, also before `run`."""
        with self._lock:
            self._stopped = True
            if self._stop is not None:
                loop, stop = self._stop
                if not loop.is_closed():
                    loop.call_soon_threadsafe(stop.set)
