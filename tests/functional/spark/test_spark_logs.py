"""duemq's topics as DataFrames: what the product writes is read back as what it meant."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from pyspark.sql import DataFrame, SparkSession

from duemq.bus.kafka.options import KafkaOptions
from duemq.dev.kafka.kafka import KafkaServers
from duemq.model.errors import BadConfig, Unavailable
from duemq.model.log.ledger import Answer, DeferredMessage, Entry, FileDecision, OutcomeCounts
from duemq.model.messages.ids import DIRECT, IdCodec
from duemq.model.messages.import_command import ImportCommand, import_frame
from duemq.model.messages.key import KEY, last_key_at, make_key
from duemq.model.messages.message import (
    CANCEL,
    COMMAND_BODY,
    DELIVER_NOW,
    MOVE,
    PURGE,
    REDRIVE,
    Draft,
    Terms,
    change_frame,
    read_change,
    read_schedule,
    schedule_frame,
)
from duemq.model.messages.names import NO_NAME, Name, of_client
from duemq.model.messages.plain import dead_letter
from duemq.model.messages.record import HEAD, HEADER, Header, pack_headers, pack_record, shorten
from duemq.model.messages.row import change_row, dead_frame, direct_frame, frame_in, row_of
from duemq.pipeline.errors import BadInput
from duemq.pipeline.logs.kafka import configured, reading
from duemq.pipeline.logs.logs import commands, dead_letters, deliveries, entries, read_topics
from duemq.pipeline.logs.ranges import Logs
from tests.support.consumer.consumer_site import new_topic, send
from tests.support.spark.log_frames import kafka_frame, record
from tests.support.spark.spark_site import spark_tests

pytestmark = spark_tests

NOW = 1_800_000_000_000
IDS = IdCodec(bytes(range(32)))


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.collect()]


def test_schedules_of_every_shape(spark: SparkSession) -> None:
    chosen = random.Random(7)
    drafts = []
    for n in range(200):
        headers = pack_headers([(f"h{i}", bytes(i)) for i in range(chosen.randrange(4))])
        drafts.append(Draft(
            topic=chosen.choice(("orders", "a.b_c-d", "x" * 249)), payload=chosen.randbytes(chosen.randrange(50)),
            due=chosen.choice((0, NOW + n, 253_402_300_799_999)), key=chosen.choice((None, b"", b"key")),
            header_count=headers[0], headers=headers[1], labels=chosen.choice(((), ("a", "b"), ("ü",))),
            expires=chosen.choice((0, NOW + 10_000)),
            name=chosen.choice((NO_NAME, of_client("order-1"), Name("k:schlüssel".encode()))), fingerprint=bytes(16),
        ))  # fmt: skip
    records = [
        record("duemq.buffer", n % 3, n, NOW + n, schedule_frame(draft, draft.due or 0))
        for n, draft in enumerate(drafts)
    ]
    found = sorted(rows_of(commands(kafka_frame(spark, records))), key=lambda row: row["offset"])
    assert [(row["shard"], row["offset"], row["at"], row["kind"], row["plain"]) for row in found] == [
        (n % 3, n, NOW + n, "schedule", False) for n in range(200)
    ]
    assert [(row["topic"], row["due"], row["expires"], row["name"]) for row in found] == [
        (draft.topic, draft.due, draft.expires, draft.name.decode() or None) for draft in drafts
    ]
    contents = {draft.payload: row["content"] for draft, row in zip(drafts, found, strict=True)}
    assert len(set(contents.values())) == len(contents)
    assert all(row["first_offset"] is None and row["path"] is None for row in found)


def test_envelopes_are_sound_by_the_rules_of_the_server(spark: SparkSession) -> None:
    """Of spoilt ones as well: Spark's expressions and the server's own reader call the same ones sound."""
    chosen = random.Random(11)
    sound = []
    for n in range(40):
        packed = pack_headers([(f"h{i}", bytes(i)) for i in range(n % 4)])
        draft = Draft(
            "orders", b"p", NOW + n, (None, b"", b"key")[n % 3], packed[0], packed[1], (("a",), ())[n % 2], n % 2 * NOW,
            (NO_NAME, of_client("x"))[n % 2], bytes(16),
        )  # fmt: skip
        sound.append(schedule_frame(draft, NOW + n))
        sound.append(change_frame(CANCEL + n % 4, make_key(NOW, n, 0), NOW))
    frames = list(sound)
    for frame in sound:
        for _ in range(12):
            at = chosen.randrange(COMMAND_BODY, len(frame))
            spoilt = bytearray(frame)
            spoilt[at] = chosen.choice((0, 1, 255, spoilt[at] ^ 1, spoilt[at] ^ 128))
            frames.append(bytes(spoilt))
        size = HEAD.size + int.from_bytes(frame[6:10], "big")
        cut = frame[: size - 1]
        frames.append(HEAD.pack(-1, 1, size - 1 - HEAD.size) + HEADER.pack(13, size - 1 - COMMAND_BODY) + cut[16:])
    rows = [record("b", 0, n, NOW, frame) for n, frame in enumerate(frames)]
    found = commands(kafka_frame(spark, rows)).where("not plain").select("offset", "kind").collect()
    kinds = {CANCEL: "cancel", MOVE: "move", DELIVER_NOW: "deliver_now", REDRIVE: "redrive", PURGE: "purge"}

    def kind(frame: bytes) -> str:
        if (change := read_change(frame)) is not None:
            return kinds[change.kind]
        return "malformed" if read_schedule(frame) is None else "schedule"

    assert {row.offset: row.kind for row in found} == {n: kind(frame) for n, frame in enumerate(frames)}
    assert len({kind(frame) for frame in frames}) == 6 and len(found) > 1_000


def test_what_goes_with_a_payload_is_the_same_of_a_command_and_its_record(spark: SparkSession) -> None:
    drafts = []
    for key in (None, b"", b"key", b"ke"):
        for labels in ((), ("a",), ("ü", "b c"), ("y",)):
            for own in ((), (("a", b"1"),), (("a", b"1"), ("a", b"")), (("", b"\xff" * 300),), (("y", b""),)):
                packed = pack_headers(own)
                drafts.append(Draft("orders", b"p", NOW, key, packed[0], packed[1], labels))
    nulls: list[tuple[list[Header], bytes | None]] = [
        ([("a", None)], b"p"), ([("a", b""), ("b", None)], b"p"), ([("a", None), ("b", None)], b""),
        ([("a", None), ("b", b"\xff\xff")], None), ([("a", b"")], None), ([], None),
    ]  # fmt: skip
    for pairs, payload in nulls:
        packed = pack_headers(pairs)
        drafts.append(Draft("orders", payload, NOW, b"null", packed[0], packed[1], ()))
    schedules = [schedule_frame(draft, NOW) for draft in drafts]
    sent = commands(kafka_frame(spark, [record("b", 0, n, NOW, one) for n, one in enumerate(schedules)]))
    shown = [frame_in(row_of(one, IDS.issue_bytes(0, NOW, n))) for n, one in enumerate(schedules)]
    seen = deliveries(kafka_frame(spark, [record("orders", 0, n, NOW, one) for n, one in enumerate(shown)]))
    expected = {row.offset: row.metadata for row in sent.collect()}
    assert {row.offset: row.metadata for row in seen.collect()} == expected
    assert len(set(expected.values())) == len(drafts) and None not in expected.values()
    plain = pack_record(
        b"key",
        (("duemq-topic", b"orders"), ("a", b"1"), ("duemq-delay", b"1s"), ("duemq-labels", b"a"), ("a", b"")),
        b"",
    )
    when: list[Header] = [("duemq-topic", b"orders"), ("duemq-delay", b"1s")]
    of_nulls = [pack_record(b"null", [*when, *pairs], payload) for pairs, payload in nulls]
    rows = [record("b", 0, n, NOW, one) for n, one in enumerate((plain, *of_nulls))]
    told, *told_nulls = commands(kafka_frame(spark, rows)).orderBy("offset").collect()
    assert [row.metadata for row in told_nulls] == [expected[n] for n in range(len(drafts) - len(nulls), len(drafts))]
    packed = pack_headers((("a", b"1"), ("a", b"")))
    of = next(n for n, one in enumerate(drafts) if (one.key, one.labels, one.headers) == (b"key", ("a",), packed[1]))
    assert told.metadata == expected[of]


def test_a_record_whose_command_is_null_is_malformed(spark: SparkSession) -> None:
    rows = [(None, None, "b", 0, 0, datetime.now(UTC), 1, [("duemq-command", None)]),
            (None, b"x", "b", 0, 1, datetime.now(UTC), 1, None)]  # fmt: skip
    found = rows_of(commands(kafka_frame(spark, rows)))
    assert [(row["kind"], row["plain"]) for row in sorted(found, key=lambda row: row["offset"])] == [
        ("malformed", False), ("malformed", True),
    ]  # fmt: skip


def test_ids_of_other_spellings_are_none(spark: SparkSession) -> None:
    good = IDS.issue_bytes(3, NOW, 2**33 + 1)
    spelt = [good, good[:-1], good + b"A", b"+" + good[1:], b"/" + good[1:], good[:30] + b"==", b"\xff" + good[1:]]
    frames = [pack_record(None, (("duemq-id", one),), b"") for one in spelt]
    found = deliveries(kafka_frame(spark, [record("o", 0, n, NOW, one) for n, one in enumerate(frames)]))
    assert {row.offset: row.shard for row in found.collect()} == {0: 3, **dict.fromkeys(range(1, 7))}


def test_a_topic_of_one_partition_is_read_by_many_tasks(
    spark: SparkSession, kafka: KafkaServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duemq.pipeline.logs.logs._MAX_RECORDS", 10)
    topic = asyncio.run(new_topic(kafka.bootstrap))
    asyncio.run(send(kafka.bootstrap, topic, [b"%d" % n for n in range(95)], partition=0))
    frame = read_topics(spark, kafka.bootstrap, Logs(kafka.bootstrap).ranges([topic]).values())
    assert frame.rdd.getNumPartitions() >= 9 and frame.select("offset").distinct().count() == 95


def test_changes_and_what_is_no_command(spark: SparkSession) -> None:
    key = make_key(NOW, 2**40, 17)
    frames = [
        change_frame(CANCEL, key, by="key:shop"), change_frame(MOVE, key, NOW + 5), change_frame(DELIVER_NOW, key),
        change_frame(REDRIVE, key), pack_record(None, (("duemq-command", b"\x01"),), b""),
        schedule_frame(Draft("orders", b""), NOW).replace(b"orders", b"orde"), pack_record(b"k", (), b"v"),
        pack_record(None, (("duemq-command", bytes(34)), ("x", b"")), b""),
        change_frame(PURGE, key, 0, Terms("ab/1")),
        change_frame(REDRIVE, key, 0, Terms("ab/2", 3, "orders.again"), "user:a@b.example"),
        change_frame(PURGE, key), change_frame(REDRIVE, key, 0, Terms("", 0, "duemq.ledger")),
    ]  # fmt: skip
    rows = [record("b", 4, n, 100 + n, frame) for n, frame in enumerate(frames)]
    found = sorted(rows_of(commands(kafka_frame(spark, rows))), key=lambda row: row["offset"])
    kinds = ["cancel", "move", "deliver_now", "redrive", *["malformed"] * 4, "purge", "redrive", *["malformed"] * 2]
    assert [row["kind"] for row in found] == kinds
    assert [row["due"] for row in found] == [None, NOW + 5, 102, 103, *[None] * 5, 109, *[None] * 2]
    changes = [*found[:4], *found[8:10]]
    assert {(row["first_due"], row["first_offset"], row["first_row"]) for row in changes} == {(NOW, 2**40, 17)}
    assert [row["plain"] for row in found] == [*[False] * 6, True, True, *[False] * 4]


def test_returns_of_consumers_have_their_content_in_their_names(spark: SparkSession) -> None:
    def sent_back(value: bytes, error: bytes) -> bytes:
        name = (("duemq-name", b"retry-1"), ("x-duemq-return", b"1"), ("x-duemq-error", error))
        return pack_record(b"k", (("duemq-topic", b"retry.g"), ("duemq-delay", b"90s"), *name), value)

    frames = [sent_back(b"v", b"a"), sent_back(b"v", b"b"), sent_back(b"w", b"a")]
    records = [record("b", 1, n, NOW, frame) for n, frame in enumerate(frames)]
    first, again, other = sorted(rows_of(commands(kafka_frame(spark, records))), key=lambda row: row["offset"])
    assert (first["name"], first["fingerprint"]) == (again["name"], again["fingerprint"])
    assert first["name"].startswith("r:retry-1:") and first["name"] != other["name"]


def test_plain_clients(spark: SparkSession) -> None:
    id_ = IDS.issue_bytes(1, NOW, 5)
    said: list[tuple[tuple[str, bytes], ...]] = [
        (("duemq-topic", b"orders"), ("duemq-delay", b"90s"), ("duemq-name", b"a"), ("mine", b"1")),
        (("duemq-cancel", id_),), (("duemq-move", b"a"), ("duemq-deliver-at", b"2040-01-01T00:00:00Z")),
        (("duemq-topic", b"orders"),), (("duemq-cancel", IDS.issue_bytes(2, NOW, 5)),),
    ]  # fmt: skip
    import_command = ImportCommand("/shared/x.parquet", "ab" * 32, 10, 1_800_000_000_000, 3)
    frames = [pack_record(b"k", headers, b"v") for headers in said] + [import_frame(import_command)]
    records = [record("b", 1, n, NOW, frame) for n, frame in enumerate(frames)]
    records.append(record("b", 1, 6, NOW, schedule_frame(Draft("mixed", b"v"), NOW)))
    found = sorted(rows_of(commands(kafka_frame(spark, records))), key=lambda row: row["offset"])
    kinds = ["schedule", "cancel", "move", "malformed", "cancel", "import", "schedule"]
    assert [row["kind"] for row in found] == kinds
    assert [row["plain"] for row in found] == [*[True] * 6, False]
    assert (found[0]["due"], found[0]["topic"], found[0]["name"]) == (NOW + 90_000, "orders", "n:a")
    assert (found[1]["first_due"], found[1]["first_offset"], found[1]["name"]) == (NOW, 5, None)
    assert (found[2]["name"], found[2]["due"], found[2]["first_offset"]) == ("n:a", 2_208_988_800_000, None)
    assert found[4]["name"] is not None, "an id of another shard may be a name: the ledger's answer tells"
    assert (found[5]["path"], found[5]["rows"], found[5]["window"]) == (import_command.path, 3, import_command.window)
    assert found[6]["topic"] == "mixed"


def test_ledger_entries(spark: SparkSession) -> None:
    first = Entry(0, 3, last_key_at(NOW), NOW, {1: Answer.ACCEPTED, 2: Answer.DELIVERED}, pending=1, checksum=2**64 - 1)
    second = Entry(
        1, 9, KEY.pack(NOW, 7, 0), NOW + 1, {n: Answer.OK for n in range(3, 9)},
        (
            DeferredMessage(KEY.pack(1, 2, 3), KEY.pack(4, 2, 3), 1, "unknown_topic"),
            DeferredMessage(KEY.pack(9, 9, 0), None, 2, "expired"),
        ), 4, 5, OutcomeCounts(6, 1, 1, 0), 8, (FileDecision(7, 2, 3), FileDecision(8, 0, 0, "no")),
    )  # fmt: skip
    values = [first.encode(), second.encode(), b"{}"]
    frames = [pack_record(None, (), value) for value in values]
    one, two, wrong = rows_of(entries(kafka_frame(spark, [record("l", 2, n, 5, f) for n, f in enumerate(frames)])))
    assert (one["shard"], one["n"], one["applied"], one["at"], one["written"]) == (2, 0, 3, NOW, 5)
    assert (one["cursor_due"], one["cursor_offset"], one["cursor_row"]) == (NOW, 2**63 - 1, 2**32 - 1)
    assert one["answers"] == [{"offset": 1, "answer": 8}, {"offset": 2, "answer": 3}]
    assert one["checksum"] == "f" * 16 and one["deferred"] == [] and one["problem"] is None
    assert [answer["offset"] for answer in two["answers"]] == list(range(3, 9))
    assert [(d["due"], d["offset"], d["row"], d["to_due"], d["reason"]) for d in two["deferred"]] == [
        (1, 2, 3, 4, "unknown_topic"), (9, 9, 0, None, "expired"),
    ]  # fmt: skip
    assert two["imported"] == [
        {"offset": 7, "rows": 2, "reason": "", "checksum": f"{3:016x}"},
        {"offset": 8, "rows": 0, "reason": "no", "checksum": f"{0:016x}"},
    ]
    assert (two["accepted"], two["delivered"], two["cancelled"], two["dead"], two["pending"]) == (6, 1, 1, 0, 4)
    assert "not a ledger entry" in wrong["problem"] and wrong["n"] is None


def test_deliveries_and_dead_letters(spark: SparkSession) -> None:
    ids = [IDS.issue_bytes(3, NOW, 2**33 + 1), IDS.issue_bytes(DIRECT, NOW, 2**47, 2**32 - 1)]
    row = row_of(schedule_frame(Draft("orders", b"v", key=b"k", labels=("a",)), NOW), ids[0])
    frames = [
        frame_in(change_row(row, due=NOW + 1, attempt=2)), direct_frame(Draft("orders", b"w"), ids[1], NOW),
        pack_record(None, (("mine", b"1"),), b"another program's"),
        pack_record(None, (("mine", b"1"), ("duemq-id", b"short"), ("duemq-due", b"soon")), b""),
        pack_record(None, (("duemq-id", b"*" * 32),), b""),
    ]  # fmt: skip
    records = [record("orders", 1, n, NOW + n, frame, n == 0) for n, frame in enumerate(frames)]
    found = rows_of(deliveries(kafka_frame(spark, records)))
    assert [(r["offset"], r["at"], r["by_broker"]) for r in found] == [
        (0, NOW, True), (1, NOW + 1, False), (3, NOW + 3, False), (4, NOW + 4, False),
    ]  # fmt: skip
    assert [r["id"].encode() for r in found] == [*ids, b"short", b"*" * 32]
    assert (found[0]["due"], found[0]["attempt"]) == (NOW + 1, 3)
    for at, id_ in enumerate(ids):
        said = IDS.read(id_.decode())
        assert said is not None
        assert (found[at]["shard"], found[at]["first_due"], found[at]["first_offset"], found[at]["first_row"]) == said
    assert all(found[at]["shard"] is None and found[at]["mac"] is None for at in (2, 3))
    assert found[2]["due"] is None
    dead = record("duemq.dlq", 0, 0, NOW, dead_frame(row, "expired", 0))
    refused = record(
        "duemq.dlq", 0, 1, NOW, pack_record(None, (("duemq-reason", b"malformed"), ("duemq-offset", b"7")), b"")
    )
    buried, malformed = rows_of(dead_letters(kafka_frame(spark, [dead, refused])))
    assert (buried["reason"], buried["destination"], buried["first_offset"], buried["command"]) == (
        "expired",
        "orders",
        2**33 + 1,
        None,
    )
    assert (malformed["reason"], malformed["command"], malformed["id"], malformed["shard"]) == (
        "malformed",
        7,
        None,
        None,
    )
    assert buried["content"] == found[0]["content"] != found[1]["content"]
    assert (buried["command_shard"], malformed["command_shard"]) == (None, None)


def test_the_letter_of_a_record_that_was_malformed_tells_its_place(spark: SparkSession) -> None:
    """By headers that duemq wrote, and not by those that the record came with."""
    theirs = (
        ("duemq-shortened", b"1"), ("duemq-id", IDS.issue_bytes(3, NOW, 5)), ("duemq-partition", b"9"),
        ("duemq-offset", b"9"),
    )  # fmt: skip
    letter = dead_letter(pack_record(b"k", theirs, b"value"), 4, 77, "unknown_field: duemq-id is not a header here")
    older = pack_record(b"k", (("duemq-reason", b"malformed"), ("duemq-error", b"x"), ("duemq-offset", b"77"), *theirs),
                        b"value")  # fmt: skip
    frames = [letter, older, shorten(letter, len(letter) - 1)]
    records = [record("duemq.dlq", 0, n, NOW, frame) for n, frame in enumerate(frames)]
    whole, old, short = rows_of(dead_letters(kafka_frame(spark, records)))
    assert [(one["command"], one["command_shard"]) for one in (whole, old, short)] == [(77, 4), (77, None), (77, 4)]
    assert [one["shortened"] for one in (whole, old, short)] == [False, False, True]
    assert [(one["id"], one["shard"]) for one in (whole, old, short)] == [(None, None)] * 3


def test_a_time_range_becomes_offsets(spark: SparkSession, kafka: KafkaServers) -> None:
    topic, other = asyncio.run(new_topic(kafka.bootstrap, 2)), asyncio.run(new_topic(kafka.bootstrap))
    asyncio.run(send(kafka.bootstrap, topic, [b"1", b"2", b"3"], partition=0))
    asyncio.run(send(kafka.bootstrap, topic, [b"4"], partition=1))
    logs = Logs(kafka.bootstrap)
    whole = logs.ranges([topic, other])
    assert (whole[topic].starts, whole[topic].ends, whole[topic].count) == ({0: 0, 1: 0}, {0: 3, 1: 1}, 4)
    assert whole[other].count == 0 and str(whole[topic]) == f"{topic} [0: 0..3, 1: 0..1]"
    records = read_topics(spark, kafka.bootstrap, whole.values()).select("value", "partition", "timestamp").collect()
    assert sorted(bytes(r.value) for r in records) == [b"1", b"2", b"3", b"4"]
    stamps = sorted(int(r.timestamp.timestamp() * 1000) for r in records)
    later = (logs.ranges([topic], stamps[-1] + 1))[topic]
    assert later.starts == later.ends == {0: 3, 1: 1}
    before = (logs.ranges([topic], None, stamps[0]))[topic]
    assert before.count == 0
    one = whole[topic].within({0: 1}, {0: 2, 1: 0})
    assert [bytes(r.value) for r in read_topics(spark, kafka.bootstrap, [one]).collect()] == [b"2"]
    with pytest.raises(BadInput, match="no topic nowhere"):
        logs.ranges(["nowhere"])


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_kafka_that_wants_a_login_over_tls(spark: SparkSession, kafka_secure: KafkaServers, mechanism: str) -> None:
    user = kafka_secure.plain if mechanism == "PLAIN" else kafka_secure.scram
    environment = {"DUEMQ_KAFKA__PASSWORD": user.password, "DUEMQ_KAFKA__USER": "somebody else"}
    given = {"protocol": "SASL_SSL", "mechanism": mechanism, "user": user.name, "ca_file": str(kafka_secure.ca_file)}
    options = configured(kafka_secure.secure_bootstrap, given, environment)
    assert isinstance(options, KafkaOptions)

    async def fill() -> str:
        topic = await new_topic(kafka_secure.bootstrap)
        async with AIOKafkaProducer(**options.client()) as producer:
            await producer.send_and_wait(topic, b"told to friends")
        return topic

    topic = asyncio.run(fill())
    ranges = Logs(options).ranges([topic])
    assert [bytes(row.value) for row in read_topics(spark, options, ranges.values()).collect()] == [b"told to friends"]
    assert isinstance(options, KafkaOptions)
    with pytest.raises(Unavailable, match="does not answer"):
        Logs(replace(options, password="wrong")).topics()


def test_any_login_of_javas_client(spark: SparkSession, kafka_secure: KafkaServers) -> None:
    """Topics, offsets and retention through Java's client, which alone knows what these options mean."""
    user = kafka_secure.scram
    login = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="{user.name}" password='
    given = {
        "ca_file": str(kafka_secure.ca_file), "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512", "kafka.sasl.jaas.config": f'{login}"{user.password}";',
    }  # fmt: skip
    options = configured(kafka_secure.secure_bootstrap, given, {})

    async def fill() -> str:
        topic = await new_topic(kafka_secure.bootstrap, 2)
        async with AIOKafkaProducer(bootstrap_servers=kafka_secure.bootstrap) as producer:
            for value in (b"a", b"b"):
                await producer.send_and_wait(topic, value, partition=1)
        return topic

    topic = asyncio.run(fill())
    through, plain = Logs(options, spark), Logs(kafka_secure.bootstrap)
    assert through.topics() == plain.topics()
    assert through.ranges([topic]) == plain.ranges([topic]) and through.ranges([topic])[topic].count == 2
    (first,) = through.first_times([topic]).values()
    assert through.ranges([topic], first + 10**6)[topic].count == 0 == through.ranges([topic], None, first)[topic].count
    assert through.first_times([topic]) == plain.first_times([topic])
    assert through.retention([topic]) == plain.retention([topic]) != {}
    assert through.settled_ends([topic], 1.0) == plain.settled_ends([topic], 1.0)
    found = read_topics(spark, options, through.ranges([topic]).values()).collect()
    assert sorted(bytes(row.value) for row in found) == [b"a", b"b"]
    wrong = configured(kafka_secure.secure_bootstrap, given | {"kafka.sasl.jaas.config": f'{login}"no";'}, {})
    with pytest.raises(Unavailable, match=r"Java's client.*SaslAuthentication"):
        Logs(wrong, spark).topics()


def test_settings_of_kafka_that_do_not_exist_are_named() -> None:
    with pytest.raises(BadConfig, match=r"kafka\.pasword is not a setting here; there are protocol, mechanism, user"):
        configured("localhost:9092", {"pasword": "x"}, {})
    assert reading(configured("a:1", {"protocol": "SASL_PLAINTEXT", "user": 'q"', "password": "b\\"}, {}))[
        "kafka.sasl.jaas.config"
    ].endswith('required username="q\\"" password="b\\\\";')
