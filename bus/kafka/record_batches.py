"""Converts between frames and batches of Kafka records. Frames are packed and unpacked for Kafka only here.

A frame that duemq created comes back byte for byte. In other programs' records, content that does not fit into a frame
is replaced or cut, so that no record stops a reader: bytes in a header name that are not UTF-8 become U+FFFD, names are
cut at 65,535 bytes, and if there are more headers than a frame allows, the first 65,000 are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import error as StructError
from typing import Any, NamedTuple

from aiokafka.errors import CorruptRecordException
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.control_record import ABORT_MARKER, ControlRecord
from aiokafka.record.memory_records import MemoryRecords

from duemq.bus.base import AppendResult
from duemq.bus.kafka.aiokafka_internals import BATCH_HEAD_BYTES, leniently
from duemq.model.messages.message import COMMAND_BODY, COMMAND_HEADER, MAX_HEADERS
from duemq.model.messages.record import HEAD, HEADER, StoredRecord, frame_of, no_value, pack_headers, unpack_headers

KafkaHeaders = list[tuple[str, bytes | None]]

_COMMAND = COMMAND_HEADER.decode()
_BARE = HEAD.pack(-1, 0, 0)
_HEAD_BYTES, _HEADER_BYTES = HEAD.size, HEADER.size
_COMMAND_AT = _HEAD_BYTES + _HEADER_BYTES
_NAME_BYTES = 0xFFFF


def to_kafka(frame: bytes) -> tuple[bytes | None, bytes | None, KafkaHeaders]:
    """A frame's key, value and headers."""
    key_bytes, count, header_bytes = HEAD.unpack_from(frame)
    if key_bytes < 0:
        start, end = _HEAD_BYTES, _HEAD_BYTES + header_bytes
        if count == 1 and frame[_COMMAND_AT:COMMAND_BODY] == COMMAND_HEADER:
            return None, frame[end:], [(_COMMAND, frame[COMMAND_BODY:end])]
        key = None
    else:
        start = _HEAD_BYTES + key_bytes
        key, end = frame[_HEAD_BYTES:start], start + header_bytes
    value = frame[end:] or no_value(frame, start, count, end)
    return key, value, list(unpack_headers(frame, start, count, end)) if count else []


def to_frame(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    if key is None:
        if not headers and value is not None:
            return _BARE + value
        if len(headers) == 1 and headers[0][0] == _COMMAND:
            envelope = headers[0][1] or b""  # in a command, the envelope marks what is null
            size = len(envelope)
            return b"".join((
                HEAD.pack(-1, 1, COMMAND_BODY - _HEAD_BYTES + size), HEADER.pack(len(COMMAND_HEADER), size),
                COMMAND_HEADER, envelope, value or b"",
            ))  # fmt: skip
    try:
        count, packed = pack_headers(headers)
        return frame_of(key, count, packed, value)
    except StructError:
        count, packed = pack_headers([(_cut(name), content) for name, content in headers[:MAX_HEADERS]])
        return frame_of(key, count, packed, value)


def _cut(name: str) -> str:
    return name.encode()[:_NAME_BYTES].decode(errors="ignore")


# Larger batches gain nothing, and a broker answers a batch only once it has received all of it.
_BATCH_BYTES = 1 << 20
_UNCOMPRESSED = 0


class RecordBatch(NamedTuple):
    """`start`: the position of the batch's first frame among all frames."""

    start: int
    builder: Any


def too_large(frames: Sequence[bytes], max_frame_bytes: int) -> int | None:
    """The size of the largest frame if it exceeds the topic's limit; otherwise None."""
    largest = max(map(len, frames), default=0)
    return largest if largest > max_frame_bytes else None


def refusal_of(topic: str, frames: Sequence[bytes], max_frame_bytes: int) -> str | None:
    """Why a topic does not accept these frames; None if it does."""
    size = too_large(frames, max_frame_bytes)
    return None if size is None else f"topic {topic!r} takes up to {max_frame_bytes} bytes a message, not {size}"


def batches_of(frames: Sequence[bytes], max_bytes: int, stamp: int, *, transactional: bool) -> list[RecordBatch]:
    """All frames, in order, in batches of at most `max_bytes`. The caller has checked that no frame exceeds this.

    `stamp`: the records' timestamp if the topic keeps the producer's time; it comes from the guarded clock. It is never
    a due time or the time of a wall clock that was stepped, because brokers refuse records that are more than an hour
    ahead of their clock.

    `send_batch` with these batches takes a third of the time that `send` takes for every message.
    """
    size = min(max_bytes, _BATCH_BYTES)
    batches: list[RecordBatch] = []
    position, count = 0, len(frames)
    while position < count:
        # This uses the inner C builder, so that BatchBuilder's extra work is done once, not once per frame.
        batch = BatchBuilder(size, _UNCOMPRESSED, is_transactional=transactional)
        append = batch._builder.append
        start = position
        while position < count:
            key, value, headers = to_kafka(frames[position])
            if append(position - start, stamp, key, value, headers) is None:
                break
            position += 1
        batch._relative_offset = position - start
        batch.close()
        batches.append(RecordBatch(start, batch))
    return batches


def append_result(positions: Sequence[tuple[int, int, int]], timestamp: int) -> AppendResult:
    """The result of an append, from (start, offset, timestamp) of each batch.

    `timestamp` is used if the topic keeps the producer's time.
    """
    _, first, stamp = positions[0]
    parts = tuple((start, offset) for start, offset, _ in positions[1:])
    return AppendResult(first, stamp if stamp >= 0 else timestamp, parts)


class DecodedRecords(NamedTuple):
    """The frames in a fetched answer, and the offset to fetch next: the one after all records in the answer, including
    aborted records and control records."""

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
