from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.model.errors import Rejected
from duemq.model.timing import (
    CLASSIC_LEVELS,
    FIRST_MS,
    LAST_MS,
    TimePolicy,
    format_duration,
    format_ms,
    parse_duration,
    parse_instant,
    parse_levels,
    resolve,
    resolve_expiry,
)

NOW = 1_795_255_200_123
YEAR_MS = 31_557_600_000
POLICY = TimePolicy()

BAD_DURATIONS: dict[str, list[object]] = {
    "negative_delay": [-1, "-5s", "-PT5S", -(10.0**30)],
    "delay_too_long": [11 * YEAR_MS, "100000h", 10**30, 1e30, "9" * 60 + "y"],
    "bad_time": [
        *("soon", "", "-", "5 parsecs", "PT", "P", "P1DT", "PT-5S", "5s5", "h", "90", "5m3h", "1S", "٣s", "5s\n"),
        *(True, None, [], {}, "1" * 100 + "s", float("nan"), float("inf")),
    ],
}
BAD_INSTANTS: dict[str, list[object]] = {
    "naive_time": ["2031-01-01T00:00:00", "2031-01-01T00:00:00.250", "2031-01-01"],
    "delay_too_long": ["2100-01-01T00:00:00Z", 4_102_444_800_000, 10**30, 1e30],
    "bad_time": [
        *("tomorrow", "", "2031-13-01T00:00:00Z", "2031-02-30T00:00:00Z", "2031-01-01T25:00:00Z"),
        *("2031-01-01T00:00:00+25:00", "2031-01-01T00:00:00Z\n", "1969-12-31T23:59:59Z", "0001-01-01T00:00:00+23:59"),
        *("2031-01-01T12:59:60Z", "2031-01-01T24:00:00Z", "2031-01-01T00:00:00.Z", "2031-01-01T00:00:00+1"),
        *("2031-01-01T01:00:00+02:00[Europe/Berlin]", "2031-01-01T01:00:00Z[Europe]", "2031-01-01T01:00Z[../UTC]"),
        *("2031-03-30T02:30[Europe/Berlin]", "2031-10-26T02:30[Europe/Berlin]", "2031-01-01T01:00Z[UTC][!u-ca=x]"),
        *("2031-01-01T01:00Z[UTC][Europe/Berlin]", "0001-01-01T00:00:00Z[Europe/Berlin]", "[Europe/Berlin]"),
        *(
            "1970-01-01T00:00:00Z",
            "0001-01-01T00:00:00Z",
            "1973-03-03T09:46:39.999Z",
            0,
            FIRST_MS - 1,
            NOW // 1000,
            20_777,
        ),
        *(True, None, [], {}, 1.5, -1, str(NOW), NOW / 1000, float(NOW)),
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
        (60000.0, 60_000),
        (1687.5, 1688),  # never early
        (0.1, 1),
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
        ("2031-01-01T00:00:00.0000000001Z", 1_924_992_000_001),
        ("2031-01-01T00:00Z", 1_924_992_000_000),
        ("2031-01-01T01:00:00+0100", 1_924_992_000_000),
        ("2031-01-01T01:00+01", 1_924_992_000_000),
        ("2031-01-01 01:00:00 +0100", 1_924_992_000_000),
        ("2031-01-01T00:00:00,25-00:00", 1_924_992_000_250),
        ("2030-12-31T23:59:60Z", 1_924_992_000_000),  # a leap second is the second after
        ("2031-01-01T00:59:60.5+01:00", 1_924_992_000_500),
        ("2031-01-01T01:00:00+01:00[Europe/Berlin]", 1_924_992_000_000),
        ("2031-01-01T00:00:00Z[Europe/Berlin]", 1_924_992_000_000),  # Z says nothing of the local time
        ("2031-01-01T01:00+01:00[Europe/Berlin][u-ca=gregory]", 1_924_992_000_000),
        ("2031-01-01T01:00[Europe/Berlin]", 1_924_992_000_000),
        ("2031-10-26T02:30+01:00[Europe/Berlin]", 1_950_744_600_000),  # the second of the two
    ],
)
def test_instants(value: object, ms: int) -> None:
    assert resolve({"deliver_at": value}, NOW, POLICY) == ms


