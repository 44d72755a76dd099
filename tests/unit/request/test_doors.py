"""The same time means the same at every door, or is refused with the same code.

Spark's columns are held to the same table in `tests/functional/spark/test_spark_times.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import orjson
import pyarrow as pa
import pytest
import typer
from hypothesis import example, given
from hypothesis import strategies as st

from duemq.cli.times import when
from duemq.client.http.errors import RejectedError
from duemq.client.http.requests import Draft, message_body
from duemq.model.errors import BadDelayFile, Rejected
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.message import read_schedule
from duemq.model.messages.plain import MalformedRecord, RecordPosition, command_of
from duemq.model.messages.record import pack_record
from duemq.model.timing import FIRST_MS, LAST_MS, TimePolicy, why_implausible
from duemq.proxy.jobs.order import read_order
from duemq.proxy.jobs.work import dead_range
from duemq.proxy.request.ingress import Ingress, MessageLimits
from duemq.proxy.request.query import read_filter
from duemq.storage.delay_files.columns import SCHEMA
from duemq.storage.imports.row_rules import ImportRules
from duemq.storage.limits import ImportLimits
from tests.support.times import INSTANTS

NOW = 1_795_255_200_123
GATE = Ingress(MessageLimits(time=TimePolicy(max_delay_ms=LAST_MS - NOW)))
PLACE = RecordPosition(0, None, IdCodec(b"k" * 32))
Said = int | float | str
Meaning = tuple[int, int] | str
"""When it is due and when it expires (epoch ms), or the code of the refusal."""


def by_json(field: str, value: Any) -> Meaning:
    return meaning_of(lambda: GATE.draft(orjson.loads(orjson.dumps({"topic": "t", field: value})), NOW))


def by_raw_body(field: str, value: Said) -> Meaning:
    headers = [(b"duemq-topic", b"t"), (f"duemq-{field.replace('_', '-')}".encode(), str(value).encode())]
    return meaning_of(lambda: GATE.draft_from_raw(headers, b"", NOW))


def by_sdk(field: str, value: Any) -> Meaning:
    return meaning_of(lambda: GATE.draft(orjson.loads(message_body(Draft("t", **{field: value}))), NOW))


def by_command_line(field: str, value: Said) -> Meaning:
    after, at = (str(value) if field == name else None for name in ("deliver_after", "deliver_at"))
    return meaning_of(lambda: GATE.draft(orjson.loads(message_body(Draft("t", **when(after, at, None, None)))), NOW))


def by_kafka(field: str, value: Said) -> Meaning:
    name = {"deliver_after": "duemq-delay"}.get(field, f"duemq-{field.replace('_', '-')}")
    pairs = [("duemq-topic", b"t"), (name, str(value).encode())]
    if field.startswith("expires"):
        pairs.append(("duemq-delay", b"0"))
    frame = command_of(pack_record(None, pairs, b""), NOW, PLACE)
    if isinstance(frame, MalformedRecord):
        return frame.reason.partition(":")[0]
    assert isinstance(frame, bytes)
    fields = read_schedule(frame)
    assert fields is not None
    return fields.due, fields.expires


def meaning_of(draft: Callable[[], Any]) -> Meaning:
    try:
        made = draft()
    except (Rejected, RejectedError) as error:
        return str(error.code)
    except typer.BadParameter as error:
        return str(getattr(error.__cause__, "code", "bad_time"))
    return NOW if made.due is None else made.due, made.expires


EVERY_DOOR = (by_json, by_raw_body, by_sdk, by_command_line, by_kafka)
digits = st.sampled_from(["1", "47", "123456789", "0000000001", "9" * 12])
instants = st.builds(
    "{}{}{}{}{}".format,
    st.dates().map(str) | st.sampled_from(["2031-01-01", "2030-12-31", "1970-01-01", "2031-02-30", "0001-01-01"]),
    st.sampled_from(["T08:00:00", "t08:00", " 23:59:59", "T23:59:60", "T24:00:00", "T8:00", ""]),
    st.just("") | st.builds("{}{}".format, st.sampled_from(".,"), digits),
    st.sampled_from(["Z", "z", "+01:00", "-0530", "+14", " +0100", "+25:00", "", "UTC", "-00:00"]),
    st.sampled_from(["", "", "[Europe/Berlin]", "[UTC]", "[Mars]", "[UTC][u-ca=x]", "[!u-ca=x]", "[UTC"]),
)
numbers = st.integers(-10, 3 * 10**11) | st.integers(FIRST_MS, LAST_MS + 10) | st.integers(10**9, 3 * 10**9)


@given(instants | numbers, st.sampled_from(["deliver_at", "expires_at"]))
@example(1_924_992_000, "deliver_at")
@example("0001-01-01T08:00:00", "deliver_at")
@example("9999-12-31T23:00:00", "deliver_at")
@example(0, "expires_at")
def test_an_instant_means_the_same_at_every_door(value: str | int, field: str) -> None:
    first = by_json(field, value)
    doors = [door for door in EVERY_DOOR if field == "deliver_at" or door is not by_command_line]
    expected = dict.fromkeys((door.__name__ for door in doors), "bad_time" if first == "delay_too_long" else first)
    found = {door.__name__: door(field, value) for door in doors}
    found |= {name: "bad_time" for name, one in found.items() if one == "delay_too_long"}
    if isinstance(value, str) and "[" in value and found["by_kafka"] == "naive_time":
        # Nodes may have other zones: they take no local times, whatever else is wrong.
        del expected["by_kafka"], found["by_kafka"]
    assert found == expected
    if isinstance(first, tuple) and field == "deliver_at":
        assert why_implausible(first[0]) is None


@pytest.mark.parametrize(("value", "ms"), INSTANTS.items())
def test_the_table_of_instants(value: str, ms: int | str) -> None:
    for door in EVERY_DOOR:
        expected = "naive_time" if door is by_kafka and value.endswith("08:00[Europe/Berlin]") else ms
        assert door("deliver_at", value) == (expected if isinstance(expected, str) else (expected, 0)), door.__name__


durations = st.from_regex(r"-?[0-9.]{1,4}(ms|[ywdhms])([0-9]{1,3}[ms])?", fullmatch=True) | st.from_regex(
    r"-?PT?[0-9.]{1,4}[WDHMS]", fullmatch=True
)


@given(durations, st.sampled_from(["deliver_after", "expires_after"]))
def test_a_duration_means_the_same_at_every_door(value: str, field: str) -> None:
    doors = [door for door in EVERY_DOOR if field == "deliver_after" or door is not by_command_line]
    assert len({door(field, value) for door in doors}) == 1, {door.__name__: door(field, value) for door in doors}


@given(st.integers(-5, 10**12) | st.floats(-5, 10**12) | st.sampled_from([60000.0, 1687.5, 1e15]))
def test_a_number_of_ms_is_a_delay_where_text_is_all_there_is_and_in_json(value: int | float) -> None:
    first = by_json("deliver_after", value)
    for door in (by_raw_body, by_kafka):
        assert door("deliver_after", value) == door("deliver_after", repr(value)) == first
    assert by_json("deliver_after_ms", value) == by_raw_body("deliver_after_ms", value) == first
    if isinstance(value, int) and 0 <= value < 10**12:
        assert by_sdk("deliver_after", timedelta(milliseconds=value)) == first
    if not str(value).endswith("e-05"):
        assert by_sdk("deliver_after", value) == by_command_line("deliver_after", value) == "bad_time"


@pytest.mark.parametrize("value", [1_924_992_000, "1924992000", 0, "1970-01-01T00:00:00Z"])
def test_a_bound_in_seconds_would_match_everything_and_is_refused(value: str | int) -> None:
    asked: list[Callable[[], object]] = [
        lambda: read_filter({"topic": "t", "due_from": value}, "bad_field"),
        lambda: read_filter({"topic": "t", "due_to": value}, "bad_field"),
        lambda: read_order({"kind": "purge", "filter": {"dead_from": value}}, GATE, NOW),
        lambda: read_order({"kind": "purge", "source": "dlq.g", "filter": {"dead_to": value}}, GATE, NOW),
        lambda: read_order({"kind": "move", "filter": {"topic": "t"}, "deliver_at": value}, GATE, NOW),
        lambda: GATE.when({"deliver_at": value}, NOW),
    ]
    for ask in asked:
        with pytest.raises(Rejected) as refused:
            ask()
        assert refused.value.code == "bad_time"


def test_a_job_of_an_older_version_goes_on_with_the_filter_that_it_was_given() -> None:
    assert read_filter({"due_from": 0}, "bad_field", judged=True).due_from == 0
    assert dead_range({"dead_from": 5, "dead_to": 1_924_992_000}, NOW, judged=True) == (5, 1_924_992_000)


@given(numbers)
def test_a_row_of_an_imported_file_is_judged_like_a_message(due: int) -> None:
    batch = pa.RecordBatch.from_pylist([{"due_ms": due, "topic": "t", "payload": b""}], SCHEMA)
    wrong = why_implausible(due)
    if wrong is None:
        ImportRules(ImportLimits(), None).check(batch)
        return
    with pytest.raises(BadDelayFile) as refused:
        ImportRules(ImportLimits(), None).check(batch)
    assert wrong in str(refused.value)
