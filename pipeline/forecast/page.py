"""A forecast as one HTML file that needs nothing else: what it comes to, two or three plots (SVG), the tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Final

from duemq.pipeline.forecast.job import OTHERS, Bar, Forecast
from duemq.pipeline.forecast.words import at, duration, sentences

_COLOURS: Final = ("#4269d0", "#efb118", "#3ca951", "#ff725c", "#a463f2", "#9c6b4e", "#9498a0")
_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 1_000, 74, 12, 12, 34
_HEIGHT: Final = 220
_DAY_MS, _HOUR_MS, _MINUTE_MS = 86_400_000, 3_600_000, 60_000
_TICKS_MS: Final = (*(n * _MINUTE_MS for n in (1, 5, 10, 15, 30)), *(n * _HOUR_MS for n in (1, 2, 3, 6, 12)),
                    *(n * _DAY_MS for n in (1, 2, 7, 14, 30, 90, 365)))  # fmt: skip
_MOST_TICKS: Final = 9

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1f2328; --dim: #656d76; --line: #d0d7de; --bad: #cf222e; --paper: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --dim: #8d96a0; --line: #3d444d; --bad: #ff7b72; --paper: #0d1117; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1040px;
  margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; margin: 0 0 .4em } h2 { font-size: 1.1em; margin: 1.8em 0 .3em }
.answer { font-size: 1.15em; border-left: 5px solid #3ca951; padding: .3em .8em }
.answer.late { border-color: var(--bad) }
p.dim, .dim { color: var(--dim) } svg { width: 100%; height: auto; display: block }
svg text { fill: var(--dim); font: 12px system-ui, sans-serif } svg .grid { stroke: var(--line); stroke-width: 1 }
svg .capacity { stroke: var(--bad); stroke-width: 1.5; stroke-dasharray: 6 4 } svg .bad { fill: var(--bad) }
svg text.capacity { fill: var(--bad); stroke: none }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
td, th { padding: .15em 1em .15em 0; text-align: right }
th { color: var(--dim); font-weight: normal; border-bottom: 1px solid var(--line) } .l { text-align: left }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin: 0 .35em 0 1em }
"""


