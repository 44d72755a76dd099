"""Plots of the report, as SVG that takes its colours from the page: nothing to load, readable on light and on dark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from duemq.pipeline.audit.lateness import Spread

_WIDTH, _HEIGHT = 760, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 14, 34
_LINES: Final = (("p50", "p50"), ("p99", "p99"), ("highest", "max"))


def _ms(value: float) -> str:
    if value < 1_000:
        return f"{value:g} ms"
    return f"{value / 1_000:g} s" if value < 120_000 else f"{value / 60_000:.0f} min"


def _x(share: float) -> float:
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _y(share: float) -> float:
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _svg(parts: Sequence[str], title: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, name: str) -> str:
    return f'<line class="{name}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _decades(highest: float) -> list[int]:
    return [10**power for power in range(math.ceil(math.log10(max(highest, 10))) + 1)]


def _log(value: float, highest: int) -> float:
    """Where a lateness is between 0 and `highest`, on a scale of decades that has a place for 0."""
    return math.log10(value + 1) / math.log10(highest + 1)


def histogram(late: Sequence[int], messages: Sequence[int]) -> str:
    """How many messages came how late: logarithmic bars, eight a decade."""
    top = _decades(max(late))[-1]
    edges = [0.0, *(10 ** (n / 8) for n in range(8 * round(math.log10(top)) + 1))]
    counts = [0] * (len(edges) - 1)
    for value, count in zip(late, messages, strict=True):
        at = 0 if value < 1 else min(int(math.log10(value) * 8 + 1e-9) + 1, len(counts) - 1)
        counts[at] += count
    total, most = sum(counts), max(counts)
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = _y(share)
        parts += [
            _line(_LEFT, y, _WIDTH - _RIGHT, y, "grid"),
            _text(_LEFT - 8, y + 4, f"{share * most / total:.1%}", "end"),
        ]
    for at, count in enumerate(counts):
        x1, x2 = _x(_log(edges[at], top)), _x(_log(edges[at + 1], top))
        height = _y(0) - _y(count / most)
        tip = f"{_ms(round(edges[at], 1))} to {_ms(round(edges[at + 1], 1))}: {count:,} messages, {count / total:.2%}"
        if count:
            parts.append(
                f'<rect class="bar" x="{x1 + 0.5:.1f}" y="{_y(count / most):.1f}" width="{max(x2 - x1 - 1, 1):.1f}" '
                f'height="{max(height, 1):.1f}"><title>{tip}</title></rect>'
            )
    for value in _decades(top):
        anchor = "end" if value == top else "middle"
        parts.append(_text(_x(_log(value, top)), _HEIGHT - _BOTTOM + 20, _ms(value), anchor))
    return _svg(parts, "How late messages came")


def by_hour(hours: Mapping[int, Spread]) -> str:
    """Percentiles of each hour (its start, epoch ms), on a logarithmic scale."""
    times = list(hours)
    top = _decades(max(spread.highest for spread in hours.values()))[-1]
    first, last = times[0], max(times[-1], times[0] + 1)

    def x(hour: int) -> float:
        return _x(0.5 if len(times) == 1 else (hour - first) / (last - first))

    parts = []
    for value in [0, *_decades(top)]:
        y = _y(_log(value, top))
        parts += [_line(_LEFT, y, _WIDTH - _RIGHT, y, "grid"), _text(_LEFT - 8, y + 4, _ms(value), "end")]
    for index, (name, shown) in enumerate(_LINES):
        points = [(x(hour), _y(_log(getattr(spread, name), top))) for hour, spread in hours.items()]
        parts.append(f'<polyline class="line l{index}" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in points)}"/>')
        for (a, b), (hour, spread) in zip(points, hours.items(), strict=True):
            tip = f"{_hour(hour)}: {shown} {_ms(getattr(spread, name))} of {spread.messages:,} messages"
            parts.append(f'<circle class="dot l{index}" cx="{a:.1f}" cy="{b:.1f}" r="3"><title>{tip}</title></circle>')
    step = max(len(times) // 6, 1)
    for hour in times[::step]:
        parts.append(_text(x(hour), _HEIGHT - _BOTTOM + 20, _hour(hour)))
    return _svg(parts, "Lateness by hour")


def legend() -> str:
    """Of `by_hour`."""
    return " ".join(f'<span class="key"><i class="l{n}"></i>{shown}</span>' for n, (_, shown) in enumerate(_LINES))


def _hour(hour: int) -> str:
    return datetime.fromtimestamp(hour / 1000, UTC).strftime("%m-%d %H:%M")
