from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.model.errors import Rejected
from duemq.model.timing import (
    CLASSIC_LEVELS,
    LAST_MS,
    TimePolicy,
    format_duration,
    format_ms,
    parse_duration,
    parse_instant,
    parse_levels,
    resolve,
)

NOW = 1_795_255_200_123
YEAR_MS = 31_557_600_000
POLICY = TimePolicy()

BAD_DURATIONS: dict[str, list[object]] = {
    "negative_delay": [-1, "-5s", "-PT5S", -(10.0**30)],
    "delay_too_long": [11 * YEAR_MS, "100000h", 10**30, 1e30, "9" * 60 + "y"],
    "bad_time": [
        *("soon", "", "-", "5 parsecs", "PT", "P", "P1DT", "PT-5S", "5s5", "h", "90", "5m3h", "1S", "٣s", "5s\n"),
        *(True, None, 1.5, [], {}, "1" * 100 + "s"),
    ],
}
BAD_INSTANTS: dict[str, list[object]] = {
    "naive_time": ["2031-01-01T00:00:00", "2031-01-01T00:00:00.250", "2031-01-01"],
    "delay_too_long": ["2100-01-01T00:00:00Z", 4_102_444_800_000, 10**30, 1e30],
    "bad_time": [
        *("tomorrow", "", "2031-13-01T00:00:00Z", "2031-02-30T00:00:00Z", "2031-01-01T25:00:00Z"),
        *("2031-01-01T00:00:00+25:00", "2031-01-01T00:00:00Z\n", "1969-12-31T23:59:59Z", "0001-01-01T00:00:00+23:59"),
        *(True, None, [], {}, 1.5, -1, str(NOW)),
    ],
}


def cases(table: dict[str, list[object]]) -> list[tuple[object, str]]:
    return [(value, code) for code, values in table.items() for value in values]


def code_of(fields: dict[str, Any], *, text: bool = False, policy: TimePolicy = POLICY) -> str:
    with pytest.raises(Rejected) as refused:
        resolve(fields, NOW, policy, text=text)
    assert refused.value.detail
    assert refused.value.field in fields
    return refused.value.code


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (0, 0),
        (1500, 1500),
        ("90s", 90_000),
        ("2h30m", 9_000_000),
        ("1h0m5s", 3_605_000),
        ("1500ms", 1500),
        ("1m1ms", 60_001),
        ("1.5s", 1500),
        ("0.0001s", 1),
        ("3d", 259_200_000),
        ("2w", 1_209_600_000),
        ("10y", 10 * YEAR_MS),
        ("PT90S", 90_000),
        ("P1W", 604_800_000),
        ("P1DT2H3M4.5S", 93_784_500),
        ("PT0S", 0),
    ],
)
def test_durations(value: object, ms: int) -> None:
    assert parse_duration(value, "deliver_after") == ms


@pytest.mark.parametrize(("value", "code"), cases(BAD_DURATIONS))
def test_refused_durations(value: object, code: str) -> None:
    assert code_of({"deliver_after": value}) == code


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (1_924_992_000_000, 1_924_992_000_000),
        ("2031-01-01T00:00:00Z", 1_924_992_000_000),
        ("2031-01-01t00:00:00.25z", 1_924_992_000_250),
        ("2031-01-01 01:00:00+01:00", 1_924_992_000_000),
        ("2030-12-31T16:00:00.001-08:00", 1_924_992_000_001),
        ("2031-01-01T00:00:00.0001Z", 1_924_992_000_001),  # never early
        ("2031-01-01T00:00:00.999999999Z", 1_924_992_001_000),
    ],
)
def test_instants(value: object, ms: int) -> None:
    assert resolve({"deliver_at": value}, NOW, POLICY) == ms


@pytest.mark.parametrize(("value", "code"), cases(BAD_INSTANTS))
def test_refused_instants(value: object, code: str) -> None:
    assert code_of({"deliver_at": value}) == code


def test_levels() -> None:
    assert POLICY.levels == parse_levels(CLASSIC_LEVELS)
    assert len(POLICY.levels) == 18
    ahead = {level: resolve({"delay_level": level}, NOW, POLICY) for level in (-(10**30), 0, 1, 5, 18, 19, 99, 10**30)}
    assert list(ahead.values()) == [None, None, NOW + 1000, NOW + 60_000] + [NOW + 7_200_000] * 4
    bad: list[object] = ["3", 3.5, True, [], "high", None]
    for value in bad:
        assert code_of({"delay_level": value}) == "bad_level"


def test_one_time_field_at_most() -> None:
    assert resolve({"topic": "t"}, NOW, POLICY) is None
    assert code_of({"deliver_at": NOW, "delay_level": 0}) == "both_times"
    assert code_of({"deliver_at": None, "deliver_after": None, "delay_level": None}) == "both_times"


def test_past_times_follow_the_policy() -> None:
    assert resolve({"deliver_at": NOW - 5}, NOW, POLICY) == NOW - 5
    strict = TimePolicy(past_due="reject")
    assert resolve({"deliver_at": NOW}, NOW, strict) == NOW
    assert code_of({"deliver_at": NOW - 1}, policy=strict) == "past_due"


def test_digits_are_numbers_only_in_text() -> None:
    assert resolve({"deliver_at": str(NOW)}, NOW, POLICY, text=True) == NOW
    assert resolve({"deliver_after": "1500"}, NOW, POLICY, text=True) == NOW + 1500
    assert resolve({"delay_level": "1"}, NOW, POLICY, text=True) == NOW + 1000
    assert resolve({"delay_level": "-1"}, NOW, POLICY, text=True) is None
    assert code_of({"deliver_after": "-1"}, text=True) == "negative_delay"
    assert code_of({"deliver_at": "-1"}, text=True) == "bad_time"
    assert code_of({"delay_level": "x"}, text=True) == "bad_level"


def test_numbers_too_long_to_print_are_refused_too() -> None:
    assert code_of({"deliver_at": 10**5000}) == "delay_too_long"
    assert code_of({"deliver_at": -(10**5000)}) == "bad_time"
    assert code_of({"deliver_after": -(10**5000)}) == "negative_delay"


def test_the_longest_delay_is_named() -> None:
    with pytest.raises(Rejected, match=r"limit is 10y \(315576000000 ms\)"):
        resolve({"deliver_after": "11y"}, NOW, POLICY)
    assert resolve({"deliver_after": "10y"}, NOW, POLICY) == NOW + 10 * YEAR_MS


@given(st.integers(0, 10**15))
def test_durations_survive_the_way_through_text(ms: int) -> None:
    assert parse_duration(format_duration(ms), "it") == ms


@given(st.integers(0, LAST_MS))
def test_instants_survive_the_way_through_text(ms: int) -> None:
    text = format_ms(ms)
    assert parse_instant(text, "it") == ms
    assert len(text) == 24


@given(st.datetimes(datetime(1970, 1, 3), datetime(9999, 12, 30)), st.integers(-1439, 1439))
def test_any_zone_names_the_same_instant(moment: datetime, offset_minutes: int) -> None:
    aware = moment.replace(tzinfo=UTC).astimezone(timezone(timedelta(minutes=offset_minutes)))
    exact_us = (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert parse_instant(aware.isoformat(), "it") == -(-exact_us // 1000)


@given(st.text(max_size=30) | st.text("PT0123456789.ywdhmsWDHMSZ:+-", max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_duration, parse_instant):
        try:
            assert parse(text, "it", text=True) >= 0
        except Rejected as error:
            assert error.code in ("bad_time", "naive_time", "negative_delay")
