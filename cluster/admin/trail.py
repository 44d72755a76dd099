"""The audit trail: acts and denials, with their caller, time, address and result.

It is a log with two partitions: one for acts, which are requests that changed something, and one for denials, which are
refused requests. So a flood of refused requests cannot push out acts. Each partition keeps its last 50,000 records.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Final, NamedTuple, Self

import orjson

from duemq.background.loop import Loop
from duemq.bus.base import Bus
from duemq.cluster.topics.internal_topics import TRAIL
from duemq.model.errors import CorruptStore, Rejected, Unavailable
from duemq.model.messages.record import StoredRecord, pack_record, unpack_record
from duemq.model.timing import shown

log = logging.getLogger(__name__)

ACTS, DENIALS = 0, 1  # the partitions
MAX_ENTRIES: Final = 1_000  # in one page

_FORMAT = 1
_KEPT_RECORDS = 50_000  # in each partition
_SLACK_RECORDS = 1_000  # above the limit, before older records are dropped
_FLUSH_S = 5.0
_LAST_S = 2.0  # how long the remaining entries may take to write at the end
_MAX_DENIALS = 20  # distinct denials between two flushes; others are only counted
_MAX_REPEATED, _REPEATED_MS = 10_000, 3_600_000
_MAX_TEXT = 300
_LOOKS, _LOOK_AGAIN_S = 10, 1.0
_OTHERS = "others"
_EXPECTED = (Unavailable, Rejected)
_CURSOR = re.compile(r"(\d{1,18})\.(\d{1,18})")


class TrailEntry(NamedTuple):
    """One act or denial. `at`: epoch ms; `by`: the id of a key, `user:ID (NAME)`, `settings` or `data folder`, empty if
    no key was required; `address`: the client's address; `action`: method and path of the endpoint; `target`: the
    request's path; `result`: the HTTP status; `code`: the problem's code, empty after success; `times`: how often the
    same request was denied within some seconds."""

    at: int
    by: str
    address: str
    action: str
    target: str
    result: int
    code: str
    request_id: str
    times: int = 1

    def frame(self) -> bytes:
        cut = {name: value[:_MAX_TEXT] for name, value in self._asdict().items() if isinstance(value, str)}
        return pack_record(None, (), orjson.dumps({"format": _FORMAT, **self._asdict(), **cut}))

    @classmethod
    def of(cls, record: StoredRecord) -> Self:
        """Parse a record. Raises CorruptStore. Fields that only a newer version has are left out."""
        try:
            document = orjson.loads(unpack_record(record.frame).payload)
            return cls(**{name: document[name] for name in cls._fields})
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptStore(f"record {record.offset} of {TRAIL} cannot be read: {error}") from error


class TrailPage(NamedTuple):
    """Entries, newest first, and the cursor for the next page; None at the end."""

    entries: list[TrailEntry]
    cursor: str | None


class Trail:
    """`bus`: see `AdminLog`. `clock` returns epoch ms. `on_lost` is called with the number of entries that cannot be
    written."""

    def __init__(self, bus: Callable[[], Bus], clock: Callable[[], int]) -> None:
        self._bus, self._clock = bus, clock
        self._denied: dict[tuple[str, ...], TrailEntry] = {}
        self._others = 0
        self._written: dict[tuple[str, ...], int] = {}  # by act: until when (epoch ms) it is not written again
        self.on_lost: Callable[[int], None] = lambda entries: None

    async def act(self, entry: TrailEntry) -> None:
        """Durably write an act. If the log is out of reach, the entry is written to the process's log output, and the
        act continues."""
        try:
            await self._append(ACTS, [entry])
        except _EXPECTED as error:
            self._lose([entry], error)

    def is_repeat(self, act: tuple[str, ...]) -> bool:
        """Whether the same act was written within the last hour: for routine acts of programs, one entry an hour is
        enough."""
        now = self._clock()
        if now < self._written.get(act, 0):
            return True
        if len(self._written) >= _MAX_REPEATED:
            self._written.clear()
        self._written[act] = now + _REPEATED_MS
        return False

    def deny(self, entry: TrailEntry) -> None:
        """Record a denial, which is written within some seconds. Equal denials are counted."""
        group = (entry.by, entry.address, entry.action, entry.code)
        if (same := self._denied.get(group)) is not None:
            self._denied[group] = same._replace(times=same.times + entry.times)
        elif len(self._denied) < _MAX_DENIALS:
            self._denied[group] = entry
        else:
            self._others += entry.times

    async def run(self) -> None:
        """Write denials until cancelled, and then once more, so the log must still be open at that time. While the log
        accepts nothing, denials are kept."""
        try:
            await Loop("trail", self.flush, expected=_EXPECTED).run()
        finally:
            try:
                async with asyncio.timeout(_LAST_S):
                    await self.flush()
            except (TimeoutError, *_EXPECTED) as error:
                self._lose(self._pop_denied(), error)

    async def flush(self) -> float:
        if entries := self._pop_denied():
            try:
                await self._append(DENIALS, entries)
            except BaseException:
                self._keep(entries)
                raise
        return _FLUSH_S

    def _pop_denied(self) -> list[TrailEntry]:
        entries = list(self._denied.values())
        if self._others:
            entries.append(TrailEntry(self._clock(), "", "", _OTHERS, "", 0, "", "", self._others))
        self._denied.clear()
        self._others = 0
        return entries

    def _keep(self, entries: list[TrailEntry]) -> None:
        """Keep entries, to write them with the next ones. If they are already in the log, they will be in it twice."""
        for entry in entries:
            if entry.action == _OTHERS:
                self._others += entry.times
            else:
                self.deny(entry)

    async def _append(self, partition: int, entries: list[TrailEntry]) -> None:
        bus = self._bus()
        results = await bus.append({(TRAIL, partition): [entry.frame() for entry in entries]})
        next_offset = results[TRAIL, partition].first_offset + len(entries)
        if next_offset % _SLACK_RECORDS < len(entries) and next_offset > _KEPT_RECORDS:
            try:
                await bus.trim(TRAIL, partition, next_offset - _KEPT_RECORDS)
            except _EXPECTED as error:  # the entries themselves are written
                log.warning("the trail is not shortened: %s", error, extra={"action": "trail.trim"})

    def _lose(self, entries: list[TrailEntry], error: Exception) -> None:
        if entries:
            self.on_lost(len(entries))
            document = orjson.dumps([entry._asdict() for entry in entries]).decode()
            log.error("not in the trail (%s): %s", error, document, extra={"action": "trail.lost"})

    async def read(self, limit: int, cursor: str | None = None) -> TrailPage:
        """One page, newest entries first. Raises Rejected `bad_cursor`, and Unavailable."""
        bus = self._bus()
        if cursor is None:
            ends = [await bus.end_offset(TRAIL, partition) for partition in (ACTS, DENIALS)]
        elif (match := _CURSOR.fullmatch(cursor)) is not None:
            ends = [int(match[1]), int(match[2])]
        else:
            raise Rejected("bad_cursor", f"{shown(cursor)} is no cursor of the trail", "cursor")
        starts = [await bus.start_offset(TRAIL, partition) for partition in (ACTS, DENIALS)]
        candidates: list[tuple[TrailEntry, int, int]] = []  # each with its partition and offset
        for partition, end in enumerate(ends):
            first = max(end - limit, starts[partition])
            candidates += [
                (TrailEntry.of(one), partition, one.offset) for one in await _range(bus, partition, first, end)
            ]
        candidates.sort(key=lambda candidate: (candidate[0].at, candidate[2]), reverse=True)
        page = candidates[:limit]
        for _, partition, offset in page:
            ends[partition] = min(ends[partition], offset)
        more = any(end > start for end, start in zip(ends, starts, strict=True))
        return TrailPage([entry for entry, *_ in page], f"{ends[0]}.{ends[1]}" if page and more else None)


async def _range(bus: Bus, partition: int, first: int, end: int) -> list[StoredRecord]:
    """The kept records from `first` to before `end`. Raises Unavailable if they cannot be read.

    The first read of a remote log may return nothing while it fetches.
    """
    records: list[StoredRecord] = []
    subscription, looks = bus.subscribe(TRAIL, partition), 0
    try:
        while first < end:
            if piece := await bus.read(TRAIL, partition, first, end - first):
                records += [one for one in piece if one.offset < end]
                first = piece[-1].offset + 1
            elif bus.reach(TRAIL, partition) >= end and not await bus.read(TRAIL, partition, first, 1):
                break
            elif (looks := looks + 1) > _LOOKS:
                raise Unavailable("the trail cannot be read up to its end now")
            else:
                await subscription.wait(_LOOK_AGAIN_S)
    finally:
        subscription.close()
    return records
