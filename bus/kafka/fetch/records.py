"""Record batches as a broker sends them, to frames: committed ones only, and none that stops a reader."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from aiokafka.errors import CorruptRecordException
from aiokafka.record.control_record import ABORT_MARKER, ControlRecord
from aiokafka.record.memory_records import MemoryRecords

from duemq.bus.kafka.aiokafka_internals import BATCH_HEAD_BYTES, leniently
from duemq.bus.kafka.frames import to_frame
from duemq.model.messages.record import StoredRecord


class DecodedRecords(NamedTuple):
    """Frames of a fetch, and the offset the next one begins at: after all that was sent, aborted and control too."""

    records: list[StoredRecord]
    next_offset: int
    size: int


def decode(message_set: bytes, offset: int, aborted: Iterable[tuple[int, int]]) -> DecodedRecords:
    """The committed records from `offset` on. `aborted`: producer id and first offset of each aborted transaction.

    Raises CorruptRecordException for a batch whose checksum is wrong.
    """
    records: list[StoredRecord] = []
    waiting = sorted(aborted or (), key=lambda transaction: -transaction[1])
    dropping: set[int] = set()
    batches = MemoryRecords(message_set)
    at, size = 0, 0
    while batches.has_next():
        batch = batches.next_batch()
        length = int.from_bytes(message_set[at + 8 : at + BATCH_HEAD_BYTES], "big")
        raw = memoryview(message_set)[at : at + BATCH_HEAD_BYTES + length]
        at += len(raw)
        if not batch.validate_crc():
            raise CorruptRecordException(f"a batch at offset {offset} has a wrong checksum")
        if batch.producer_id is not None:
            while waiting and waiting[-1][1] <= batch.base_offset:
                dropping.add(waiting.pop()[0])
            if batch.is_control_batch and ControlRecord.parse(next(batch).key) == ABORT_MARKER:
                dropping.discard(batch.producer_id)
            if batch.is_control_batch or (batch.is_transactional and batch.producer_id in dropping):
                offset = batch.next_offset
                continue
        before = len(records)
        try:
            for record in batch:
                if record.offset >= offset:
                    frame = to_frame(record.key, record.value, record.headers)
                    records.append(StoredRecord(record.offset, record.timestamp, frame))
        except UnicodeDecodeError:
            del records[before:]
            records += (
                StoredRecord(record.offset, record.timestamp, to_frame(record.key, record.value, record.headers))
                for record in leniently(raw)
                if record.offset >= offset
            )
        offset = batch.next_offset
        size += len(raw)
    return DecodedRecords(records, offset, size)
