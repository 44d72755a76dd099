"""The words, plots and the capacity of a forecast."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest

from duemq.pipeline.errors import BadInput
from duemq.pipeline.forecast.capacity import MEASURED, Capacity, capacity_of
from duemq.pipeline.forecast.job import OTHERS, Forecast, HotSecond, LateMinute, SizeBar, TopicForecast
from duemq.pipeline.forecast.page import page
from duemq.pipeline.forecast.tables import duration, sentences

START = 1_830_297_600_000  # 2028-01-01T00:00:00Z


def forecast(bars: tuple[SizeBar, ...] = (), late: tuple[LateMinute, ...] = (), counted: int = 0) -> Forecast:
    return Forecast(
        "backups/x", START - 1_000, START, START + 86_400_000, Capacity(10.0, "as given"), counted + 3, counted, 2, 3,
        (TopicForecast("a<b", counted, 25, START),), (HotSecond(START, 25, 1_500, (("a<b", 25),)),), len(late), late,
        max((one.late_ms for one in late), default=0), 60_000, bars,
    )  # fmt: skip


LATE = (LateMinute(START, 900, 25, 300, 30_000, True),)
BARS = (SizeBar(START, {"a<b": 800, OTHERS: 100}, 25, 30_000), SizeBar(START + 600_000, {"a<b": 30}, 3, 0))


def test_the_first_sentence_answers() -> None:
    first = [next(iter(sentences(one))) for one in (forecast(), forecast(counted=5), forecast(BARS, LATE, 930))]
    assert first == [
        "Nothing is due until 2028-01-02 00:00:00 UTC.",
        "All of it can be delivered on time. Capacity: 10 messages/s (as given).",
        "1 minute is over capacity or late by a second or more, from 2028-01-01 00:00:00 UTC on; the latest message by "
        "30.0 s. Capacity: 10 messages/s (as given).",
    ]
    assert "933 messages pending: 930 due" in list(sentences(forecast(BARS, LATE, 930)))[1]


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0"), (1, "0.0 s"), (59_949, "59.9 s"), (60_000, "1 min"), (61_000, "1 min 1 s"), (7_260_000, "2 h 1 min")],
)
def test_durations(ms: int, text: str) -> None:
    assert duration(ms) == text


def test_the_page_needs_nothing_else_and_shows_what_is_late_in_red() -> None:
    text = page(forecast(BARS, LATE, 930))
    assert "http" not in text and "a<b" not in text and "a&lt;b" in text
    mean, fullest, late = text.split("<svg")[1:]
    heights = {
        said: float(height) for height, said in re.findall(r'height="([\d.]+)"[^>]*><title>[^<]*: ([^<]*)', mean)
    }
    assert heights["a&lt;b 800"] == pytest.approx(8 * heights["(others) 100"], rel=0.01)
    assert ">capacity 10/s</text>" in mean  # 15 a second are due, 10 can be delivered
    assert fullest.count('<circle class="bad"') == 1 and late.count('<rect class="bad"') == late.count("<rect") == 1
    assert len(page(forecast(BARS[1:], (), 30)).split("<svg")) == 3, "nothing is late"
    assert "<svg" not in page(forecast())


def test_the_capacity_is_told_measured_or_of_the_page(tmp_path: Path) -> None:
    assert capacity_of(None).per_second == MEASURED
    assert capacity_of("25,000") == (25_000.0, "as given")
    report = tmp_path / "bench.json"

    def scenario(name: str, rate: float, sound: bool = True) -> dict[str, object]:
        return {"name": name, "sound": sound, "figures": {"rate": {"median": rate}}}

    runs = [scenario("steady", 5_000), scenario("steady", 9_900), scenario("steady", 20_000, False),
            scenario("drain", 90_000)]  # fmt: skip
    report.write_bytes(orjson.dumps({"scenarios": runs}))
    assert capacity_of(str(report)) == (9_900.0, "measured: bench.json")
    report.write_bytes(orjson.dumps({"scenarios": runs[2:]}))
    for text, said in (
        ("0", "no number"), ("nan", "no number"), (str(report), "no sound `steady`"), ("x.json", "neither a number"),
    ):  # fmt: skip
        with pytest.raises(BadInput, match=said):
            capacity_of(text)
    report.write_text("[1]")
    with pytest.raises(BadInput, match="not a report"):
        capacity_of(str(report))
