"""Frames into record batches, each of a size that its topic takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from aiokafka.producer.message_accumulator import BatchBuilder

from duemq.bus.base import AppendResult
from duemq.bus.kafka.frames import to_kafka

# Larger batches gain nothing, and a broker answers for a batch only once it has all of it.
_BATCH_BYTES = 1 << 20
_UNCOMPRESSED = 0


class RecordBatch(NamedTuple):
    """`start`: the position of its first frame among all of them."""

    start: int
    builder: Any


def too_large(frames: Sequence[bytes], max_frame_bytes: int) -> int | None:
    """The size of the largest frame, if a topic that takes so many bytes does not take it."""
    largest = max(map(len, frames), default=0)
    return largest if largest > max_frame_bytes else None


def refusal_of(topic: str, frames: Sequence[bytes], max_frame_bytes: int) -> str | None:
    """Why a topic does not take these frames, None if it does."""
    size = too_large(frames, max_frame_bytes)
    return None if size is None else f"topic {topic!r} takes up to {max_frame_bytes} bytes a message, not {size}"


def batches_of(frames: Sequence[bytes], max_bytes: int, stamp: int, *, transactional: bool) -> list[RecordBatch]:
    """All frames, in order. None of them is larger than `max_bytes`, which bounds a batch: that was looked at before.

    `stamp`: the records' time where the topic keeps the producer's, by the guarded clock. It is never a due time, nor
    that of a wall clock that was stepped: brokers refuse what is more than an hour ahead of theirs.

    `send_batch` with these in place of `send` for every message is a third of the work.
    """
    size = min(max_bytes, _BATCH_BYTES)
    batches: list[RecordBatch] = []
    position, count = 0, len(frames)
    while position < count:
        # The builder inside is the one of C: what BatchBuilder does around it is done once here, not once per frame.
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
    """The result of an append by (start, offset, timestamp) of each batch.

    `timestamp`: counts where the topic keeps the producer's.
    """
    _, first, stamp = positions[0]
    parts = tuple((start, offset) for start, offset, _ in positions[1:])
    return AppendResult(first, stamp if stamp >= 0 else timestamp, parts)
