"""Random rows for bulk schedule, most of them right, and the same rows as the server's rules see them."""

from __future__ import annotations

import random
from typing import Any

from pyspark.sql import types as T

from duemq.storage.limits import ImportLimits

LIMITS = ImportLimits(
    max_payload_bytes=40, max_headers=3, max_headers_bytes=60, max_key_bytes=9, topics=("or*", "x[!y]z")
)
SCHEMA = T.StructType([
    T.StructField("due", T.LongType()), T.StructField("topic", T.StringType()),
    T.StructField("body", T.BinaryType()), T.StructField("key", T.StringType()),
    T.StructField(
        "headers",
        T.ArrayType(T.StructType([T.StructField("name", T.StringType()), T.StructField("value", T.BinaryType())])),
    ),
    T.StructField("labels", T.ArrayType(T.StringType())), T.StructField("expires", T.LongType()),
])  # fmt: skip
Row = tuple[Any, ...]
_TOPICS = [
    "orders",
    "or.der_s-1",
    "xaz",
    "xyz",
    "or ders",
    "duemq.x",
    ".",
    "..",
    "",
    "o" * 10,
    "or" * 130,
    "or\n",
    "oré",
]
_NAMES = [
    "a",
    "trace-id",
    "",
    "duemq-x",
    "DueMQ-y",
    "n" * 256,
    "n" * 257,
    "é" * 20,
    "duemq",
    None,
    "😀" * 256,
    "b" * 30,
]
_LABELS = ["l", "a,b", "", "x\ny", "\x85", "l" * 128, "l" * 129, "😀" * 128, "😀" * 129, None, " ", "l\n", "\x7f", "é"]


def rows(window: int, count: int, seed: int = 1) -> list[Row]:
    """Rows due in one window: about half of them are wrong in something."""
    draw = random.Random(seed)

    def some(good: Any, *others: Any) -> Any:
        return draw.choice(others) if draw.random() < 0.1 else good

    def header() -> Any:
        value = some(b"v", None, b"", b"v" * 58)
        return some((some("h", *_NAMES), value), None)

    made = []
    for number in range(count):
        due = window + draw.randrange(1_800_000)
        made.append((
            some(due, None),
            some("orders", None, *_TOPICS),
            some(b"%d" % number, None, b"", b"p" * 40, b"p" * 41, "é".encode() * 20, b"\xff" * 40),
            some("k", None, "", "k" * 9, "k" * 10, "éééé", "ééééé"),
            some(None, [], [header() for _ in range(draw.randrange(1, 5))], [header()]),
            some(None, [], [some("l", *_LABELS) for _ in range(draw.randrange(1, 4))], ["l"] * 16, ["l"] * 17),
            some(None, due, due + 5, due - 1, 253_402_300_799_999, 253_402_300_800_000),
        ))  # fmt: skip
    return made
