"""Does the work of a job on the records in a topic of dead letters, such as a consumer group's `dlq.GROUP`.

An entry is `PARTITION:OFFSET`. A redrive schedules the record again under a name made from its place, so that a shard
accepts it only once, whichever job sends it and however often.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Final

from duemq.bus.base import TopicInfo
from duemq.model.errors import LogFailed, OutcomeUnknown, Rejected, Unavailable
from duemq.model.log.job import Job, Order
from duemq.model.messages.dead_letters import (
    REDRIVEN_FROM,
    REDRIVEN_ID,
    REDRIVEN_ORIGIN,
    REDRIVES,
    LetterOrigin,
    first_place,
    id_of,
    labels_in,
    origin_of,
    own_headers,
    redrives_in,
)
from duemq.model.messages.message import Draft, is_topic
from duemq.model.messages.names import PURGES, fingerprint, of_redrive
from duemq.model.messages.record import Record, StoredRecord, pack_headers, unpack_record
from duemq.model.topics.rules import LABEL, MAX_LABELS
from duemq.proxy.gateway.base import Gateway, Receipt
from duemq.proxy.jobs.work import DONE, Outcome, PlanPage, dead_range

log = logging.getLogger(__name__)

_PAGE: Final = 1_000
_PART_BYTES: Final = 1 << 20  # size of the records redriven together; several such batches are in flight
_UNSURE: Final = frozenset((Unavailable.code, OutcomeUnknown.code))


class TopicWork:
    """See `JobWork`. `most_redrives`: how often a record may be redriven; 0: unlimited."""

    def __init__(self, gateway: Gateway, most_redrives: int) -> None:
        self._gateway, self._most_redrives = gateway, most_redrives

    async def plan(self, order: Order, created_at: int, cursor: str | None) -> PlanPage:
        """See `JobWork`. The cursor is the first entry to examine."""
        info = await source_of(self._gateway, order.source)
        partition, offset = (0, info.start_offsets[0]) if cursor is None else place_of(cursor)
        bus = self._gateway.bus
        if offset >= info.end_offsets[partition]:
            records: list[StoredRecord] = []
        else:
            records = await bus.read(order.source, partition, offset, _PAGE)
        matching = [
            f"{partition}:{record.offset}"
            for record in records
            if record.offset < info.end_offsets[partition] and _matches(record, order, created_at)
        ]
        reached = records[-1].offset + 1 if records else bus.reach(order.source, partition)
        if not records and reached < info.end_offsets[partition] and offset < info.end_offsets[partition]:
            raise Unavailable(f"partition {partition} of {order.source} cannot be read up to its end now")
        if records and reached < info.end_offsets[partition]:
            return PlanPage(matching, f"{partition}:{reached}")
        if partition + 1 == info.partitions:
            return PlanPage(matching, None)
        return PlanPage(matching, f"{partition + 1}:{info.start_offsets[partition + 1]}")

    async def do(self, job: Job, step: int, entries: Sequence[str]) -> list[Outcome | None]:
        places = [place_of(entry) for entry in entries]
        if job.order.kind == "purge":
            await self._mark(job)
            for partition in {partition for partition, _ in places}:
                last = max(offset for number, offset in places if number == partition)
                await self._gateway.bus.trim(job.order.source, partition, last + 1)
            return [DONE] * len(entries)
        outcomes: dict[tuple[int, int], Outcome | None] = dict.fromkeys(places, ("skipped", "unknown_message"))
        async with aclosing(self._read(job.order.source, places)) as parts:
            async for records in parts:
                drafts: dict[tuple[int, int], Draft] = {}
                for place, record in records:
                    if place not in outcomes:
                        continue
                    if "ids" not in job.order.filter and not _matches(record, job.order, job.created_at):
                        continue  # this is another record: the topic was recreated
                    draft = self._draft(job, place, record)
                    if isinstance(draft, Draft):
                        drafts[place] = draft
                    else:
                        outcomes[place] = draft
                receipts = await self._gateway.send(list(drafts.values())) if drafts else []
                outcomes.update(zip(drafts, map(_outcome, receipts), strict=True))
        return [outcomes[place] for place in places]

    async def _mark(self, job: Job) -> None:
        """Record a purge, so that an audit does not count the purged records as lost. If this fails, the purge goes
        ahead."""
        bus, source = self._gateway.bus, job.order.source
        try:
            known = await bus.get_consumer_cursor(source, PURGES)
            if known is None or int(known) < job.created_at:
                await bus.set_consumer_cursor(source, PURGES, b"%d" % job.created_at)
        except (LogFailed, Rejected, Unavailable) as error:
            log.warning("audits are not told of the purge of %s: %s", source, error, extra={"action": "purge"})

    async def _read(
        self, topic: str, places: Sequence[tuple[int, int]]
    ) -> AsyncGenerator[list[tuple[tuple[int, int], StoredRecord]], None]:
        """In each partition, the records from the first of these places to the last, a MiB at a time. Records that no
        longer exist are left out."""
        for partition in {partition for partition, _ in places}:
            offsets = sorted(offset for number, offset in places if number == partition)
            offset = offsets[0]
            while offset <= offsets[-1]:
                try:
                    most = offsets[-1] - offset + 1
                    records = await self._gateway.bus.read(topic, partition, offset, most, _PART_BYTES)
                except LogFailed:
                    records = []
                if not records:
                    if await self._ends_before(topic, partition, offset):
                        break
                    raise Unavailable(f"partition {partition} of {topic} cannot be read now")
                yield [((partition, record.offset), record) for record in records]
                offset = records[-1].offset + 1

    async def _ends_before(self, topic: str, partition: int, offset: int) -> bool:
        """Whether the topic has no records from this offset on: it was deleted or recreated, or they were dropped."""
        bus = self._gateway.bus
        info = await bus.topic(topic)
        if info is None or partition >= info.partitions:
            return True
        end = info.end_offsets[partition]
        if info.trouble or bus.reach(topic, partition) < end:
            return offset >= end and not info.trouble
        return not await bus.read(topic, partition, offset, 1)

    def _draft(self, job: Job, place: tuple[int, int], stored: StoredRecord) -> Draft | Outcome:
        """The message to schedule for a dead letter, or the outcome if there can be no such message."""
        order, record = job.order, unpack_record(stored.frame)
        origin, redrives = origin_of(record.headers), redrives_in(record.headers)
        topic = order.topic or (origin.topic if origin is not None else "")
        if not topic:
            return "failed", "no_origin"
        if not is_topic(topic.encode()):
            return "failed", "bad_topic"
        if self._most_redrives and redrives >= self._most_redrives:
            return "failed", "redrives_exhausted"
        whence = f"{order.source}/{place[0]}/{place[1]}"
        more = [(REDRIVES, b"%d" % (redrives + 1)), (REDRIVEN_FROM, whence.encode())]
        if id_ := id_of(record.headers):
            more.append((REDRIVEN_ID, id_.encode()))
            if first := first_place(record.headers):
                more.append((REDRIVEN_ORIGIN, first.encode()))
        count, headers = pack_headers([*own_headers(record.headers), *more])
        labels = [label for label in labels_in(record.headers) if LABEL.fullmatch(label)][:MAX_LABELS]
        return Draft(
            topic, record.value, key=record.key, header_count=count, headers=headers, labels=tuple(labels),
            name=of_redrive(f"{whence}/{stored.timestamp}"), fingerprint=fingerprint(job.id.encode()),
        )  # fmt: skip


def _outcome(receipt: Receipt | Rejected) -> Outcome | None:
    if isinstance(receipt, Receipt):
        return ("skipped", "already_redriven") if receipt.conflict else DONE
    return None if receipt.code in _UNSURE else ("failed", receipt.code)


def place_of(entry: str) -> tuple[int, int]:
    """The partition and offset in an entry."""
    partition, _, offset = entry.partition(":")
    return int(partition), int(offset)


async def source_of(gateway: Gateway, topic: str) -> TopicInfo:
    """The topic, whose records are dead letters. Raises Rejected `unknown_topic`, and Unavailable."""
    info = await gateway.bus.topic(topic)
    if info is None:
        raise Rejected("unknown_topic", f"there is no topic {topic}", "source")
    if info.trouble:
        raise Unavailable(f"topic {topic} cannot be read now: {info.trouble}")
    return info


def _matches(stored: StoredRecord, order: Order, created_at: int) -> bool:
    fields = order.filter
    since, until = dead_range(fields, created_at, judged=True)
    if not since <= stored.timestamp < until:
        return False
    if not fields.keys() & {"topic", "topic_prefix", "key", "reason"}:
        return True
    return _fits(unpack_record(stored.frame), fields)


def _fits(record: Record, fields: Mapping[str, str]) -> bool:
    origin, key, reason = origin_of(record.headers) or LetterOrigin("", ""), fields.get("key"), fields.get("reason")
    return (
        fields.get("topic", origin.topic) == origin.topic
        and origin.topic.startswith(fields.get("topic_prefix", ""))
        and (key is None or record.key == key.encode())
        and reason in (None, origin.reason)
    )
