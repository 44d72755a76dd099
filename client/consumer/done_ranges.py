"""Ranges of done messages that follow the first message that is not done. They are stored with a position. Pure.

A consumer that handles messages in any order may have finished thousands of messages after a slow one. Its position is
the offset of the slow one. Thanks to the ranges, the finished messages are not delivered again after a crash. Pulsar
stores such ranges for a subscription, too.

    text = base64url(deflate(pairs)), pair = gap before the range | its length; both LEB128; the first gap starts at the
    position
"""

from __future__ import annotations

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

Ranges = tuple[tuple[int, int], ...]
"""Half-open ranges of offsets, in ascending order."""

_MAX_BYTES = 256 << 10  # size limit for the decompressed pairs: a larger text was not written by `encode_ranges`


def done_ranges(undone: Iterable[int], end: int) -> Ranges:
    """The ranges of done offsets between the first undone offset and `end`. `undone`: the offsets below `end` that are
    not done, ascending."""
    return tuple((before + 1, after) for before, after in pairwise((*undone, end)) if after > before + 1)


def contains(ranges: Ranges, offset: int) -> bool:
    at = bisect_right(ranges, offset, key=lambda each: each[0])
    return at > 0 and offset < ranges[at - 1][1]


def behind(ranges: Ranges, offset: int) -> Ranges:
    """The parts of the ranges at or above an offset."""
    return tuple((max(start, offset), end) for start, end in ranges if end > offset)


def encode_ranges(ranges: Ranges, position: int, most: int) -> str:
    """Encode ranges as a text of up to `most` characters. The last ranges are left out if they do not fit."""
    while ranges:
        raw, at = bytearray(), position
        for start, end in ranges:
            _write(raw, start - at)
            _write(raw, end - start)
            at = end
        packer = zlib.compressobj(level=1, wbits=-zlib.MAX_WBITS)
        text = urlsafe_b64encode(packer.compress(raw) + packer.flush()).decode().rstrip("=")
        if len(text) <= most:
            return text
        ranges = ranges[: max(min(len(ranges) * most // len(text), len(ranges) - 1), 0)]
    return ""


def decode_ranges(text: str, position: int) -> Ranges:
    """Decode ranges. Empty if `encode_ranges` did not write the text: then no message counts as done, and they are
    delivered again."""
    try:
        unpacker = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
        numbers = _read(unpacker.decompress(urlsafe_b64decode(text + "=" * (-len(text) % 4)), _MAX_BYTES))
        if not unpacker.eof:
            return ()
        ranges, at = [], position
        for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
            ranges.append((at + gap, at := at + gap + length))
    except (ValueError, zlib.error):
        return ()
    return tuple(ranges)


def _write(raw: bytearray, number: int) -> None:
    while number > 127:
        raw.append(number & 127 | 128)
        number >>= 7
    raw.append(number)


def _read(raw: bytes) -> list[int]:
    """Decode LEB128 numbers. Raises ValueError."""
    numbers, number, shift = list[int](), 0, 0
    for byte in raw:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            numbers.append(number)
            number = shift = 0
        elif shift > 63:
            raise ValueError("a number is too large")
    if shift:
        raise ValueError("a number does not end")
    return numbers
