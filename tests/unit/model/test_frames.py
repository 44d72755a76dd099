"""Frames are the same however the bytes arrive, and nothing malformed gets through."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.model.frames.frame import (
    HEAD,
    MAX_PAYLOAD,
    Frame,
    FrameError,
    FrameReader,
    pack,
    pack_request,
    request_of,
)

FRAMES = st.lists(st.builds(Frame, st.integers(0, 255), st.integers(0, 2**32 - 1), st.binary(max_size=40)), max_size=6)


@given(FRAMES, st.lists(st.integers(0, 400), max_size=8))
def test_frames_are_the_same_wherever_the_bytes_are_cut(frames: list[Frame], cuts: list[int]) -> None:
    data, reader, got = b"".join(pack(*frame) for frame in frames), FrameReader(), list[Frame]()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, stop in pairwise(edges):
        got += reader.feed(data[start:stop])
    assert got == frames
    assert reader.waiting_bytes == 0


@pytest.mark.parametrize("size", [0, HEAD.size - 5, MAX_PAYLOAD + 6, 2**32 - 1])
def test_a_size_out_of_bounds_is_refused_before_the_payload_comes(size: int) -> None:
    with pytest.raises(FrameError):
        FrameReader().feed(size.to_bytes(4) + bytes(5))


def test_a_frame_that_arrives_byte_by_byte_costs_no_copy_of_what_came_before() -> None:
    reader, data = FrameReader(), pack(1, 1, b"x" * MAX_PAYLOAD)
    frames = [frame for at in range(len(data)) for frame in reader.feed(data[at : at + 1])]
    assert [len(frame.payload) for frame in frames] == [MAX_PAYLOAD]


def test_a_request_has_a_line_and_headers_and_a_body() -> None:
    request = request_of(pack_request(b"PUT", b"/v1/messages/a%20b?x=1", [(b"If-None-Match", b"*")], b"{}\n\n"))
    assert request == ("PUT", b"/v1/messages/a%20b?x=1", [(b"if-none-match", b"*")], b"{}\n\n")


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"GET /", b"GET /\n", b"get /\n\n", b"GET x\n\n", b"GET  /\n\n", b" /\n\n", b"GET /\nno colon\n\n",
        b"GET /\nx y: z\n\n", b"GET /\nx: a\x00b\n\n", b"GET /\r\nx: y\r\n\r\n", b"GET /\n: y\n\n",
    ],
)  # fmt: skip
def test_a_malformed_request_is_refused(payload: bytes) -> None:
    with pytest.raises(FrameError):
        request_of(payload)
