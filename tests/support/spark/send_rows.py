"""Rows to send as commands, and the records as the server's own reader sees them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from pyspark.sql import Row

from duemq.model.messages.ids import IdCodec
from duemq.model.messages.message import read_schedule
from duemq.model.messages.plain import MalformedRecord, RecordPosition, command_of
from duemq.model.messages.record import pack_record
from duemq.model.messages.row import read_row, row_of
from tests.support.spark.bulk_rows import rows as bulk_rows

NOW = 1_830_000_000_000
IDS = IdCodec(bytes(range(32)))
_NAMES = [
    None, "", "a b", "é", "n" * 128, "n" * 129, "n\n", "A.Z_0:9-", "😀" * 50, "😀" * 51, "\x9f", "\x00", "k/1",
]  # fmt: skip
_SPACES = [" l", "l ", "\u00a0l", "l\u3000", "\u2003", "\u2028l", "l\u205f", "a b", "\u200bl"]
_TIMES = ["x-delay", "DELAY", "X-Delay", "delay", "x-delay2"]


def rows(count: int, seed: int = 1) -> list[tuple[Any, ...]]:
    """Those of `bulk_rows.py` with a name, and with what only records of plain clients must not have."""
    draw = random.Random(seed)
    made = []
    for number, (due, *others) in enumerate(bulk_rows(NOW - NOW % 1_800_000 + 1_800_000, count, seed)):
        topic, body, key, headers, labels, expires = others
        if draw.random() < 0.1:
            due = draw.choice([0, NOW - 9, NOW - 5, NOW - 7, 253_402_300_799_999, 2**62, -(2**62)])
        if headers and draw.random() < 0.2:
            headers = [(draw.choice(_TIMES), b"5"), *headers[1:]]
        if labels and draw.random() < 0.3:
            labels = [draw.choice(_SPACES), *labels[1:]]
        if draw.random() < 0.1:
            expires = draw.choice([NOW - 1, NOW, NOW + 1, NOW - 2, -1])
        name = draw.choice(_NAMES) if draw.random() < 0.2 else f"n-{seed}-{number}"
        made.append((due, topic, body, key, headers, labels, expires, name))
    return made


def meant(record: Row, shards: int) -> dict[str, Any] | MalformedRecord:
    """What the server reads in a row of Kafka's sink, in the partition that it names."""
    headers = [(one.key, bytes(one.value)) for one in record.headers]
    return read(record.key, headers, bytes(record.value), record.partition, shards)


def read(
    key: bytes | None, headers: Iterable[tuple[str, bytes]], value: bytes, shard: int = 0, shards: int | None = None
) -> dict[str, Any] | MalformedRecord:
    """What the server reads in a record that the log appended at `NOW`."""
    packed = None if key is None else bytes(key)
    command = command_of(pack_record(packed, tuple(headers), value), NOW, RecordPosition(shard, shards, IDS))
    if isinstance(command, MalformedRecord):
        return command
    assert isinstance(command, bytes)
    fields = read_schedule(command)
    assert fields is not None
    row = read_row(row_of(command, IDS.issue_bytes(0, fields.due, 1), fields))
    return {
        "topic": row.topic, "key": row.key, "payload": row.payload, "due": row.due, "labels": row.labels,
        "headers": tuple(row.headers), "expires": row.expires, "name": row.name.decode().removeprefix("n:"),
    }  # fmt: skip


def wished(row: tuple[Any, ...]) -> dict[str, Any]:
    """The expected result for a row of `rows`."""
    due, topic, body, key, headers, labels, expires, name = row
    return {
        "topic": topic, "key": None if key is None else key.encode(), "payload": body, "due": due,
        "labels": tuple(labels or ()), "headers": tuple(headers or ()), "expires": expires or 0, "name": name,
    }  # fmt: skip


def written_down(row: tuple[Any, ...]) -> dict[str, Any] | MalformedRecord:
    """The server's reading of a row that was written as a record without checking the rules."""
    one = wished(row)
    headers = [
        ("duemq-topic", one["topic"].encode()), ("duemq-deliver-at", str(one["due"]).encode()),
        *([] if one["name"] is None else [("duemq-name", one["name"].encode())]),
        *([("duemq-labels", ",".join(one["labels"]).encode())] if one["labels"] else []),
        *([] if row[6] is None else [("duemq-expires-at", str(row[6]).encode())]),
        *one["headers"],
    ]  # fmt: skip
    return read(one["key"], headers, one["payload"])
