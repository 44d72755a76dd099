"""The log of the administrative state: every process follows it, and any process may change it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import closing

import orjson

from duemq.background.loop import Loop
from duemq.bus.base import Bus, Subscription
from duemq.cluster.admin.state import AdminState, ItemChange, Value
from duemq.cluster.topics.internal_topics import ADMIN
from duemq.model.errors import CorruptStore, OutcomeUnknown, Rejected, Unavailable

log = logging.getLogger(__name__)

_READ = 500  # records at a time
_QUIET_S = 5.0
_OPENING_S = 0.02  # the pause between checks of whether the process has opened its log
_ANSWER_S = 5.0
_TRIES = 10
_LOST = "access/lost"  # the item that records that there were API keys
_KEPT_RECORDS = 1_000  # after a snapshot; above this number, the next change writes a new snapshot


class AdminLog:
    """Follows the log while `run` runs. `bus` returns the current bus (a node opens another one after a failure), and
    raises Unavailable while there is none."""

    def __init__(self, bus: Callable[[], Bus], clock: Callable[[], int]) -> None:
        self._bus, self.clock = bus, clock
        self.state = AdminState(0)
        self.ready = asyncio.Event()  # set once the end of the log was first reached
        self._grown = asyncio.Condition()
        self._listeners: list[tuple[str, Callable[[], None]]] = []
        self._start = 0
        self._incarnation: int | None = None  # of the topic, when the state was read
        self._had_keys = False  # whether the log had keys, or may have had keys
        self._opening = True  # the process has not opened its log yet
        # Quiet at first: a single failure may mean that the process is closing its log, or that a partition's leader
        # changes.
        self._loop = Loop(
            "administrative log", self._follow, expected=(Unavailable, CorruptStore), quiet=1,
            on_failure=self._on_failure,
        )  # fmt: skip

    def on_change(self, listener: Callable[[], None], kind: str = "") -> None:
        """Call `listener` after each change of items of this kind; an empty `kind` means any kind."""
        self._listeners.append((kind, listener))

    @property
    def trouble(self) -> str | None:
        """Why the log currently cannot be followed, in a sentence. Until it can, changes by other processes are not
        seen."""
        return self._loop.trouble

    async def run(self) -> None:
        """Follow the log until cancelled. While the log has a record in an unknown format, the state is not `ready`,
        because the set of keys is uncertain. Deliveries continue."""
        await self._loop.run()

    def _on_failure(self, error: Exception) -> None:
        if isinstance(error, CorruptStore):
            self.ready.clear()
            self._had_keys |= self._incarnation is None  # the lost log may have had keys

    async def _follow(self) -> float:
        try:
            bus = self._bus()
        except Unavailable:
            if self._opening:
                return _OPENING_S
            raise
        self._opening = False
        with closing(bus.subscribe(ADMIN, 0)) as subscription:
            if not self.ready.is_set():
                await self._begin(bus, subscription)
            while True:
                grown = await self._read(bus, subscription)
                if (trouble := bus.troubles().get((ADMIN, 0))) is not None:
                    raise Unavailable(trouble)
                self._loop.record_success()
                if not grown:
                    await subscription.wait(_QUIET_S)

    async def _begin(self, bus: Bus, subscription: Subscription) -> None:
        """Read all kept records, up to the current end of the log."""
        incarnation, start = bus.incarnation(ADMIN), await bus.start_offset(ADMIN, 0)
        state, end = AdminState(start), await bus.sure_end(ADMIN, 0)
        while state.next_offset < end:
            if not await _read_into(state, bus):
                if bus.reach(ADMIN, 0) >= end and not await _read_into(state, bus):
                    break  # only transaction markers are left
                await subscription.wait(_QUIET_S)
        if not state.is_complete:
            raise CorruptStore(
                f"the administrative log begins at record {start} and has no snapshot: another program trimmed it. "
                f"Delete the topic {ADMIN}, and create the API keys again: duemq creates the topic"
            )
        self._had_keys |= _has_keys(self.state)
        if self._incarnation not in (None, incarnation):
            log.critical(
                "topic %s was deleted or truncated, and is read from its start again: of %d items (API keys, "
                "destinations, jobs) %d are left. Create and declare the others again",
                ADMIN, len(self.state.items), len(state.items), extra={"action": "admin.lost"},
            )  # fmt: skip
        self.state, self._start, self._incarnation = state, start, incarnation
        self.ready.set()
        await self._tell(all_=True)
        if self.keys_are_lost and _LOST not in state.items:
            now = self.clock()
            change = ItemChange(_LOST, state.version_of(_LOST) + 1, {"at": now}, now, "duemq")
            await bus.append({(ADMIN, 0): [change.frame()]})

    @property
    def keys_are_lost(self) -> bool:
        """Whether the log lost API keys that existed or may have existed. Such a log must not be treated as a log
        without keys.

        The log records this, too, for processes that start later.
        """
        return (self._had_keys or _LOST in self.state.items) and not _has_keys(self.state)

    async def _read(self, bus: Bus, subscription: Subscription) -> bool:
        """Apply the records that are available; return False if there are none."""
        if bus.incarnation(ADMIN) != self._incarnation:
            await self._begin(bus, subscription)  # the topic was recreated
            return True
        expected = self.state.next_offset
        records = await bus.read(ADMIN, 0, expected, _READ)
        if records and records[0].offset > expected and await bus.start_offset(ADMIN, 0) > expected:
            await self._begin(bus, subscription)  # the log was shortened while this process did not follow it
            return True
        for record in records:
            self.state.apply(record)
        if records:
            await self._tell()
        return bool(records)

    async def _tell(self, *, all_: bool = False) -> None:
        """Notify the listeners whose kinds have changed; with `all_`, notify all listeners, because the state was
        replaced."""
        kinds, self.state.changed_kinds = self.state.changed_kinds, set()
        for kind, listener in self._listeners:
            if all_ or kind in kinds or (kinds and not kind):
                listener()
        async with self._grown:
            self._grown.notify_all()

    async def change(
        self, item: str, value: Value | None, by: str, version: int | None = None, *, always: bool = False
    ) -> int:
        """Change an item, or remove it (`value` None). Returns the new version once the change is durable and has taken
        effect here.

        `version`: the expected current version; None = the version known here. `always`: make the change even if the
        state is full. It is for revocations and progress, which add a limited number of bytes to an item
        (docs/adr/0052).

        Raises Rejected `conflict` if another change came first, `bad_field` if there is no room for the change,
        OutcomeUnknown if the log cannot be read up to the change.
        """
        if not self.ready.is_set():
            raise Unavailable("the administrative log is being read for the first time")
        value = orjson.loads(orjson.dumps(value))  # the value as readers will get it
        for _ in range(_TRIES):
            before = self.state.version_of(item) if version is None else version
            change = ItemChange(item, before + 1, value, self.clock(), by)
            if not always:
                self.state.check_room(change)
            bus = self._bus()
            await self._append(bus, change)
            now = self.state.items.get(item)
            if now == (change.version, value):
                break
            if version is not None or now is not None:
                raise Rejected("conflict", f"{item} was changed by another caller at the same time")
            # The item is new, but a removed item with a higher version was forgotten before.
        else:
            raise Rejected("conflict", f"{item} lost {_TRIES} times to the removal of other items")
        if self.state.next_offset - self._start > 2 * _KEPT_RECORDS:
            await self._shorten(bus)
        return change.version

    async def _append(self, bus: Bus, change: ItemChange) -> None:
        """Append a change, and wait until it was read here. Raises OutcomeUnknown if it cannot be read."""
        results = await bus.append({(ADMIN, 0): [change.frame()]})
        offset = results[ADMIN, 0].first_offset
        try:
            async with asyncio.timeout(_ANSWER_S), self._grown:
                await self._grown.wait_for(lambda: self.state.next_offset > offset)
        except TimeoutError as error:
            detail = f"{change.item} may or may not have changed: the log was not read that far"
            raise OutcomeUnknown(detail) from error

    async def _shorten(self, bus: Bus) -> None:
        """Append a snapshot, and drop all records before it."""
        through = self.state.next_offset
        try:
            await bus.append({(ADMIN, 0): [self.state.snapshot()]})
            await bus.trim(ADMIN, 0, through)
            self._start = through
        except Unavailable as error:  # the next change tries again
            log.warning("the administrative log is not shortened: %s", error, extra={"action": "admin.shorten"})


def _has_keys(state: AdminState) -> bool:
    return any(name.startswith("keys/") for name in state.items)


async def _read_into(state: AdminState, bus: Bus) -> bool:
    records = await bus.read(ADMIN, 0, state.next_offset, _READ)
    for record in records:
        state.apply(record)
    return bool(records)
