"""The gateway: it appends commands to the log, and reads their outcomes from the ledger.

It is the same for a node in the same process and for a proxy without a store; only the `Backend` differs.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial, wraps
from itertools import count, islice
from typing import Any, ParamSpec, TypeVar

from duemq.bus.base import AppendResults, Batches, Bus, Committer, PartlyAppended, TopicState
from duemq.bus.partitioner import partition_of
from duemq.cluster.backend import Backend
from duemq.cluster.figures import Figures, SealedWindow
from duemq.cluster.shards.paging import before, merge, start_of, write_cursor
from duemq.cluster.shards.shard_reader import MessageState, Query
from duemq.cluster.topics.internal_topics import BUFFER, IMPORTER, INTERNAL
from duemq.cluster.topics.topic_states import NOT_ASKED, UNKNOWN_TOPIC
from duemq.model.errors import DiskFull, DuemqError, Fenced, OutcomeUnknown, Rejected, RejectedNow, Unavailable
from duemq.model.log.ledger import Answer
from duemq.model.messages.ids import DIRECT
from duemq.model.messages.import_command import ImportCommand, import_frame, shard_of_content
from duemq.model.messages.message import Draft, Terms, schedule_frame
from duemq.model.messages.names import Name, shard_of_name
from duemq.model.messages.record import HEAD, Partition
from duemq.model.messages.row import direct_frame, system_headers
from duemq.model.readiness import Readiness
from duemq.model.timing import shown
from duemq.model.topics.rules import ID_CHARS
from duemq.proxy.gateway.base import ChangeOutcome, ImportStatus, MessagePage, OwnTopic, Receipt
from duemq.proxy.gateway.changes import MessageChanges, applied_in_time
from duemq.proxy.gateway.message_resolver import Address, MessageResolver, direct_checksum
from duemq.proxy.gateway.receipt_lookup import AppendedNames, ReceiptLookup
from duemq.proxy.gateway.shard_router import ByKey, ShardRouter
from duemq.storage.shard.records import PENDING, REJECTED, ImportRecord
from duemq.storage.shard.topic_counts import TopicCount

_MAX_BACKLOG = 50_000  # how many commands a shard may be behind before senders must wait
_IMPORT_ID = re.compile(r"(\d{1,5})-(\d{1,15})")  # shard and offset of the command

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _reading(read: Callable[_P, Coroutine[Any, Any, _T]]) -> Callable[_P, Coroutine[Any, Any, _T]]:
    """Make a read raise Unavailable instead of OutcomeUnknown: a failed read has changed nothing."""

    @wraps(read)
    async def call(*args: _P.args, **named: _P.kwargs) -> _T:
        try:
            return await read(*args, **named)
        except OutcomeUnknown as error:
            raise Unavailable(error.detail) from error

    return call


@dataclass
class _OutgoingBatch:
    """The frames that one call appends, by partition, and each sent draft's partition and place in that partition's
    list."""

    batches: dict[Partition, list[bytes]] = field(default_factory=dict)
    places: dict[int, tuple[Partition, int]] = field(default_factory=dict)
    direct_ids: dict[int, str] = field(default_factory=dict)

    def add(self, index: int, where: Partition, frame: bytes) -> None:
        batch = self.batches.setdefault(where, [])
        self.places[index] = where, len(batch)
        batch.append(frame)


class CommandGateway:
    """See `Gateway`. `answer_s`: how long a change waits for its answer. `selection`: how to choose a shard; by default
    by key."""

    def __init__(self, backend: Backend, selection: ShardRouter | None = None, answer_s: float = 2.0) -> None:
        self._backend, self._answer_s = backend, answer_s
        self._selection = selection or ByKey(backend.shards)
        self._addresses, self._names = MessageResolver(backend), ReceiptLookup(backend, answer_s)
        self._changes = MessageChanges(backend, self._addresses, partial(self._append, for_answer=True), answer_s)
        self._turn = count()
        # The numbers in ids of direct messages only need to differ. A first number below 2**40 leaves room to count up.
        self._unique = count(secrets.randbits(40))
        self._whole = asyncio.Lock()

    @property
    def bus(self) -> Bus:
        self._check()
        return self._backend.bus

    def why_not_ready(self) -> str | None:
        return self._backend.why_not_ready()

    def readiness(self) -> Readiness:
        return self._backend.readiness()

    def stuck(self) -> Mapping[int, float]:
        return self._backend.stuck()

    def _check(self) -> None:
        if (reason := self._backend.why_closed()) is not None:
            raise Unavailable(reason)

    async def _append(self, batches: Batches, *, for_answer: bool) -> AppendResults:
        """See `Bus.append`. Reports the result to `_selection`. Raises Unavailable if nothing was appended."""
        shards = [partition for topic, partition in batches if topic == BUFFER]
        for shard in shards if for_answer else ():
            with suppress(Unavailable):
                self._backend.progress(shard).call()
        started = time.perf_counter()
        try:
            results = await self._backend.bus.append(batches, for_answer=for_answer)
        except Unavailable as error:
            failed = error.failures if isinstance(error, PartlyAppended) else batches
            for topic, partition in failed:
                if topic == BUFFER:
                    self._selection.failed(partition)
            if isinstance(error, DiskFull):  # the write itself raised it
                raise OutcomeUnknown(f"it may or may not be in the log: {error.detail}") from error
            raise
        spent = time.perf_counter() - started
        for shard in shards:
            self._selection.measured(shard, spent)
        return results

    async def _append_parts(
        self, batches: Batches, *, for_answer: bool
    ) -> tuple[AppendResults, dict[Partition, Rejected]]:
        """Append, and return the parts that were appended and why those for other partitions failed. Raises the error
        if all parts failed with it."""
        try:
            return await self._append(batches, for_answer=for_answer), {}
        except PartlyAppended as error:
            return error.results, {where: _as_rejection(failure) for where, failure in error.failures.items()}

    # --- sending --------------------------------------------------------------------------------------------------

    async def send(self, drafts: Sequence[Draft]) -> list[Receipt | Rejected]:
        self._check()
        self._backend.refuse()
        refused, state_of = await self._refused(drafts)
        now, at_once = self._backend.clock(), self._backend.delivering()
        outgoing = self._outgoing(drafts, refused, state_of, now, at_once)
        if not outgoing.batches:
            return list(refused.values())
        results, failures = await self._append_parts(outgoing.batches, for_answer=any(draft.name for draft in drafts))
        if direct := sum(outgoing.places[index][0] in results for index in outgoing.direct_ids):
            self._backend.count_direct(direct)
        answers: list[Receipt | Rejected] = []
        named: dict[int, AppendedNames] = {}
        issue = self._backend.ids.issue
        for index, draft in enumerate(drafts):
            if index in refused:
                answers.append(refused[index])
            elif (failure := failures.get(outgoing.places[index][0])) is not None:
                answers.append(failure)
            elif index in outgoing.direct_ids:
                answers.append(Receipt(outgoing.direct_ids[index], "delivered", draft.topic, at_once))
            else:
                where, position = outgoing.places[index]
                due, offset = now if draft.due is None else draft.due, results[where].offset(position)
                receipt = Receipt(issue(where[1], due, offset), "scheduled", draft.topic, due)
                answers.append(receipt)
                if draft.name:
                    named[index] = AppendedNames(draft, receipt, where[1], offset)
        if named:
            for index, answer in zip(named, await self._names.resolve(list(named.values())), strict=True):
                answers[index] = answer
        for where in results:
            if where[0] == BUFFER:
                await self._hold_up(where[1], results[where].first_offset)
        return answers

    async def _refused(self, drafts: Sequence[Draft]) -> tuple[dict[int, Rejected], dict[str, TopicState]]:
        """The drafts that their topics would refuse, by index, and the states of the other topics."""
        topic_states = self._backend.topic_states
        topics = {draft.topic for draft in drafts}
        by_topic = await topic_states.resolve(topics - INTERNAL)
        wrong = {topic: _wrong_topic(topic, *topic_states.why_not(topic)) for topic in topics if topic not in by_topic}
        refused: dict[int, Rejected] = {}
        if not wrong and not any(
            about.max_frame_bytes or about.needs_key or about.trouble for about in by_topic.values()
        ):
            return refused, by_topic
        for index, draft in enumerate(drafts):
            reason = wrong.get(draft.topic) or _unfit(draft, by_topic[draft.topic])
            if reason is not None:
                refused[index] = reason
        return refused, by_topic

    def _outgoing(
        self,
        drafts: Sequence[Draft],
        refused: dict[int, Rejected],
        state_of: Mapping[str, TopicState],
        now: int,
        at_once: int,
    ) -> _OutgoingBatch:
        """What to append for these drafts. `now`: the due time of messages without delay that go through a shard;
        `at_once`: that of all other messages without delay. Drafts that a shard refuses are added to `refused`."""
        ids, shards = self._backend.ids, self._backend.shards
        selection, turn = self._selection, next(self._turn)
        together: int | None = None  # one shard for all messages that may go to any, so that they form one batch
        outgoing, pick = _OutgoingBatch(), self._picker()
        why_shard_refuses = cache(self._why_shard_refuses)  # computed once per call, not per message
        for index, draft in enumerate(drafts):
            if index in refused:
                continue
            if draft.name:
                shard = shard_of_name(draft.name, shards)
            elif draft.due is None:
                id_ = ids.issue_bytes(DIRECT, at_once, next(self._unique), direct_checksum(draft.topic))
                outgoing.direct_ids[index] = id_.decode()
                partition = _partition_for(draft.key, state_of[draft.topic], turn)
                outgoing.add(index, (draft.topic, partition), direct_frame(draft, id_, at_once))
                continue
            elif draft.key is not None and selection.ordered:
                shard = selection.pick(draft.key)
            else:
                if together is None:
                    together = pick()
                shard = together
            if (why := why_shard_refuses(shard, bool(draft.name))) is not None:
                refused[index] = why
                continue
            outgoing.add(index, (BUFFER, shard), schedule_frame(draft, now if draft.due is None else draft.due))
        return outgoing

    def _picker(self) -> Callable[[], int]:
        """A function that chooses a shard for messages that may go to any: one that accepts them and answers, if
        possible."""
        shards, about = self._backend.shards, self._backend.bus.topic_state(BUFFER)
        closed = about.trouble if about is not None else {}

        def pick() -> int:
            for _ in range(shards):
                shard = self._selection.pick()
                if shard not in closed and self._why_shard_refuses(shard, True) is None:
                    break
            return shard

        return pick

    def _why_shard_refuses(self, shard: int, named: bool) -> Rejected | None:
        """Why a shard refuses a message; for a `named` message also why the shard does not answer. None if it accepts
        the message."""
        reason = self._backend.why_shard_refuses(shard)
        if reason is None and named:
            try:
                self._backend.progress(shard).check()
            except Unavailable as error:
                reason = error.detail
        return None if reason is None else Rejected(Unavailable.code, reason)

    async def named(self, names: Sequence[tuple[Name, bytes]]) -> list[Receipt | None]:
        self._check()
        try:
            return await self._names.look_up(names)
        except Unavailable as error:
            raise OutcomeUnknown(f"whether this name is new cannot be looked up: {error.detail}") from error

    async def _hold_up(self, shard: int, offset: int) -> None:
        """Back-pressure: slow a sender down to the shard's speed."""
        with suppress(Unavailable):  # the messages are already accepted, even if the shard fails now
            progress = self._backend.progress(shard)
            if offset - progress.applied > _MAX_BACKLOG:
                await progress.wait_until_applied(offset - _MAX_BACKLOG, self._answer_s)

    # --- reading --------------------------------------------------------------------------------------------------

    @_reading
    async def state(self, ref: str, caller: str = "") -> MessageState | None:
        self._check()
        target = await self._addresses.find(ref, caller)
        if not isinstance(target, Address):
            return target
        # A read must see all earlier answers, so the replica must have caught up with them.
        offset = max(target.offset, self._backend.progress(target.shard).applied - 1)
        return await self._backend.reader.state(target.shard, target.first_key, offset)

    @_reading
    async def topics_of(self, refs: Sequence[str], caller: str = "") -> dict[str, OwnTopic]:
        self._check()
        unique = list(dict.fromkeys(refs))
        known: dict[str, OwnTopic] = {}
        by_shard: dict[int, list[tuple[str, Address]]] = {}
        for ref, target in zip(unique, await self._addresses.find_each(unique, caller), strict=True):
            if isinstance(target, Address):
                by_shard.setdefault(target.shard, []).append((ref, target))
            elif target is not None:
                known[ref] = OwnTopic(target.id, target.topic)
        for shard, places in by_shard.items():
            offset = max(self._backend.progress(shard).applied - 1, *(address.offset for _, address in places))
            first_keys = [address.first_key for _, address in places]
            for (ref, address), topic in zip(
                places, await self._backend.reader.topics(shard, first_keys, offset), strict=True
            ):
                if topic is not None:
                    known[ref] = OwnTopic(address.id, topic)
        return known

    @_reading
    async def find(self, query: Query) -> MessagePage:
        self._check()
        key, last_shard = start_of(query)
        shards: Sequence[int] = range(self._backend.shards)
        if query.shard is not None:
            if query.shard not in shards:
                raise Rejected("bad_query", f"shard is 0 to {len(shards) - 1} here, not {query.shard}", "shard")
            shards = (query.shard,)
        # A cursor identifies a shard by its place among the queried shards.
        after = {
            shard: key if place <= last_shard or query.cursor is None else before(key)
            for place, shard in enumerate(shards)
        }
        parts = await self._backend.reader.search(query, after)
        messages, position = merge([parts[shard] for shard in shards], query.limit)
        return MessagePage(messages, None if position is None else write_cursor(*position))

    async def pending(self, topic: str) -> TopicCount | None:
        try:
            self._check()
            counts = await asyncio.gather(
                *(self._backend.reader.topic_count(shard, topic) for shard in range(self._backend.shards))
            )
        except Unavailable:
            return None
        known = [count for count in counts if count is not None]
        if len(known) < len(counts):
            return None
        return TopicCount(sum(count.pending for count in known), sum(count.unread for count in known))

    # --- changing -------------------------------------------------------------------------------------------------

    async def change(
        self,
        kind: int,
        refs: Sequence[str],
        due: int | Sequence[int] = 0,
        *,
        times: bool = False,
        terms: Terms | None = None,
        by: str = "",
    ) -> list[ChangeOutcome]:
        self._check()
        return await self._changes.make(kind, refs, due, times=times, terms=terms, by=by)

    # --- importing files -------------------------------------------------------------------------------------------

    async def import_file(self, import_command: ImportCommand) -> ImportStatus:
        self._check()
        self._backend.refuse()
        shard = shard_of_content(import_command.sha256, self._backend.shards)
        progress = self._backend.progress(shard)
        progress.check()
        results = await self._append({(BUFFER, shard): [import_frame(import_command)]}, for_answer=True)
        offset = results[BUFFER, shard].first_offset
        id_ = f"{shard}-{offset}"
        if not await applied_in_time(progress, offset, self._answer_s) or (answered := progress.answer(offset)) is None:
            return ImportStatus(id_, shard, None)
        if answered.answer is Answer.FILE_PENDING:
            return ImportStatus(id_, shard, ImportRecord(offset, import_command, PENDING, answered.at))
        try:
            first = await self._backend.reader.import_of(shard, import_command.sha256, offset)
        except Unavailable as error:
            detail = f"this file was submitted before; no node could say whether it was imported: {error.detail}"
            raise OutcomeUnknown(detail) from error
        return (
            ImportStatus(id_, shard, None)
            if first is None
            else ImportStatus(f"{shard}-{first.offset}", shard, first, True)
        )

    async def import_files(self, import_commands: Sequence[ImportCommand]) -> list[ImportStatus]:
        self._check()
        self._backend.refuse()
        batches: dict[Partition, list[bytes]] = {}
        places: list[tuple[int, int]] = []  # shard, and position in its batch
        for import_command in import_commands:
            shard = shard_of_content(import_command.sha256, self._backend.shards)
            batch = batches.setdefault((BUFFER, shard), [])
            places.append((shard, len(batch)))
            batch.append(import_frame(import_command))
        progress = {shard: self._backend.progress(shard) for _, shard in batches}
        results = await self._append_whole(batches)
        offsets = [results[BUFFER, shard].offset(position) for shard, position in places]
        lasts: dict[int, int] = dict(zip((shard for shard, _ in places), offsets, strict=True))
        reached = await asyncio.gather(
            *(applied_in_time(progress[shard], last, self._answer_s) for shard, last in lasts.items())
        )
        records: dict[int, dict[str, ImportRecord]] = {shard: {} for shard in lasts}
        others: set[int] = set()
        for import_command, (shard, _), offset in zip(import_commands, places, offsets, strict=True):
            answered = progress[shard].answer(offset)
            if answered is not None and answered.answer is Answer.FILE_PENDING:
                record = ImportRecord(offset, import_command, PENDING, answered.at)
                records[shard][import_command.sha256] = record
            else:
                others.add(shard)  # the file was submitted before, so its record is among all of the shard's files
        with suppress(Unavailable):  # all commands are in the log: later requests can get their outcomes
            if all(reached):
                records |= {shard: await self._by_content(shard) for shard in others}
        return [
            self._import_task(import_command, shard, offset, records[shard])
            for import_command, (shard, _), offset in zip(import_commands, places, offsets, strict=True)
        ]

    async def _append_whole(self, batches: Batches) -> AppendResults:
        """Append everything or nothing. A plain append to a shared log guarantees that only per partition."""
        if not batches:
            return {}
        async with self._whole:
            try:
                committer = await self._committer()
                try:
                    return await committer.commit(batches)
                finally:
                    await committer.close()
            except Fenced as error:
                raise Unavailable("another proxy submitted files at the same time: nothing was accepted") from error
            except DiskFull as error:
                raise OutcomeUnknown(f"the files may or may not be in the log: {error.detail}") from error

    @_reading
    async def _committer(self) -> Committer:
        return await self._backend.bus.committer(IMPORTER, frozenset)  # the committer writes only to the buffer

    async def _by_content(self, shard: int) -> dict[str, ImportRecord]:
        """The imports of a shard that were not refused, by their files' SHA-256."""
        _, records = await self._backend.reader.imports(shard, None)
        return {one.import_command.sha256: one for one in records if one.state != REJECTED}

    def _import_task(
        self, import_command: ImportCommand, shard: int, offset: int, records: Mapping[str, ImportRecord]
    ) -> ImportStatus:
        first = records.get(import_command.sha256)
        if first is None:
            return ImportStatus(f"{shard}-{offset}", shard, None)
        return ImportStatus(f"{shard}-{first.offset}", shard, first, first.offset != offset)

    @_reading
    async def imported_ids(self, id_: str, first: int, most: int) -> bytes | None:
        status = await self.import_record(id_)
        if status is None:
            return None
        return await self._backend.reader.imported_ids(status.shard, int(id_.partition("-")[2]), first, most)

    @_reading
    async def imports(
        self, state: str | None = None, below: str = "", limit: int | None = None, after: str | None = None
    ) -> tuple[int, list[ImportStatus]]:
        self._check()
        if after is not None:
            page = await self._page_of_imports(state, below, limit, after)
            return len(page), page
        shards, reader = range(self._backend.shards), self._backend.reader
        parts = await asyncio.gather(*(reader.imports(shard, state, below, limit) for shard in shards))
        pairs = ((shard, one) for shard, (_, some) in zip(shards, parts, strict=True) for one in some)
        first = islice(pairs, limit)
        listed = [ImportStatus(f"{shard}-{one.offset}", shard, one) for shard, one in first]
        return sum(number for number, _ in parts), listed

    async def _page_of_imports(
        self, state: str | None, below: str, limit: int | None, after: str
    ) -> list[ImportStatus]:
        match = _IMPORT_ID.fullmatch(after or "0-0")
        if match is None:
            raise Rejected("bad_query", f"after must be the id of an import, not {shown(after)}", "after")
        shard, last = int(match[1]), int(match[2]) if after else -1
        page: list[ImportStatus] = []
        while shard < self._backend.shards and (limit is None or len(page) < limit):
            left = None if limit is None else limit - len(page)
            _, records = await self._backend.reader.imports(shard, state, below, left, last)
            page += [ImportStatus(f"{shard}-{one.offset}", shard, one) for one in records]
            shard, last = shard + 1, -1
        return page

    @_reading
    async def import_record(self, id_: str) -> ImportStatus | None:
        self._check()
        match = _IMPORT_ID.fullmatch(id_)
        if match is None or (shard := int(match[1])) >= self._backend.shards:
            return None
        command_offset = int(match[2])
        offset = max(command_offset, self._backend.progress(shard).applied - 1)
        bus = self._backend.bus
        if command_offset >= await bus.end_offset(BUFFER, shard):
            if command_offset >= await bus.sure_end(BUFFER, shard, committed=False):
                return None
            raise Unavailable(f"shard {shard} cannot be read as far as import {id_} now")
        record = await self._backend.reader.import_record(shard, command_offset, offset)
        return None if record is None else ImportStatus(id_, shard, record)

    # --- about the service ----------------------------------------------------------------------------------------

    def topic_lateness(self, topic: str) -> dict[str, Any]:
        return self._backend.lateness(topic)

    def trouble(self, topic: str) -> str | None:
        return self._backend.trouble(topic)

    def troubles(self) -> dict[str, str]:
        return self._backend.troubles()

    def cluster(self) -> dict[str, Any]:
        return self._backend.cluster()

    async def figures(self) -> Sequence[Figures]:
        return await self._backend.figures()

    async def sealed_windows(self, first: int, most: int) -> Sequence[SealedWindow]:
        return await self._backend.sealed_windows(first, most)

    async def drain(self, name: str) -> None:
        await self._backend.operator.drain(name)

    async def resume(self, name: str) -> None:
        await self._backend.operator.resume(name)


