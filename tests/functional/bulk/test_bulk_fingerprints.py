"""What the audit goes by to tell a repeat under a name from another message: names and fingerprints of commands."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from duemq.model.messages.message import Draft, schedule_frame
from duemq.model.messages.names import Name, fingerprint, of_client
from duemq.model.messages.record import pack_headers, pack_record
from duemq.pipeline.logs.logs import commands
from tests.support.spark.log_frames import kafka_frame, record
from tests.support.spark.spark_site import spark_tests

pytestmark = spark_tests

DUE = 1_900_000_000_000


def read(spark: SparkSession, frames: list[bytes]) -> list[Any]:
    rows = [record("duemq.buffer", 0, offset, DUE - 9, frame) for offset, frame in enumerate(frames)]
    return list(commands(kafka_frame(spark, rows)).orderBy("offset").collect())


def test_own_commands_have_that_of_their_envelope(spark: SparkSession) -> None:
    count, headers = pack_headers([("h", b"1")])
    first = Draft("orders", b"x", name=of_client("a"), fingerprint=fingerprint(b"one"))
    drafts = [
        first, first._replace(payload=b"y", key=b"k", labels=("l",), header_count=count, headers=headers),
        first._replace(fingerprint=fingerprint(b"two")), Draft("orders", b"x"),
    ]  # fmt: skip
    one, same, other, none = (row.fingerprint for row in read(spark, [schedule_frame(each, DUE) for each in drafts]))
    assert one == same != other and None not in (one, other) and none is None


def test_records_of_plain_clients_have_that_of_headers_key_and_value(spark: SparkSession) -> None:
    named = (("duemq-topic", b"orders"), ("duemq-delay", b"1h"), ("duemq-name", b"a"))
    frames = [
        pack_record(b"k", named, b"v"), pack_record(b"k", named[::-1], b"v"), pack_record(b"k", named, b"w"),
        pack_record(b"l", named, b"v"), pack_record(b"k", named[:2], b"v"),
        pack_record(b"k", (("duemq-cancel", b"a"),), b"v"),
    ]  # fmt: skip
    one, same, value, key, unnamed, cancel = (row.fingerprint for row in read(spark, frames))
    assert one == same and len({one, value, key}) == 3 and None not in (one, value, key)
    assert unnamed is None and cancel is None


def test_names_that_are_no_text_stay_apart(spark: SparkSession) -> None:
    """A message with an idempotency key has a digest for its name."""
    digests = [bytes(range(128, 144)), bytes(range(144, 160)), b"\xff" * 16, b"0123456789abcdef"]
    names = [b"i:" + digest for digest in digests] + ["k:schlüssel".encode()]
    frames = [schedule_frame(Draft("orders", b"", name=Name(name), fingerprint=bytes(16)), DUE) for name in names]
    found = [row.name for row in read(spark, frames)]
    assert len(set(found)) == len(names), found
    assert found[3:] == ["i:0123456789abcdef", "k:schlüssel"] and found[0] == f"0x{names[0].hex().upper()}"
