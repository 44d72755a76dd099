"""A forecast as one HTML file that needs nothing else: what it comes to, two or three plots, the tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from duemq.pipeline.forecast.job import OTHERS, Forecast, SizeBar
from duemq.pipeline.forecast.words import at, duration, sentences
from duemq.pipeline.report.chart import Chart, decades, instants, linear, short
from duemq.pipeline.report.document import COLOURS, document, keys, table

_MAX_TOPICS = 50


def page(done: Forecast) -> str:
    """The page as HTML."""
    answer, *others = map(escape, sentences(done))
    return document(
        "duemq: forecast",
        [
            "<h1>Forecast</h1>",
            f'<p class="verdict {"bad" if done.late_minutes else "good"}">{answer}</p>',
            *(f'<p class="soft">{sentence}</p>' for sentence in others),
            *(_plots(done) if done.bars else ()),
            *_tables(done),
        ],
    )


def _plots(done: Forecast) -> Iterable[str]:
    width = {60_000: "minute", 3_600_000: "hour", 86_400_000: "day"}.get(done.step_ms, duration(done.step_ms))
    colours = _colours(done.bars)
    capacity, label = done.capacity.per_second, f"capacity {short(done.capacity.per_second)}/s"
    start = min(done.bars[0].at_ms, done.from_ms - done.from_ms % done.step_ms)
    times = instants(start, done.bars[-1].at_ms + done.step_ms)
    seconds, middle = done.step_ms / 1_000, done.step_ms / 2

    title = f"Messages due per second, mean of every {width}"
    most = max(sum(bar.messages.values()) for bar in done.bars) / seconds
    shown = capacity <= 2 * most  # else it would dwarf the rest
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
    yield f"<h2>{title}</h2>{keys(colours)}{chart.svg()}"

    title = f"Fullest second of every {width}"
    peaks = [bar.peak for bar in done.bars]
    chart = Chart(title, times, decades(max(1, min(capacity, *peaks)), 1.1 * max(capacity, *peaks)))
    for bar in done.bars:
        look, radius = ("bad", 4.0) if bar.peak > capacity else ("c0", 2.5)
        chart.dot(bar.at_ms + middle, bar.peak, look, f"{at(bar.at_ms)}: {bar.peak:,} in one second", radius)
    chart.limit(capacity, label)
    yield f"<h2>{title}</h2>{chart.svg()}"

    if done.most_late_ms:
        title = "How late messages become at most, seconds"
        chart = Chart(title, times, linear(1.05 * max(bar.late_ms for bar in done.bars) / 1_000))
        for bar in done.bars:
            if bar.late_ms:
                tip = f"{at(bar.at_ms)}: late by {duration(bar.late_ms)}"
                chart.bar(bar.at_ms, bar.at_ms + done.step_ms, 0, bar.late_ms / 1_000, "bad", tip)
        yield f"<h2>{title}</h2>{chart.svg()}"


def _colours(bars: Sequence[SizeBar]) -> dict[str, str]:
    """The topics of the plot, largest first and the others last."""
    totals: dict[str, int] = {}
    for bar in bars:
        for topic, messages in bar.messages.items():
            totals[topic] = totals.get(topic, 0) + messages
    topics = sorted(totals, key=lambda topic: (topic == OTHERS, -totals[topic], topic))
    return {topic: f"c{COLOURS - 1}" if topic == OTHERS else f"c{n}" for n, topic in enumerate(topics)}


def _tables(done: Forecast) -> Iterable[str]:
    if done.hot:
        yield "<h2>Hot seconds</h2>"
        yield table(
            ("second", "messages|n", "last one late by|n", "topics"),
            (
                (at(one.second_ms), one.messages, duration(one.late_ms),
                 ", ".join(f"{topic} {messages:,}" for topic, messages in one.topics[:8]))
                for one in done.hot
            ),
        )  # fmt: skip
    if done.late:
        yield "<h2>Minutes over capacity or late</h2>"
        if done.late_minutes > len(done.late):
            first = f"The first {len(done.late)} of {done.late_minutes:,}; all are in the table backlog."
            yield f'<p class="soft">{first}</p>'
        yield table(
            ("minute", "messages|n", "fullest second|n", "waiting|n", "late by|n", ""),
            (
                (at(one.minute_ms), one.messages, one.peak, one.waiting, duration(one.late_ms),
                 "over capacity" if one.over else None)
                for one in done.late
            ),
        )  # fmt: skip
    if done.topics:
        yield "<h2>Topics</h2>"
        yield table(
            ("topic", "messages|n", "fullest second|n", "when"),
            ((one.topic, one.messages, one.peak, at(one.peak_ms)) for one in done.topics[:_MAX_TOPICS]),
        )
        if len(done.topics) > _MAX_TOPICS:
            yield f'<p class="soft">and {len(done.topics) - _MAX_TOPICS:,} more topics</p>'