_ID, _DUE, _ATTEMPT = bytes(ID_CHARS), 10**13, 10**4


def _record_bytes(draft: Draft) -> int:
    """The largest size (bytes) of a message as a record, for any due time and number of attempts."""
    _, system = system_headers(_ID, _DUE, _ATTEMPT, "\n".join(draft.labels).encode())
    return HEAD.size + len(draft.key or b"") + len(system) + len(draft.headers) + len(draft.payload or b"")


def _as_rejection(error: DuemqError) -> Rejected:
    """The error as the answer for one message among others."""
    if isinstance(error, Rejected):
        return error
    return Rejected(error.code if isinstance(error, Unavailable) else Unavailable.code, str(error))


def _wrong_topic(topic: str, reason: str, detail: str) -> Rejected:
    if topic in INTERNAL:
        return Rejected("bad_topic", f"{topic} is one of duemq's own topics", "topic")
    if reason == "bad_topic":
        return Rejected("bad_topic", detail, "topic")
    if reason in NOT_ASKED:
        return Rejected("unavailable", f"topic {topic} is not known now: {detail}", "topic")
    more = "" if reason == UNKNOWN_TOPIC else f": {detail}"
    return RejectedNow("unknown_topic", f"there is no topic {topic}{more}", "topic")


def _unfit(draft: Draft, about: TopicState) -> Rejected | None:
    """Why a message's topic would refuse it now; None if it would not. This may change before the message is due."""
    topic, limit = draft.topic, about.max_frame_bytes
    if limit is not None and (size := _record_bytes(draft)) > limit:
        detail = f"the message has {size} bytes as a record, topic {topic} takes up to {limit}"
        return RejectedNow("payload_too_large", detail, "payload")
    if about.needs_key and draft.key is None:
        return RejectedNow("needs_key", f"topic {topic} is compacted and accepts only messages with a key", "key")
    if about.trouble and draft.due is None and not draft.name and _partition_for(draft.key, about, 0) in about.trouble:
        return Rejected("unavailable", f"topic {topic} accepts nothing now: {about.trouble_text}", "topic")
    return None


def _partition_for(key: bytes | None, about: TopicState, turn: int) -> int:
    """The partition for a message without delay. A message without a key avoids partitions that accept nothing now."""
    if key is not None:
        return partition_of(key, about.partitions)
    opened = [number for number in range(about.partitions) if number not in about.trouble] if about.trouble else ()
    return opened[turn % len(opened)] if opened else turn % about.partitions
