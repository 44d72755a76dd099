"""Pages and charts: well-formed, nothing to load, nothing unescaped, every mark inside its plot."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from duemq.pipeline.report.chart import Axis, Chart, decades, instants, linear, short
from duemq.pipeline.report.document import COLOURS, Html, document, keys, table

DAY_MS = 86_400_000
NOW = 1_830_297_600_000  # 2028-01-01T00:00:00Z


class Balanced(HTMLParser):
    """Fails where a tag is not closed in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.said: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None: ...

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said.append(data)


def read(page: str) -> Balanced:
    found = Balanced()
    found.feed(page)
    assert not found.open
    return found


def test_a_page_is_whole_loads_nothing_and_has_both_colour_schemes() -> None:
    page = document("a <b>", ["<h1>x</h1>", table(["one", "two|n"], [["<i>", 1_234], [Html("<b>x</b>"), None]])])
    said = read(page).said
    assert "a <b>" in said and "<i>" in said and "1,234" in said
    assert "<b>x</b>" in page and '<th class="n">two</th>' in page and "<td></td>" not in page
    assert not re.search(r"https?:|@import|url\(|<script|<link|src=", page)
    assert "color-scheme: light dark" in page and "prefers-color-scheme: dark" in page
    for name in ("ink", "soft", "paper", "card", "line", "good", "bad", *(f"c{n}" for n in range(COLOURS))):
        assert page.count(f"--{name}:") == 2, f"{name} has a colour on light and one on dark"


def test_rows_as_long_as_their_heads() -> None:
    with pytest.raises(ValueError, match="zip"):
        table(["one", "two"], [["x"]])


def test_keys_name_colours() -> None:
    assert '<i class="c0"></i>a&amp;b' in keys({"a&b": "c0"})


@pytest.mark.parametrize(
    ("top", "last"), [(0, 1), (1, 1), (7, 8), (100, 100), (101, 120), (0.03, 0.03), (9_999, 10_000)]
)
def test_a_linear_axis_has_a_few_round_numbers(top: float, last: float) -> None:
    axis = linear(top)
    values = [value for value, _ in axis.ticks]
    assert values[0] == 0 and values[-1] == pytest.approx(last) and 2 <= len(values) <= 8
    assert axis.share(0) == 0 and axis.share(values[-1]) == pytest.approx(1)


def test_a_logarithmic_axis_has_whole_decades_and_where_it_is_wanted_a_place_for_nothing() -> None:
    assert [value for value, _ in decades(20, 5_000).ticks] == [10, 100, 1_000, 10_000]
    assert [value for value, _ in decades(0, 50).ticks] == [0, 1, 10, 100]
    for axis in (decades(20, 5_000), decades(0, 50), decades(7, 7), decades(1_000, 1_000)):
        ends = axis.ticks[0][0], axis.ticks[-1][0]
        assert axis.share(ends[0]) == pytest.approx(0) and axis.share(ends[1]) == pytest.approx(1)
        assert len(axis.ticks) > 1


@pytest.mark.parametrize("length", [60_000, 3_600_000, DAY_MS, 7 * DAY_MS, 400 * DAY_MS, 4_000 * DAY_MS])
def test_times_are_few_and_say_the_date(length: int) -> None:
    axis = instants(NOW + 1, NOW + 1 + length)
    assert len(axis.ticks) <= 12
    assert all(0 <= axis.share(value) <= 1 for value, _ in axis.ticks)
    assert not axis.ticks or re.match(r"[A-Z][a-z]{2} \d", axis.ticks[0][1])
    if length == 7 * DAY_MS:
        first = datetime.fromtimestamp(axis.ticks[0][0] / 1_000, UTC)
        assert axis.ticks[0][1] == f"{first:%b} {first.day}"


def test_numbers_are_short() -> None:
    assert [short(value) for value in (0, 0.5, 12, 9_999, 10_000, 2_500_000, 3e9)] == [
        "0", "0.5", "12", "9,999", "10k", "2.5M", "3G",
    ]  # fmt: skip


def test_marks_lie_inside_the_plot_and_a_chart_is_well_formed() -> None:
    chart = Chart("a < b", instants(NOW, NOW + DAY_MS), linear(10))
    chart.bar(NOW, NOW + DAY_MS, 0, 10, "c0", "<tip>")
    chart.bar(NOW, NOW + 1, 3, 3, "bad", "thin")
    chart.dot(NOW + DAY_MS, 10, "c1", "dot")
    chart.line([(NOW, 0), (NOW + DAY_MS, 10)], "c2")
    chart.limit(8, "most & more")
    svg = ElementTree.fromstring(chart.svg())
    _, _, width, height = map(float, svg.attrib["viewBox"].split())
    assert svg.attrib["aria-label"] == "a < b"
    for rect in svg.iter("rect"):
        x, y, w, h = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        assert 0 <= x < x + w <= width and 0 <= y < y + h <= height and w > 0 and h > 0
    for circle in svg.iter("circle"):
        assert 0 < float(circle.attrib["cx"]) < width and 0 < float(circle.attrib["cy"]) < height
    assert [title.text for title in svg.iter("title")] == ["<tip>", "thin", "dot"]
    assert {mark.attrib["class"] for mark in svg.iter("polyline")} == {"c2"}


def test_a_chart_of_nothing() -> None:
    assert ElementTree.fromstring(Chart("x", Axis(lambda _: 0, []), linear(0)).svg()).tag == "svg"
