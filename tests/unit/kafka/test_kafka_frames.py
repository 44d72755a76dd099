"""Frames to Kafka's records and back, and what a frame cannot hold."""

from __future__ import annotations

from aiokafka.producer.message_accumulator import BatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from duemq.bus.base import AppendResult
from duemq.bus.kafka.fetch.runs import FrameRun, RunPart
from duemq.bus.kafka.record_batches import append_result, batches_of, decode, to_frame, to_kafka, too_large
from duemq.model.messages.message import CANCEL, MAX_HEADERS, Draft, change_frame, schedule_frame
from duemq.model.messages.record import Record, StoredRecord, pack_record, unpack_record

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
RECORDS = st.builds(
    pack_record, st.none() | st.binary(max_size=20), st.lists(st.tuples(NAMES, st.binary(max_size=30))), st.binary()
)


@given(RECORDS)
def test_frames_come_back_byte_for_byte(frame: bytes) -> None:
    key, value, headers = to_kafka(frame)
    assert to_frame(key, value, headers) == frame
    assert Record(key, tuple(headers), value) == unpack_record(frame)


def test_commands_come_back_as_commands() -> None:
    for frame in (schedule_frame(Draft("orders", b"payload", key=b"k"), 5), change_frame(CANCEL, bytes(20))):
        key, value, headers = to_kafka(frame)
        assert (key, [name for name, _ in headers]) == (None, ["duemq-command"])
        assert to_frame(key, value, headers) == frame


def test_what_a_frame_cannot_hold_is_replaced() -> None:
    long = "é" * 40_000
    frame = to_frame(None, None, [("empty", None), (long, b"1")] + [("many", b"")] * 70_000)
    record = unpack_record(frame)
    assert record.value is None
    assert len(record.headers) == MAX_HEADERS
    assert record.headers[:2] == (("empty", None), ("é" * 32_767, b"1"))
    assert unpack_record(to_frame(None, b"v", [("duemq-command", None)])).headers == (("duemq-command", b""),)


@given(st.lists(st.binary(max_size=400), min_size=1, max_size=60), st.integers(600, 3_000))
def test_batches_are_within_their_bound_and_hold_everything_in_order(payloads: list[bytes], bound: int) -> None:
    frames = [pack_record(None, (), payload) for payload in payloads]
    batches = batches_of(frames, bound, 1_700_000_000_000, transactional=False)
    found: list[bytes] = []
    landed = []
    for batch in batches:
        assert batch.start == len(found)
        raw = bytes(_built(batch.builder, base_offset=100 + len(found)))
        assert len(raw) <= bound
        landed.append((batch.start, 100 + len(found), -1))
        found += [record.frame for record in decode(raw, 0, []).records]
    assert found == frames
    where = append_result(landed, 7)
    assert [where.offset(position) for position in range(len(frames))] == list(range(100, 100 + len(frames)))
    assert where.timestamp == 7


def _built(builder: BatchBuilder, base_offset: int) -> bytearray:
    """The batch as the broker stores it: it gives the offset, which the checksum does not cover."""
    raw: bytearray = builder._build()
    raw[:8] = base_offset.to_bytes(8, "big")
    return raw


def test_where_the_frames_of_several_batches_landed() -> None:
    assert append_result([(0, 10, 5), (3, 40, 6)], 0) == AppendResult(10, 5, ((3, 40),))
    assert too_large([b"12345", b"1"], 4) == 5
    assert too_large([b"1234"], 4) is None


def chunk(first: int, end: int, *offsets: int) -> RunPart:
    return RunPart(first, end, [StoredRecord(offset, 0, b"0123456789") for offset in offsets], 10 * len(offsets))


def test_a_run_of_chunks_is_read_from_anywhere_and_dropped_from_its_start() -> None:
    run = FrameRun(5)
    for part in (chunk(5, 8, 5, 7), chunk(8, 10), chunk(10, 20, 12, 15, 16), chunk(20, 22)):
        run.add(part)

    def read(offset: int, most: int = 9) -> list[int]:
        return [record.offset for record in run.read(offset, most, 1 << 20)]

    assert (run.first, run.end) == (5, 22)
    assert (read(5), read(6), read(8), read(13, 1), read(17), read(22)) == (
        [5, 7, 12, 15, 16], [7, 12, 15, 16], [12, 15, 16], [15], [], [],
    )  # fmt: skip
    size = run.size
    assert (run.bytes_after(5), run.bytes_after(22)) == (size, 0)
    run.drop_before(9, size)
    assert run.first == 5
    run.drop_before(9, 0)
    assert (run.first, read(0 + run.first)) == (5, [5, 7, 12, 15, 16])
    run.drop_before(10, 0)
    assert (run.first, read(10)) == (10, [12, 15, 16])
    run.cut(15)
    assert (run.first, read(15)) == (15, [15, 16])
    run.cut(22)
    assert (run.first, run.end, run.size) == (22, 22, 0)
