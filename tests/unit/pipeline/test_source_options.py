"""Options of the data source: known, of their type, or refused by their name."""

from __future__ import annotations

from pathlib import Path

import pytest

from duemq.model.timing import FIRST_MS, LAST_MS, WINDOW_MS
from duemq.pipeline.errors import BadInput
from duemq.pipeline.spark_source.options import MAX_RANGES, reading, writing

DAY_MS = 86_400_000
DAY = 20_000 * DAY_MS


def test_what_is_read_by_default_and_by_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUEMQ_URL", "http://there:1")
    monkeypatch.setenv("DUEMQ_API_KEY", "secret")
    found = reading({})
    assert (found.server.url, found.server.api_key) == ("http://there:1", "secret")
    assert (found.statuses, found.since, found.until, found.page) == (("scheduled",), None, None, 1_000)
    assert "secret" not in repr(found)
    given = {
        "URL": "duemq:80", "what": "ended", "Since": "2028-01-01T00:00:00Z", "until": "1830384000000", "window": "1d",
        "topic": "t", "key": "k", "label": "l", "page": "10", "timeout": "2.5", "patience": "0", "api_key": "k",
        "queryName": "q", "checkpointLocation": "c", "path": "",
    }  # fmt: skip
    found = reading(given)
    assert (found.server.url, found.server.api_key, found.server.timeout_s) == ("http://duemq:80", "k", 2.5)
    assert found.statuses == ("delivered", "cancelled", "dead")
    assert (found.since, found.until, found.window) == (1_830_297_600_000, 1_830_384_000_000, DAY_MS)
    assert (found.topic, found.key, found.label, found.page, found.patience_s) == ("t", "k", "l", 10, 0)


def test_the_key_is_the_first_line_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("secret \nof the month\n")
    options = {"url": "http://x", "api_key_file": str(path)}
    found = reading(options)
    assert found.server.api_key == "secret" and "secret" not in repr(found)
    with pytest.raises(BadInput, match="option api_key_file: does not go with api_key"):
        reading(options | {"api_key": "k"})
    (tmp_path / "empty").write_text("\nsecret\n")
    for name in ("none", "empty"):
        with pytest.raises(BadInput, match=r"option api_key_file: the first line of .* is no key"):
            reading({"api_key_file": str(tmp_path / name)})


def test_ranges_meet_and_cover_what_is_asked() -> None:
    def at(ms: int) -> str:
        return str(DAY + ms)

    assert reading({}).ranges() == [(None, None)]
    for given, first, last in (({"since": at(5)}, DAY + 5, None), ({"until": at(5)}, None, DAY + 5)):
        one_sided = reading(given).ranges()
        assert 10 < len(one_sided) < 20 and (one_sided[0][0], one_sided[-1][1]) == (first, last)
        assert [end for _, end in one_sided[:-1]] == [start for start, _ in one_sided[1:]]
        assert sum(None in ends for ends in one_sided) == 1
    assert reading({"since": at(0), "window": "1h"}).ranges()[:3] == [
        (DAY, DAY + 3_600_000), (DAY + 3_600_000, DAY + 2 * 3_600_000), (DAY + 2 * 3_600_000, DAY + 4 * 3_600_000)
    ]  # fmt: skip
    assert reading({"since": str(LAST_MS)}).ranges() == [(LAST_MS, None)]
    assert reading({"until": str(FIRST_MS)}).ranges() == [(None, FIRST_MS)]
    assert reading({"since": at(5), "until": at(5)}).ranges() == []
    assert reading({"since": at(6), "until": at(5)}).ranges() == []
    for since, until, window in ((5, 6, None), (0, WINDOW_MS, None), (5, 40 * DAY_MS, None), (7, DAY_MS, "1h"),
                                 (7, 10_000, "1s"), (0, 3_600_000, "1h"), (3_599_999, 3_600_001, "1h")):  # fmt: skip
        given = {"since": at(since), "until": at(until)} | ({"window": window} if window else {})
        ranges = reading(given).ranges()
        assert ranges[0][0] == DAY + since and ranges[-1][1] == DAY + until
        assert all(first < last for first, last in ranges if first is not None and last is not None)
        assert [last for _, last in ranges[:-1]] == [first for first, _ in ranges[1:]]
        assert window or len(ranges) <= 49
    assert reading({"since": at(7), "until": at(3_600_000), "window": "30m"}).ranges() == [
        (DAY + 7, DAY + WINDOW_MS), (DAY + WINDOW_MS, DAY + 2 * WINDOW_MS)
    ]  # fmt: skip
    with pytest.raises(BadInput, match=rf"option window: makes .* the limit is {MAX_RANGES:,}"):
        reading({"since": at(0), "until": at(DAY_MS), "window": "1s"}).ranges()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"hwat": "dead"}, "option hwat: is not known here; known are url, api_key"),
        ({"batch": "5"}, "option batch: is not known here"),
        ({"what": "all"}, "option what: 'all' is not one of pending"),
        ({"since": "yesterday"}, "option since is not an RFC 3339 time"),
        ({"until": "2028-01-01T00:00:00"}, "option until has no zone"),
        ({"window": "soon"}, "option window is not a duration"),
        ({"window": "10ms"}, "option window: must be a second or longer"),
        ({"page": "1001"}, "option page: must be a whole number from 1 to 1000"),
        ({"page": "٣"}, "option page: must be a whole number"),
        ({"timeout": "nan"}, "option timeout: must be seconds"),
        ({"url": "ftp://x"}, "option url: 'ftp://x' is not the URL"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        reading(options)


def test_options_of_writing() -> None:
    found = writing({"url": "http://a", "batch": "7", "refused": "skip", "checkpointlocation": "c"})
    assert (found.batch, found.skip, writing({}).skip, writing({}).batch) == (7, True, False, 5_000)
    assert writing({"past": "send"}).past and not writing({}).past
    for options in ({"refused": "no"}, {"batch": "10001"}, {"batch": "0"}, {"since": "1"}, {"past": "no"},
                    {"refused": "/a/folder"}):  # fmt: skip
        with pytest.raises(BadInput, match=f"option {next(iter(options))}"):
            writing(options)


def test_no_row_can_stop_a_stream_for_ever() -> None:
    """`fail` is the default for tables. A stream would fail again at each start."""
    for refused in ({}, {"refused": "fail"}, {"refused": "s3a://bucket/refused"}):
        with pytest.raises(BadInput, match=r"option refused: a stream needs a folder .* or skip"):
            writing({"url": "http://a"} | refused, stream=True)
    assert writing({"refused": "skip"}, stream=True).skip
    found = writing({"refused": "/shared/refused"}, stream=True)
    assert (found.refused, found.skip) == (Path("/shared/refused"), False)
    assert writing({"refused": "file:///shared/refused"}, stream=True).refused == Path("/shared/refused")
