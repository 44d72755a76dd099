"""Checks a data folder at rest: store, wheel, ledger and logs must agree, and every message must have one outcome.

The folder is opened as at a start, so the ledger is first followed to its end. Then every row is read.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from duemq.bus.base import Bus, wall_clock
from duemq.cluster.topics.internal_topics import INTERNAL
from duemq.delay.imports.file_importer import FileImporter
from duemq.delay.replica.replica import Replica, Tiers
from duemq.delay.tiering.completion import complete_windows
from duemq.delay.tiering.tiering import TieringWorker
from duemq.delay.tiering.tiering_policy import TieringPolicy
from duemq.model.errors import CorruptStore, DuemqError
from duemq.model.log.ledger import Entry, FileDecision
from duemq.model.messages.ended import EndedMessage
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.key import HIGHEST, LOWEST, checksum, read_key
from duemq.model.messages.record import unpack_record
from duemq.model.messages.row import count_topics, id_of, topic_of
from duemq.model.timing import window_of
from duemq.storage.data_folder import Folder, FolderInfo
from duemq.storage.imports.policy import ImportPolicy
from duemq.storage.jobs.parent import lines_of
from duemq.storage.keyspace import DROPPED, ENDED, MOVED, NAME, ROWLESS
from duemq.storage.limits import ImportLimits
from duemq.storage.rocksdb import Memory
from duemq.storage.shard.records import LocalFile
from duemq.storage.shard.store import ShardStore
from duemq.storage.tiering.transitions import bounds

_PART = 20_000
_NO_LIMITS = ImportLimits(1 << 40, 1 << 40, 1 << 40, 1 << 40)
Ids = npt.NDArray[np.bytes_]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check. `detail`: the finding; if the check failed, with the place of the fault."""

    what: str
    good: bool
    detail: str


@dataclass(frozen=True, slots=True)
class _ShardIds:
    """Ids of one shard's messages, by whether they were delivered according to the store."""

    delivered: Ids
    not_delivered: Ids
    topics: frozenset[str]


async def verify(folder: Folder, bus: Bus, memory: Memory, progress: Callable[[str, int], None]) -> list[Check]:
    """All checks of a locked folder. `progress(what, rows)` is called with the number of rows read so far."""
    ids = IdCodec(folder.info.secret)
    checks: list[Check] = []
    shard_ids: list[_ShardIds] = []
    for number in range(folder.info.shards):
        ids_of_shard = await _verify_shard(number, folder.info, bus, memory, ids, progress, checks)
        if ids_of_shard is not None:
            shard_ids.append(ids_of_shard)
    if len(shard_ids) == folder.info.shards:
        await _verify_records(bus, shard_ids, progress, checks)
    return checks


async def _verify_shard(
    number: int,
    info: FolderInfo,
    bus: Bus,
    memory: Memory,
    ids: IdCodec,
    progress: Callable[[str, int], None],
    checks: list[Check],
) -> _ShardIds | None:
    name = f"shard {number}"
    try:
        store = ShardStore(info.path / "shards" / f"{number:03d}", memory, ids)
    except DuemqError as error:
        checks.append(Check(f"{name}: store opens", False, str(error)))
        return None
    try:
        replica = Replica(number, store, ids, info.shards)
        entry_count = await replica.follow(bus, Tiers(_loader(replica), _LocalFiles(replica)))
        checks.append(Check(f"{name}: store agrees with the ledger", True, f"{entry_count} entries followed"))
        if not _verify_files(name, store, ids, checks):
            return None
        await complete_windows(store, store.delay_files.rowless_counts())
        return _verify_store(name, replica, progress, checks)
    except DuemqError as error:
        checks.append(Check(f"{name}: store agrees with the ledger", False, str(error)))
        return None
    finally:
        store.flush()
        store.close()


class _LocalFiles(FileImporter):
    """Imports files that a crash left next to a store before the store listed them. Imports nothing else."""

    def __init__(self, replica: Replica) -> None:
        policy, work = ImportPolicy(limits=_NO_LIMITS), lines_of("duemq.storage.imports.import_process")
        super().__init__(replica.shard, replica, policy, wall_clock, asyncio.Lock(), work)

    async def have(self, decision: FileDecision) -> None:
        while decision.offset not in self.outcomes and await self.step():
            pass
        if not isinstance(self.outcomes.get(decision.offset), LocalFile):
            raise CorruptStore(
                f"shard {self._shard}: the file of command {decision.offset} was imported, but is not here"
            )
        await super().have(decision)


