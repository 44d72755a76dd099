"""The consumer: pulls, hands out to handlers, and stores how far it is.

    pull -> books (what is in hand) -> lanes (handlers) -> done: the book moves on
                                                        -> failed: back through duemq, then the book moves on
    the offset of the first message that is not done is stored every 5 s, with each pull, and at the end

A message is done when its handler returned, or when the log has it for a retry or among the dead letters. What was not
done when a process died is delivered again, to whoever has the partition then: at least once.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from aiokafka.structs import TopicPartition

from duemq.client.consumer.book import Book
from duemq.client.consumer.groups import Mismatch, assignor
from duemq.client.consumer.lanes import Lanes, Route, Work
from duemq.client.consumer.message import Message, message_of
from duemq.client.consumer.names import checked_group, retry_topic
from duemq.client.consumer.options import ConsumerOptions
from duemq.client.consumer.policy import Dead, Wait, decide
from duemq.client.consumer.returns import Returns
from duemq.client.consumer.source import Changes, Place, Source
from duemq.client.consumer.tags import ALL, TagFilter
from duemq.client.consumer.topics import prepare
from duemq.model.errors import Rejected

log = logging.getLogger(__name__)

Handler = Callable[[Message], Awaitable[object]]
H = TypeVar("H", bound=Handler)

_PULL_MS, _MOST = 500, 1_000
_FIRST_BYTES = 16 << 10
_IDLE_S = 60.0
_SETTLE_S = 0.5
_ENOUGH = 3 / 4  # of what may be in hand: below it is pulled again


class Consumer:
    """One member of a group. Handlers are given before the start; all methods are for one event loop.

    ```python
    consumer = Consumer("billing", "localhost:9092")

    @consumer.on("orders", tags="paid || refunded")
    async def book(message: Message) -> None: ...

    asyncio.run(consumer.run())
    ```
    """

    def __init__(self, group: str, bootstrap: str = "localhost:9092", options: ConsumerOptions | None = None) -> None:
        """`bootstrap`: Kafka's. Raises Rejected `bad_group`."""
        self.group, self.options = checked_group(group), options or ConsumerOptions()
        self.in_hand = self.in_hand_bytes = 0
        self._counts: Counter[tuple[str, str]] = Counter()
        self.mismatches: tuple[Mismatch, ...] = ()
        """Members of the group that subscribe to something else, as the leader said when partitions were last given."""
        self._bootstrap = bootstrap
        self._retry = retry_topic(group)
        self._routes: dict[str, list[tuple[TagFilter, Route]]] = {}
        self._books: dict[TopicPartition, Book] = {}
        self._lanes = Lanes(self, self.options.concurrency, self.options.keys_at_once)
        self._returns = Returns(group, bootstrap, self.options)
        self._in_place = self.options.ordered or self.options.broadcasting
        self._room, self._moved, self._started = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._full = False  # it waits for room
        self._each_bytes = _FIRST_BYTES  # of the messages pulled last, on average
        self._saving = asyncio.Lock()
        self._source: Source | None = None
        self._running: asyncio.Task[None] | None = None
        self._pulling: asyncio.Task[None] | None = None

    def on(self, topic: str, tags: str = ALL, *, timeout_s: float | None = None) -> Callable[[H], H]:
        """Decorate the handler of a topic's messages that have one of the tags (`a || b`; `*` is all).

        The first handler that fits gets a message; one that fits none is skipped. Raises Rejected `bad_tags`.
        """

        def add(handler: H) -> H:
            self.add(topic, handler, tags, timeout_s=timeout_s)
            return handler

        return add

    def add(self, topic: str, handler: Handler, tags: str = ALL, *, timeout_s: float | None = None) -> None:
        """See `on`."""
        if self._running is not None:
            raise Rejected("too_late", "handlers are given before the consumer starts", "topic")
        if not inspect.iscoroutinefunction(inspect.unwrap(handler)):
            raise Rejected("bad_handler", f"{handler!r} is not `async def`; BlockingConsumer takes others", "handler")
        route = Route(handler, self.options.timeout_s if timeout_s is None else timeout_s)
        self._routes.setdefault(topic, []).append((TagFilter.parse(tags), route))

    @property
    def subscription(self) -> dict[str, str]:
        """Topics, and the tags of each."""
        return {topic: str(TagFilter.any_of(tags for tags, _ in routes)) for topic, routes in self._routes.items()}

    @property
    def counts(self) -> Counter[tuple[str, str]]:
        """Messages by topic and outcome: `done`, `retried`, `dead`, `skipped` (by the tag filter)."""
        done = {(topic, "done"): sum(route.done for _, route in routes) for topic, routes in self._routes.items()}
        return self._counts + Counter(done)

    @property
    def places(self) -> dict[TopicPartition, Place]:
        """Of the partitions this member has."""
        return {partition: Place(book.commit, book.pull) for partition, book in self._books.items()}

    # --- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group and begin. Raises Rejected where this Kafka has no duemq, and aiokafka's errors."""
        options = self.options
        if not self._routes:
            raise Rejected("no_handler", "a consumer needs a handler: use `on`", "handler")
        topics = sorted(self._routes)
        sharing = assignor(options.allocation, options.rack, self.subscription, self._told)
        await self._returns.start(await prepare(self.group, self._bootstrap, options, topics))
        own = [] if options.broadcasting else [self._retry]
        changes = Changes(self._gained, self._lost)
        source = Source(self.group, self._bootstrap, options, [*topics, *own], own, changes, sharing)
        self._source = source
        self._running = asyncio.create_task(self._work(), name=f"consumer-{self.group}")
        try:
            await source.start()
        except BaseException:
            await self.stop()
            raise
        self._started.set()

    async def _work(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._lanes.run(), name="lanes")
                await self._started.wait()
                assert self._source is not None
                self._pulling = group.create_task(self._pull(self._source), name="pull")
                group.create_task(self._save_often(self._source), name="offsets")
        except Exception as error:
            log.critical("consumer of group %s ends: %r", self.group, error, extra={"action": "end"})
            raise

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Start, and work until SIGINT, SIGTERM or `stop`; then stop. Raises what ended the consumer, if that did."""
        ending = stop or asyncio.Event()
        loop = asyncio.get_running_loop()
        with suppress(NotImplementedError, RuntimeError, ValueError):  # in another thread than the main one
            for each in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(each, ending.set)
        await self.start()
        waiting = asyncio.create_task(ending.wait())
        try:
            assert self._running is not None
            await asyncio.wait([waiting, self._running], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            await self.stop()

    async def stop(self) -> None:
        """Finish what handlers have, let go of the rest, store the offsets, leave the group. Idempotent."""
        running, source = self._running, self._source
        if running is None or source is None:
            return
        self._running = None
        try:
            if self._pulling is not None and not running.done():
                self._pulling.cancel()
                await asyncio.wait([self._pulling])
                await source.let_go()
        finally:
            running.cancel()
            await asyncio.wait([running])
            await source.stop()
            await self._returns.stop()
        if not running.cancelled() and (error := running.exception()) is not None:
            raise error

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # --- partitions -----------------------------------------------------------------------------------------------

    async def _gained(self, partitions: Collection[TopicPartition]) -> None:
        log.info("consumer of group %s has %d partitions", self.group, len(partitions), extra={"action": "assigned"})
        self._moved.set()

    def _told(self, found: Sequence[Mismatch]) -> None:
        for each in set(found).difference(self.mismatches):
            log.warning("group %s subscribes to different things: %s", self.group, each, extra={"action": "mismatch"})
        self.mismatches = tuple(found)

    async def _lost(self, partitions: Collection[TopicPartition]) -> None:
        books = {each: book for each in partitions if (book := self._books.pop(each, None)) is not None}
        self._lanes.release(books.values())
        if not await self._lanes.finish(books.values(), self.options.stop_s):
            log.warning(
                "consumer of group %s gives partitions away while handlers are busy: their messages will come again",
                self.group, extra={"action": "revoked"},
            )  # fmt: skip
        if self._source is not None:
            await self._save(self._source, books)

    # --- pulling --------------------------------------------------------------------------------------------------

    async def _pull(self, source: Source) -> None:
        options = self.options
        while True:
            room = options.max_in_hand - self.in_hand
            if room <= 0 or self.in_hand_bytes >= options.max_in_hand_bytes:
                await self._wait_for_room(source)
                continue
            fit = (options.max_in_hand_bytes - self.in_hand_bytes) // self._each_bytes
            for partition, records in (await source.pull(_PULL_MS, max(min(room, fit, _MOST), 1))).items():
                self._take(partition, records)
            self._moved.set()
            await asyncio.sleep(0)  # where there is always more, nothing else would get a turn

    async def _wait_for_room(self, source: Source) -> None:
        self._full = True
        self._room.clear()
        try:
            async with asyncio.timeout(_IDLE_S):
                await self._room.wait()
        except TimeoutError:
            await source.idle()
        finally:
            self._full = False

    def _take(self, partition: TopicPartition, records: list[Any]) -> None:
        book = self._books.get(partition)
        if book is None:
            book = self._books[partition] = Book(records[0].offset)
        retried, keyed = partition.topic == self._retry, self.options.keys_at_once is not None
        routes = self._routes.get(partition.topic, [])
        only = routes[0][1] if len(routes) == 1 and not routes[0][0].tags else None
        works: list[Work] = []
        total = 0
        for record in records:
            message = Message(record) if not retried else message_of(record, True)
            route = only or self._route(message)
            if route is not None:
                size, key = len(record.value or b""), self._key(message) if keyed else None
                works.append(Work(message, route, book, record.offset, size, key))
                total += size
        self.in_hand += len(works)
        self.in_hand_bytes += total
        if works:
            self._each_bytes = max(total // len(works), 1)
        book.pulled([work.offset for work in works], records[-1].offset + 1)
        self._counts[partition.topic, "skipped"] += len(records) - len(works)
        self._lanes.put(works)

    def _route(self, message: Message) -> Route | None:
        routes = self._routes.get(message.topic)
        if routes is None:
            return _UNHANDLED
        headers = message.record.headers
        return next((route for tags, route in routes if tags.matches(headers)), None)

    def _key(self, message: Message) -> object:
        key = message.key
        if key is not None:
            return message.topic, key
        return (message.topic, message.record.partition) if self.options.ordered else None

    # --- what became of a message ---------------------------------------------------------------------------------

    def done(self, work: Work) -> None:
        """See `Owner`."""
        work.book.done(work.offset)
        work.route.done += 1
        self.in_hand -= 1
        self.in_hand_bytes -= work.size
        if self._full:
            self._look_for_room()

    async def failed(self, work: Work, error: Exception) -> float | None:
        """See `Owner`."""
        message = work.message
        to = Dead("no_handler") if work.route is _UNHANDLED else decide(error, self.options.retry, message.retried)
        log.log(
            logging.WARNING if isinstance(to, Wait) else logging.ERROR,
            "consumer of group %s: %r failed and %s: %r", self.group, message,
            "comes back" if isinstance(to, Wait) else f"goes to the dead letters ({to.reason})", error,
            extra={"action": "failed", "group": self.group, "topic": message.topic, "id": message.id},
        )  # fmt: skip
        if isinstance(to, Wait) and self._in_place:
            if work.book.closed:
                self.released(work)
                return None
            self._counts[message.topic, "retried"] += 1
            work.message = Message(message.record, message.origin.again())
            return to.ms(int(time.time() * 1000)) / 1000
        await self._returns.send(message, to, str(error) or repr(error))
        self._ended(work, "retried" if isinstance(to, Wait) else "dead")
        return None

    def released(self, work: Work) -> None:
        """See `Owner`."""
        self.in_hand -= 1
        self.in_hand_bytes -= work.size
        self._look_for_room()

    def _look_for_room(self) -> None:
        most, most_bytes = self.options.max_in_hand, self.options.max_in_hand_bytes
        if self.in_hand < most * _ENOUGH and self.in_hand_bytes < most_bytes * _ENOUGH:
            self._room.set()

    def _ended(self, work: Work, outcome: str) -> None:
        work.book.done(work.offset)
        self._counts[work.message.topic, outcome] += 1
        self.released(work)

    # --- offsets --------------------------------------------------------------------------------------------------

    async def _save_often(self, source: Source) -> None:
        loop = asyncio.get_running_loop()
        settled = -_SETTLE_S
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.options.commit_interval_s):
                    await self._moved.wait()
            self._moved.clear()
            if loop.time() - settled >= _SETTLE_S:
                await self._settle(source)
                settled = loop.time()
            await self._save(source, self._books)

    async def _settle(self, source: Source) -> None:
        """A partition at rest is past the markers of transactions, and one without messages has a place, too."""
        for partition in source.partitions():
            book = self._books.get(partition)
            if book is None or not len(book):
                position = await source.position(partition)
                if position is None:
                    continue
                book = self._books.setdefault(partition, Book(position))
                if not len(book):
                    book.pull = max(book.pull, position)

    async def _save(self, source: Source, books: Mapping[TopicPartition, Book]) -> None:
        async with self._saving:
            moved = {
                partition: (book, place)
                for partition, book in books.items()
                if (place := Place(book.commit, book.pull)) != book.saved
            }
            if moved and await source.save({partition: place for partition, (_, place) in moved.items()}):
                for book, place in moved.values():
                    book.saved = place


async def _unhandled(message: Message) -> None:
    raise Rejected("no_handler", f"no handler here is for messages of {message.topic}", "topic")


_UNHANDLED = Route(_unhandled, 60.0)
"""Of a retried message whose topic this consumer does not handle any more."""