@pytest.mark.parametrize(("value", "code"), cases(BAD_INSTANTS))
def test_refused_instants(value: object, code: str) -> None:
    assert code_of({"deliver_at": value}) == code


def test_a_number_that_is_too_early_says_what_it_looks_like() -> None:
    for value in (1_924_992_000, 1_924_991_999.5):
        with pytest.raises(Rejected, match=r"^deliver_at: 1924992000 looks like seconds; ms are 1924992000000$"):
            parse_instant(value, "deliver_at")
    for lost in (0, "0001-01-01T00:00:00Z", "1970-01-01T00:00:00Z"):
        with pytest.raises(Rejected, match="before March 1973: a time that got lost"):
            parse_instant(lost, "deliver_at")
    assert parse_instant(FIRST_MS, "it") == parse_instant("1973-03-03T09:46:40Z", "it") == FIRST_MS


def test_a_zone_is_of_local_times() -> None:
    berlin = {"zone": "Europe/Berlin"}
    assert resolve({"deliver_at": "2031-01-01T01:00"} | berlin, NOW, POLICY) == 1_924_992_000_000
    assert resolve({"deliver_at": "2031-01-01"} | berlin, NOW, POLICY) == 1_924_988_400_000
    assert resolve({"deliver_at": "2031-01-01T01:00+01:00[Europe/Berlin]"} | berlin, NOW, POLICY) == 1_924_992_000_000
    both = {"expires_at": "2031-01-01T01:00"} | berlin
    assert (resolve(both, NOW, POLICY), resolve_expiry(both, NOW)) == (None, 1_924_992_000_000)
    for fields in (
        {"zone": "Europe/Berlin"}, {"deliver_at": NOW} | berlin, {"deliver_after": "1h"} | berlin,
        {"deliver_at": "2031-01-01T01:00", "zone": None}, {"deliver_at": "2031-01-01T01:00", "zone": "Mars"},
        {"deliver_at": "2031-01-01T01:00+02:00"} | berlin, {"deliver_at": "2031-01-01T01:00[UTC]"} | berlin,
    ):  # fmt: skip
        assert code_of(fields) == "bad_time", fields


def test_what_was_judged_before_is_read_as_it_was() -> None:
    def read(text: str) -> int:
        return parse_instant(text, "it", text=True, local=False, judged=True)

    assert (read("5"), read("1970-01-01T00:00:01Z")) == (5, 1000)
    assert read("2031-01-01T01:00+05:00[Europe/Berlin]") == read("2031-01-01T01:00+05:00[No/Where]")
    with pytest.raises(Rejected, match="has no zone"):
        read("2031-01-01T01:00[Europe/Berlin]")  # two machines may have two databases of zones


def test_expiry() -> None:
    assert resolve_expiry({}, NOW) == 0
    assert resolve_expiry({"expires_after": "1h"}, NOW) == resolve_expiry({"expires_at": NOW + 3_600_000}, NOW)
    with pytest.raises(Rejected, match="both given"):
        resolve_expiry({"expires_after": "1h", "expires_at": NOW}, NOW)


def test_a_delay_in_ms_is_a_number() -> None:
    assert resolve({"deliver_after_ms": 1500.2}, NOW, POLICY) == NOW + 1501
    assert resolve({"deliver_after_ms": "1500"}, NOW, POLICY, text=True) == NOW + 1500
    for value, code in (("90s", "bad_time"), (True, "bad_time"), (None, "bad_time"), (-1, "negative_delay")):
        assert code_of({"deliver_after_ms": value}, text=isinstance(value, str)) == code
    assert code_of({"deliver_after_ms": 1, "deliver_after": 1}) == "both_times"


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
    for text in ("1500", "1500.0", "1.5e3", "1499.2"):
        assert resolve({"deliver_after": text}, NOW, POLICY, text=True) == NOW + 1500
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


@given(st.integers(FIRST_MS, LAST_MS))
def test_instants_survive_the_way_through_text(ms: int) -> None:
    text = format_ms(ms)
    assert parse_instant(text, "it") == ms
    assert len(text) == 24


@given(st.datetimes(datetime(1973, 3, 5), datetime(9999, 12, 30)), st.integers(-1439, 1439))
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
