from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.bus.embedded.chunk import MAX_BYTES, MAX_FRAMES, Chunk, cut, frames_from, pack_chunk, read_head, unpack_chunk
from duemq.bus.embedded.tail import FRAME_OVERHEAD_BYTES, RecentChunks, TailCache


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=30), st.integers(0, 2**40))
def test_a_chunk_comes_back_as_it_was(frames: list[bytes], first: int) -> None:
    chunk = Chunk(first, 1_700_000_000_000, 12_345, frames, sum(map(len, frames)))
    value = pack_chunk(chunk, list(map(len, frames)))
    assert unpack_chunk(first, value) == chunk
    assert read_head(value) == (len(frames), chunk.timestamp, chunk.position, chunk.size)


def test_every_flipped_bit_is_found() -> None:
    value = pack_chunk(Chunk(0, 1, 0, [b"one", b"", b"three"], 8), [3, 0, 5])
    for at in range(len(value) * 8):
        flipped = bytearray(value)
        flipped[at // 8] ^= 1 << at % 8
        with pytest.raises(ValueError, match="checksum"):
            unpack_chunk(0, bytes(flipped))
    with pytest.raises(ValueError, match="checksum"):
        unpack_chunk(0, value[:5])


@pytest.mark.parametrize(
    "lengths",
    [[300] * MAX_FRAMES, [300] * (MAX_FRAMES * 2 + 1), [MAX_BYTES], [MAX_BYTES + 1, 1, MAX_BYTES * 3, 0], [0] * 5_000],
)
def test_a_batch_is_cut_into_chunks_without_gap_or_repeat(lengths: list[int]) -> None:
    frames = [bytes(length) for length in lengths]
    first, position = 100, 7
    for chunk, sizes in cut(frames, lengths, first, 1, position):
        assert (chunk.first, chunk.position) == (first, position)
        assert sizes == list(map(len, chunk.frames)) == lengths[first - 100 : chunk.end - 100]
        assert 1 <= len(sizes) <= MAX_FRAMES
        assert chunk.size == sum(sizes)
        assert chunk.size <= MAX_BYTES or len(sizes) == 1
        first, position = chunk.end, position + chunk.size
    assert first == 100 + len(frames)


@given(
    st.lists(st.lists(st.binary(max_size=9), min_size=1, max_size=5), min_size=1, max_size=6),
    st.data(),
    st.integers(1, 30),
    st.integers(0, 80),
)
@pytest.mark.heavy
def test_take_gives_what_a_plain_loop_would(
    batches: list[list[bytes]], data: st.DataObject, max_records: int, max_bytes: int
) -> None:
    chunks, flat = [], [frame for batch in batches for frame in batch]
    first = 0
    for number, batch in enumerate(batches):
        chunks.append(Chunk(first, number, 0, batch, sum(map(len, batch))))
        first += len(batch)
    offset = data.draw(st.integers(0, len(flat) - 1))
    expected: list[tuple[int, bytes]] = []
    for at in range(offset, len(flat)):
        used = sum(len(frame) for _, frame in expected) + len(flat[at])
        if len(expected) == max_records or (expected and used > max_bytes):
            break
        expected.append((at, flat[at]))
    holding = [chunk for chunk in chunks if chunk.end > offset]
    assert [(each.offset, each.frame) for each in frames_from(holding, offset, max_records, max_bytes)] == expected


def test_the_tails_of_all_partitions_share_one_bound() -> None:
    size = 100
    held = size + FRAME_OVERHEAD_BYTES
    cache = TailCache(10 * held)
    one, two = RecentChunks(0), RecentChunks(50)
    for at in range(200):
        cache.add(one, Chunk(at, 1, 0, [bytes(size)], size))
    assert (one.first, two.first) == (190, 50)
    cache.add(two, Chunk(50, 1, 0, [bytes(size)] * 4, 4 * size))
    assert (one.first, two.first) == (194, 50)
    assert [chunk.first for chunk in one.chunks_from(197)] == [197, 198, 199]
    assert [chunk.first for chunk in two.chunks_from(53)] == [50]
    cache.add(two, Chunk(54, 1, 0, [bytes(20 * size)], 20 * size))
    assert (one.first, two.first) == (200, 55)