def _verify_files(name: str, store: ShardStore, ids: IdCodec, checks: list[Check]) -> bool:
    """Check that every delay file matches its metadata, and that every dropped key is in a delay file."""
    delay_files, rows, dropped_rows = store.delay_files, 0, 0
    wrong: list[str] = []
    mismatches: list[str] = []
    for window in delay_files.windows():
        marks = dict(store.range(*bounds(DROPPED, window)))
        dropped_keys, rowless = marks.keys(), sum(mark == ROWLESS for mark in marks.values())
        count = 0
        for file in delay_files.of(window):
            try:
                for keys, _ in file.open(store.path, ids).whole():
                    rows += len(keys)
                    count += len(dropped_keys & set(keys))
            except CorruptStore as error:
                wrong.append(str(error))
        dropped_rows += count
        # During a load, dropped keys may include some that were never in a file; they are removed with the others.
        if window not in delay_files.loading and not count == len(dropped_keys) == delay_files.drop_count(window):
            mismatches.append(
                f"{delay_files.drop_count(window)} counted, {len(dropped_keys)} there, {count} in files of {window}"
            )
        if rowless != delay_files.rowless(window):
            mismatches.append(f"{delay_files.rowless(window)} without rows counted, {rowless} there of {window}")
    what = _some(wrong) or f"{rows} messages in {len(delay_files.names())} files"
    checks.append(Check(f"{name}: delay files", not wrong, what))
    if not wrong:
        what = _some(mismatches) or f"{dropped_rows} cancelled or moved of them"
        checks.append(Check(f"{name}: dropped messages are in delay files", not mismatches, what))
    return not wrong and not mismatches


def _loader(replica: Replica) -> Callable[[], Awaitable[None]]:
    """A function that loads windows which the ledger has passed since the store was last flushed. It seals none."""
    lock, policy = asyncio.Lock(), TieringPolicy(rows=replica.entry.pending + 1)

    def clock() -> int:
        return max(wall_clock(), replica.ledger_time)

    keeper = TieringWorker(replica.shard, replica, lock, policy, clock, asyncio.Lock())

    async def load() -> None:
        await keeper.step()

    return load


def _verify_store(name: str, replica: Replica, progress: Callable[[str, int], None], checks: list[Check]) -> _ShardIds:
    store, entry = replica.store, replica.entry
    windows: dict[int, int] = {}
    pending = total = 0
    delivered: list[bytes] = []
    others: list[bytes] = []
    topics: set[bytes] = set()
    waiting_by_topic = Counter[bytes]()
    after = LOWEST
    while True:
        keys, rows = store.scan_all(after, HIGHEST, _PART, 64 << 20)
        if not keys:
            break
        after = keys[-1]
        waiting = [key for key in keys if key > entry.cursor]
        total = (total + checksum(waiting)) & (1 << 64) - 1
        pending += len(waiting)
        waiting_by_topic.update(count_topics(rows[len(rows) - len(waiting) :]))
        for key, row in zip(keys, rows, strict=True):
            topics.add(topic_of(row))
            id_ = id_of(row)
            if key > entry.cursor:
                start = window_of(read_key(key)[0])
                windows[start] = windows.get(start, 0) + 1
                others.append(id_)
            else:
                delivered.append(id_)
        progress(name, len(delivered) + len(others))
    store.check(LOWEST, 1 << 62)
    checks.append(_equal(f"{name}: pending rows", pending, entry.pending))
    checks.append(_equal(f"{name}: checksum of pending keys", f"{total:016x}", f"{entry.checksum:016x}"))
    window_counts = store.windows()
    wrong = {start for start in windows.keys() | window_counts.keys() if windows.get(start) != window_counts.get(start)}
    checks.append(Check(f"{name}: rows per 30-minute window", not wrong, _some(wrong) or f"{len(windows)} windows"))
    checks.append(_topics(name, store, waiting_by_topic))
    checks.append(_outcomes(name, entry))
    others += _verify_ended(name, replica, checks)
    _verify_links(name, store, checks)
    return _ShardIds(np.array(delivered, "S32"), np.array(others, "S32"), frozenset(map(bytes.decode, topics)))


def _topics(name: str, store: ShardStore, waiting: Mapping[bytes, int]) -> Check:
    what, counts = f"{name}: pending messages per topic", store.topic_counts
    if not counts.built:
        return Check(what, True, "not checked: they are not counted yet")
    wrong = [topic.decode() for topic, count in waiting.items() if counts.of(topic.decode()) != (count, 0)]
    wrong += [topic for topic in counts.listed() or () if topic.encode() not in waiting]
    return Check(what, not wrong, _some(wrong) or f"{len(waiting)} topics")