def write_page(path: Path, done: Forecast) -> None:
    """Make or replace the page. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(done))


def page(done: Forecast) -> str:
    """The page as HTML."""
    answer, *others = map(escape, sentences(done))
    body = [
        "<h1>Forecast</h1>",
        f'<p class="answer{" late" if done.late_minutes else ""}">{answer}</p>',
        *(f'<p class="dim">{sentence}</p>' for sentence in others),
        *(_plots(done) if done.bars else ()),
        *_tables(done),
    ]
    head = f'<meta charset="utf-8"><title>duemq: forecast</title><style>{_STYLE}</style>'
    return "\n".join(("<!doctype html>", f'<html lang="en"><head>{head}</head><body>', *body, "</body></html>", ""))


# --- plots ----------------------------------------------------------------------------------------------------------


def _plots(done: Forecast) -> Iterable[str]:
    width = {_MINUTE_MS: "minute", _HOUR_MS: "hour", _DAY_MS: "day"}.get(done.step_ms, duration(done.step_ms))
    named = _topics(done.bars)
    colours = {topic: _COLOURS[-1] if topic == OTHERS else _COLOURS[n] for n, topic in enumerate(named)}
    keys = "".join(f'<span class="key" style="background:{colours[topic]}"></span>{escape(topic)}' for topic in named)
    capacity = done.capacity.per_second
    yield f"<h2>Messages due per second, mean of every {width}</h2><p>{keys}</p>"
    yield _Plot(done, capacity).stacked(colours)
    yield f"<h2>Fullest second of every {width}</h2>"
    yield _Plot(done, capacity).dots()
    if done.most_late_ms:
        yield "<h2>How late messages become at most, seconds</h2>"
        yield _Plot(done, capacity).late()


def _topics(bars: Sequence[Bar]) -> list[str]:
    """Largest first, the others last."""
    totals: dict[str, int] = {}
    for bar in bars:
        for topic, messages in bar.messages.items():
            totals[topic] = totals.get(topic, 0) + messages
    return sorted(totals, key=lambda topic: (topic == OTHERS, -totals[topic], topic))


class _Plot:
    """One plot over time. Coordinates are those of the SVG."""

    def __init__(self, done: Forecast, capacity: float) -> None:
        self._bars, self._step, self._capacity = done.bars, done.step_ms, capacity
        self._from = done.bars[0].at_ms
        self._until = done.bars[-1].at_ms + done.step_ms
        start = done.from_ms - done.from_ms % done.step_ms
        self._from = min(self._from, start)
        self._parts: list[str] = []

    def stacked(self, colours: dict[str, str]) -> str:
        seconds = self._step / 1_000
        top = max(sum(bar.messages.values()) for bar in self._bars) / seconds
        y = self._linear(top, self._capacity)
        for bar in self._bars:
            below = 0.0
            for topic, colour in colours.items():
                if messages := bar.messages.get(topic, 0):
                    above = below + messages / seconds
                    said = f"{at(bar.at_ms)}: {topic} {messages:,}"
                    self._bar(bar.at_ms, y(above), y(below), f'fill="{colour}"', said)
                    below = above
        if self._capacity <= 2 * top:  # else it is above what the plot shows
            self._capacity_line(y)
        return self._svg()

    def dots(self) -> str:
        top = max(bar.peak for bar in self._bars)
        low, high = 0, max(1, math.ceil(math.log10(max(top, self._capacity) * 1.1)))
        if (lowest := min(self._capacity, *(bar.peak for bar in self._bars))) >= 10:
            low = math.floor(math.log10(lowest))

        def y(value: float) -> float:
            share = (math.log10(max(value, 10**low)) - low) / (high - low)
            return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

        self._axes(y, [10.0**power for power in range(low, high + 1)])
        for bar in self._bars:
            late = bar.peak > self._capacity
            x = self._x(bar.at_ms + self._step / 2)
            look = 'class="bad" r="4"' if late else f'fill="{_COLOURS[0]}" r="2.5"'
            said = f"{at(bar.at_ms)}: {bar.peak:,} in one second"
            self._parts.append(f'<circle cx="{x:.1f}" cy="{y(bar.peak):.1f}" {look}><title>{said}</title></circle>')
        self._capacity_line(y)
        return self._svg()

    def late(self) -> str:
        y = self._linear(max(bar.late_ms for bar in self._bars) / 1_000, 0)
        for bar in self._bars:
            if bar.late_ms:
                said = f"{at(bar.at_ms)}: late by {duration(bar.late_ms)}"
                self._bar(bar.at_ms, y(bar.late_ms / 1_000), y(0), 'class="bad"', said)
        return self._svg()

    def _linear(self, top: float, also: float) -> Callable[[float], float]:
        """An axis from 0 on that has room for `top`, and for `also` where that does not dwarf it."""
        highest = (max(top, also) if also <= 2 * top else top) * 1.05
        ticks = _round_ticks(highest)

        def y(value: float) -> float:
            return _HEIGHT - _BOTTOM - value / max(ticks[-1], highest) * (_HEIGHT - _TOP - _BOTTOM)

        self._axes(y, ticks)
        return y

    def _axes(self, y: Callable[[float], float], ticks: Sequence[float]) -> None:
        for tick in ticks:
            self._line("grid", y(tick))
            self._text(_LEFT - 8, y(tick) + 4, _short(tick), "end")
        for time, text in _times(self._from, self._until):
            x, base = self._x(time), _HEIGHT - _BOTTOM
            self._parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{base}" y2="{base + 5}"/>')
            self._text(x, base + 20, text, "middle")

    def _line(self, look: str, y: float) -> None:
        self._parts.append(f'<line class="{look}" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')

    def _text(self, x: float, y: float, text: str, anchor: str, look: str = "") -> None:
        self._parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {look}>{text}</text>')

    def _capacity_line(self, y: Callable[[float], float]) -> None:
        at_y, text = y(self._capacity), f"capacity {_short(self._capacity)}/s"
        self._line("capacity", at_y)
        self._text(_WIDTH - _RIGHT, at_y + (14 if at_y < _TOP + 14 else -5), text, "end", 'class="capacity"')

    def _bar(self, at_ms: int, top: float, bottom: float, look: str, said: str) -> None:
        left, right = self._x(at_ms), self._x(at_ms + self._step)
        gap = 1.0 if right - left > 3 else 0.0
        self._parts.append(
            f'<rect x="{left:.2f}" y="{top:.2f}" width="{max(right - left - gap, 0.8):.2f}" '
            f'height="{max(bottom - top, 0.4):.2f}" {look}><title>{escape(said)}</title></rect>'
        )

    def _x(self, ms: float) -> float:
        return _LEFT + (ms - self._from) / (self._until - self._from) * (_WIDTH - _LEFT - _RIGHT)

    def _svg(self) -> str:
        return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(self._parts)}</svg>'


def _round_ticks(top: float) -> list[float]:
    """Four to seven round numbers from 0 to `top` or a little more."""
    if top <= 0:
        return [0.0, 1.0]
    size = 10 ** math.floor(math.log10(top / 4))
    step = next(factor * size for factor in (1, 2, 5, 10) if top / (factor * size) <= 6)
    return [n * step for n in range(math.ceil(top / step - 1e-9) + 1)]


def _short(value: float) -> str:
    for unit, text in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= unit:
            return f"{value / (1e3 if text == 'k' else unit):g}{text}"
    return f"{value:,.3g}" if value < 1_000 else f"{value:,.0f}"


def _times(start: int, end: int) -> Iterable[tuple[int, str]]:
    """Where the time axis has a mark, and what it says (UTC); a date where a day begins, and at the first mark."""
    step = next((one for one in _TICKS_MS if (end - start) / one <= _MOST_TICKS), _TICKS_MS[-1])
    first = True
    for tick in range(-(-start // step) * step, end, step):
        time = datetime.fromtimestamp(tick / 1_000, UTC)
        date = f"{time:%b} {time.day}" + (f" {time.year}" if step >= 90 * _DAY_MS else "")
        if step >= _DAY_MS or tick % _DAY_MS == 0:
            yield tick, date
        else:
            yield tick, f"{date} {time:%H:%M}" if first else f"{time:%H:%M}"
        first = False


# --- tables ---------------------------------------------------------------------------------------------------------


def _tables(done: Forecast) -> Iterable[str]:
    if done.hot:
        yield "<h2>Hot seconds</h2>"
        yield _table(
            ("second (UTC)", "messages", "last one late by", "topics"),
            [
                (at(one.second_ms), f"{one.messages:,}", duration(one.late_ms),
                 ", ".join(f"{topic} {messages:,}" for topic, messages in one.topics[:8]))
                for one in done.hot
            ],
        )  # fmt: skip
    if done.late:
        yield "<h2>Minutes over capacity or late</h2>"
        if done.late_minutes > len(done.late):
            first = f"The first {len(done.late)} of {done.late_minutes:,}; all are in the table backlog."
            yield f'<p class="dim">{first}</p>'
        yield _table(
            ("minute (UTC)", "messages", "fullest second", "waiting", "late by", ""),
            [
                (at(one.minute_ms), f"{one.messages:,}", f"{one.peak:,}", f"{one.waiting:,}", duration(one.late_ms),
                 "over capacity" if one.over else "")
                for one in done.late
            ],
        )  # fmt: skip
    if done.topics:
        yield "<h2>Topics</h2>"
        yield _table(
            ("topic", "messages", "fullest second", "when"),
            [(one.topic, f"{one.messages:,}", f"{one.peak:,}", at(one.peak_ms)) for one in done.topics[:50]],
        )
        if len(done.topics) > 50:
            yield f'<p class="dim">and {len(done.topics) - 50:,} more topics</p>'


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    left = {"topic", "topics", "", "when"}
    look = [' class="l"' if head in left or head.endswith("(UTC)") else "" for head in heads]
    top = "".join(f"<th{of}>{escape(head)}</th>" for of, head in zip(look, heads, strict=True))
    lines = (
        "<tr>" + "".join(f"<td{of}>{escape(cell)}</td>" for of, cell in zip(look, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{top}</tr>{''.join(lines)}</table>"
