"""Record batches as a broker sends them, to frames: committed ones only, and none that stops a reader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from aiokafka.errors import CorruptRecordException
from aiokafka.record.control_record import ABORT_MARKER, ControlRecord
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import decode_varint

from duemq.bus.base import Stored
from duemq.bus.kafka.frames import to_frame

_HEAD_BYTES = 12  # base offset and length, before what the length counts


class Decoded(NamedTuple):
    """Frames of a fetch, and the offset the next one begins at: after all that was sent, aborted and control too."""

    records: list[Stored]
    next_offset: int
    size: int


def decode(message_set: bytes, offset: int, aborted: Iterable[tuple[int, int]]) -> Decoded:
    """The committed records from `offset` on. `aborted`: producer id and first offset of each aborted transaction.

    Raises CorruptRecordException for a batch whose checksum is wrong.
    """
    records: list[Stored] = []
    waiting = sorted(aborted or (), key=lambda transaction: -transaction[1])
    dropping: set[int] = set()
    batches = MemoryRecords(message_set)
    at, size = 0, 0
    while batches.has_next():
        batch = batches.next_batch()
        length = int.from_bytes(message_set[at + 8 : at + _HEAD_BYTES], "big")
        raw = memoryview(message_set)[at : at + _HEAD_BYTES + length]
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
                    records.append(Stored(record.offset, record.timestamp, frame))
        except UnicodeDecodeError:
            del records[before:]
            records += (record for record in _leniently(raw) if record.offset >= offset)
        offset = batch.next_offset
        size += len(raw)
    return Decoded(records, offset, size)


def _leniently(raw: memoryview) -> Iterator[Stored]:
    """The records of a batch with a header name that is not UTF-8, at which aiokafka's own parser stops.

    The layout is in aiokafka/record/default_records.py.
    """
    batch: Any = _DefaultRecordBatchPy(raw)
    batch._maybe_uncompress()
    body: bytearray = batch._buffer
    at: int = batch._pos

    def field() -> bytes | None:
        nonlocal at
        size, start = decode_varint(body, at)
        at = start + max(size, 0)
        return None if size < 0 else bytes(body[start:at])

    for _ in range(batch._num_records):
        size, start = decode_varint(body, at)
        since, at = decode_varint(body, start + 1)  # after the attributes, one byte
        step, at = decode_varint(body, at)
        key, value = field(), field()
        count, at = decode_varint(body, at)
        headers = [((field() or b"").decode(errors="replace"), field()) for _ in range(count)]
        at = start + size
        stamp = batch.max_timestamp if batch.timestamp_type else batch.first_timestamp + since
        yield Stored(batch.base_offset + step, stamp, to_frame(key, value, headers))
