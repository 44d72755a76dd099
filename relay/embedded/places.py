"""A destination's position in a topic of the server's own log: a cursor, and the ranges done after the cursor.

    cursor of the topic [. ranges of partition 0 . ranges of partition 1 ...]

In layout 1 of the log, API clients could read the stored position; they get only the cursor in it (`cursor_in`).
"""

from __future__ import annotations

from collections.abc import Sequence

from duemq.bus.base import TopicInfo
from duemq.bus.topic_cursor import MORE, cursor_in, decode_cursor, encode_cursor
from duemq.client.consumer.base import FetchPosition
from duemq.client.consumer.done_ranges import decode_ranges, encode_ranges

_MAX_CHARACTERS = 16 << 10  # for the ranges in one partition


def encode_places(topic: str, places: Sequence[FetchPosition]) -> bytes:
    """Encode a position in a topic. `places`: the positions in its partitions, in order."""
    cursor = encode_cursor(topic, [place.commit for place in places])
    if not any(place.done for place in places):
        return cursor.encode()
    texts = (encode_ranges(place.done, place.commit, _MAX_CHARACTERS) for place in places)
    return MORE.join((cursor, *texts)).encode()


def decode_places(stored: bytes, info: TopicInfo) -> list[FetchPosition]:
    """The positions in a topic's partitions. Raises Rejected `bad_cursor`."""
    offsets = decode_cursor(cursor_in(stored), info.name, info, "cursor")
    texts = stored.decode(errors="replace").split(MORE)[1:]
    texts += [""] * (len(offsets) - len(texts))
    return [
        FetchPosition(offset, offset, decode_ranges(text, offset)) for offset, text in zip(offsets, texts, strict=False)
    ]
