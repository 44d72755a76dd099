"""A forecast as one self-contained HTML file: a summary, two or three plots, and the tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from duemq.pipeline.forecast.job import OTHERS, Forecast, SizeBar
from duemq.pipeline.forecast.tables import at, duration, sentences, tables
from duemq.pipeline.report.chart import Chart, decades, instants, linear, short
from duemq.pipeline.report.document import COLOURS, Html, keys, rendered, table

_MAX_TOPICS = 50
_NAMED = 8  # topics that are listed for a hot second


def page(done: Forecast) -> str:
    """The page as HTML."""
    plots = _plots(done) if done.bars else ()
    shown = []
    for title, heads, rows, total in tables(done, _NAMED):
        first = rows[:_MAX_TOPICS] if title == "Topics" else rows
        shown.append((title, table(heads, first), f"{total - len(first):,}" if total > len(first) else ""))
    return rendered(
        "forecast.html", title="duemq: forecast", done=done, sentences=sentences(done), plots=plots, tables=shown
    )


def _plots(done: Forecast) -> Iterator[tuple[str, Html]]:
    """The plots with their titles."""
    width = {60_000: "minute", 3_600_000: "hour", 86_400_000: "day"}.get(done.step_ms, duration(done.step_ms))
    colours = _colours(done.bars)
    capacity, label = done.capacity.per_second, f"capacity {short(done.capacity.per_second)}/s"
    start = min(done.bars[0].at_ms, done.from_ms - done.from_ms % done.step_ms)
    times = instants(start, done.bars[-1].at_ms + done.step_ms)
    seconds, middle = done.step_ms / 1_000, done.step_ms / 2

    title = f"Messages due per second, mean of every {width}"
    most = max(sum(bar.messages.values()) for bar in done.bars) / seconds
    shown = capacity <= 2 * most  # otherwise the line would dwarf the bars
    chart = Chart(title, times, linear(1.05 * max(most, capacity if shown else 0)))
    for bar in done.bars:
        below = 0.0
        for topic, look in colours.items():
            if messages := bar.messages.get(topic, 0):
                above = below + messages / seconds
                tip = f"{at(bar.at_ms)}: {topic} {messages:,}"
                chart.bar(bar.at_ms, bar.at_ms + done.step_ms, below, above, look, tip)
                below = above
    if shown:
        chart.limit(capacity, label)
    yield title, keys(colours) + chart.svg()

    title = f"Fullest second of every {width}"
    peaks = [bar.peak for bar in done.bars]
    chart = Chart(title, times, decades(max(1, min(capacity, *peaks)), 1.1 * max(capacity, *peaks)))
    for bar in done.bars:
        look, radius = ("bad", 4.0) if bar.peak > capacity else ("c0", 2.5)
        chart.dot(bar.at_ms + middle, bar.peak, look, f"{at(bar.at_ms)}: {bar.peak:,} in one second", radius)
    chart.limit(capacity, label)
    yield title, chart.svg()

    if done.most_late_ms:
        title = "How late messages become at most, seconds"
        chart = Chart(title, times, linear(1.05 * max(bar.late_ms for bar in done.bars) / 1_000))
        for bar in done.bars:
            if bar.late_ms:
                tip = f"{at(bar.at_ms)}: late by {duration(bar.late_ms)}"
                chart.bar(bar.at_ms, bar.at_ms + done.step_ms, 0, bar.late_ms / 1_000, "bad", tip)
        yield title, chart.svg()


def _colours(bars: Sequence[SizeBar]) -> dict[str, str]:
    """The colours of the topics in the plot, the largest topic first; all other topics together come last."""
    totals: dict[str, int] = {}
    for bar in bars:
        for topic, messages in bar.messages.items():
            totals[topic] = totals.get(topic, 0) + messages
    topics = sorted(totals, key=lambda topic: (topic == OTHERS, -totals[topic], topic))
    return {topic: f"c{COLOURS - 1}" if topic == OTHERS else f"c{n}" for n, topic in enumerate(topics)}