def _outcomes(name: str, entry: Entry) -> Check:
    outcomes = entry.outcomes
    good = (
        outcomes.accepted == outcomes.delivered + outcomes.cancelled + outcomes.dead + entry.pending
        and min(outcomes) >= 0
    )
    return Check(
        f"{name}: every accepted message has one outcome",
        good,
        f"{outcomes.accepted} accepted = {outcomes.delivered} delivered + {outcomes.cancelled} cancelled "
        f"+ {outcomes.dead} dead + {entry.pending} pending",
    )


def _verify_ended(name: str, replica: Replica, checks: list[Check]) -> list[bytes]:
    both: list[str] = []
    ids: list[bytes] = []
    for key, raw in replica.store.each(ENDED):
        ended = EndedMessage.decode(raw)
        if not ended.row:
            both.append(f"{key.hex()} (its row was never read)")
            continue
        id_ = id_of(ended.row)
        ids.append(id_)
        if replica.store.rows([key])[0] is not None:
            both.append(id_.decode())
    checks.append(Check(f"{name}: ended messages are nowhere else", not both, _some(both) or f"{len(ids)} ended"))
    return ids


def _verify_links(name: str, store: ShardStore, checks: list[Check]) -> None:
    """Check that moves and names lead to a message. A message is forgotten together with its moves and names."""
    broken: list[str] = []
    count = 0
    for prefix in (MOVED, NAME):
        for link, target in store.each(prefix):
            count += 1
            key = target[: len(LOWEST)]
            if prefix == NAME:
                key = store.current_keys([key])[0] or key
            if store.rows([key])[0] is None and store.endings([key])[0] is None:
                broken.append(link.hex() if prefix == MOVED else link.decode(errors="replace"))
    checks.append(Check(f"{name}: moves and names lead to a message", not broken, _some(broken) or f"{count} links"))


async def _verify_records(
    bus: Bus, shard_ids: list[_ShardIds], progress: Callable[[str, int], None], checks: list[Check]
) -> None:
    sent_ids: list[bytes] = []
    trimmed_topics: set[str] = set()
    for info in await bus.topics():
        if info.name in INTERNAL:
            continue
        if any(info.start_offsets):
            trimmed_topics.add(info.name)
        for partition in range(info.partitions):
            async for frame in _frames(bus, info.name, partition):
                record = unpack_record(frame)
                id_ = record.header("duemq-id")
                if id_ is not None and record.header("duemq-reason") is None:
                    sent_ids.append(id_)
            progress("records", len(sent_ids))
    unique, counts = np.unique(np.array(sent_ids, "S32"), return_counts=True)
    twice = unique[counts > 1]
    checks.append(Check("records: no message twice", not len(twice), _some(_text(twice)) or f"{len(unique)} messages"))
    wrong = np.concatenate([unique[np.isin(unique, ids.not_delivered)] for ids in shard_ids])
    what = "records: none of a message that is pending, cancelled or dead"
    checks.append(Check(what, not len(wrong), _some(_text(wrong)) or "none"))
    delivered_count = sum(len(ids.delivered) for ids in shard_ids)
    complete = "records: every delivered message is there"
    if trimmed_topics & {topic for ids in shard_ids for topic in ids.topics}:
        finding = f"not checked: old records of {_some(sorted(trimmed_topics))} were dropped"
        checks.append(Check(complete, True, finding))
        return
    lost_ids = np.concatenate([ids.delivered[~np.isin(ids.delivered, unique)] for ids in shard_ids])
    checks.append(Check(complete, not len(lost_ids), _some(_text(lost_ids)) or f"{delivered_count} delivered"))


async def _frames(bus: Bus, topic: str, partition: int) -> AsyncIterator[bytes]:
    offset = 0
    while records := await bus.read(topic, partition, offset, 5_000):
        for record in records:
            yield record.frame
        offset = records[-1].offset + 1


def _equal(what: str, actual: object, expected: object) -> Check:
    good = actual == expected
    return Check(what, good, f"{actual}" if good else f"{actual} found, the ledger says {expected}")


def _text(ids: Ids) -> list[str]:
    return [id_.decode() for id_ in ids.tolist()]


def _some(items: Iterable[object], limit: int = 5) -> str:
    """The first few faults, as a line of text; empty if there are none."""
    texts = list(items)
    more = f" and {len(texts) - limit} more" if len(texts) > limit else ""
    return ", ".join(map(str, texts[:limit])) + more
