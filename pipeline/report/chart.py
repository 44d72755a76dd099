"""Plots as SVG, with colours from the page (`document.py`).

A chart has two axes. The positions of its marks are in the units of the axes. A mark has a colour (`c0` to `c6`, or
`bad`) and a tooltip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from duemq.pipeline.report.document import Html, rendered

_WIDTH, _HEIGHT = 1_000, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 14, 14, 34
_DAY_MS, _HOUR_MS, _MINUTE_MS = 86_400_000, 3_600_000, 60_000
_STEPS_MS: Final = (*(n * _MINUTE_MS for n in (1, 5, 10, 15, 30)), *(n * _HOUR_MS for n in (1, 2, 3, 6, 12)),
                    *(n * _DAY_MS for n in (1, 2, 7, 14, 30, 90, 365)))  # fmt: skip
_MAX_TIMES: Final = 9


@dataclass(frozen=True, slots=True)
class Axis:
    """`share`: maps a value to its position, from 0 at the start of the axis to 1. `ticks`: values with their text."""

    share: Callable[[float], float]
    ticks: Sequence[tuple[float, str]]


def short(value: float) -> str:
    """A number in a few characters: 12k, 3.5M."""
    for unit, factor, text in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if value >= unit:
            return f"{value / factor:g}{text}"
    return f"{value:,.3g}" if value < 1_000 else f"{value:,.0f}"


def linear(top: float, text: Callable[[float], str] = short) -> Axis:
    """An axis from 0 to `top`, with four to seven round numbers; the last one may be slightly above `top`."""
    top = top if top > 0 else 1
    size = 10 ** math.floor(math.log10(top / 4))
    step = next(factor * size for factor in (1, 2, 5, 10) if top / (factor * size) <= 6)
    ticks = [n * step for n in range(max(1, math.ceil(top / step - 1e-9)) + 1)]
    end = max(top, ticks[-1])
    return Axis(lambda value: value / end, [(tick, text(tick)) for tick in ticks])


def decades(lowest: float, highest: float, text: Callable[[float], str] = short) -> Axis:
    """A logarithmic axis over whole decades; it includes 0 if `lowest` is below 1."""
    top = max(1, math.ceil(math.log10(max(highest, 1)) - 1e-9))
    if lowest < 1:
        end = math.log10(10**top + 1)
        ticks = [0.0, *(10.0**power for power in range(top + 1))]
        return Axis(lambda value: math.log10(max(value, 0) + 1) / end, [(tick, text(tick)) for tick in ticks])
    low = min(math.floor(math.log10(lowest)), top - 1)
    return Axis(
        lambda value: (math.log10(max(value, 10.0**low)) - low) / (top - low),
        [(10.0**power, text(10.0**power)) for power in range(low, top + 1)],
    )


def instants(start: int, end: int) -> Axis:
    """An axis in epoch ms, with text in UTC. The first tick and the ticks at midnight show the date."""
    step = next((one for one in _STEPS_MS if (end - start) / one <= _MAX_TIMES), _STEPS_MS[-1])
    ticks: list[tuple[float, str]] = []
    for tick in range(-(-start // step) * step, end + 1, step):
        time = datetime.fromtimestamp(tick / 1_000, UTC)
        date = f"{time:%b} {time.day}" + (f" {time.year}" if step >= 90 * _DAY_MS else "")
        clock = f"{time:%H:%M}" if ticks else f"{date} {time:%H:%M}"
        ticks.append((tick, date if step >= _DAY_MS or tick % _DAY_MS == 0 else clock))
    return Axis(lambda value: (value - start) / max(end - start, 1), ticks)


class Chart:
    """One plot. `title` is for screen readers."""

    def __init__(self, title: str, x: Axis, y: Axis) -> None:
        self._title, self._x_axis, self._y_axis = title, x, y
        self._marks: list[tuple[str, str, dict[str, str], str]] = []
        self._limits: list[tuple[float, str]] = []

    def bar(self, left: float, right: float, bottom: float, top: float, look: str, tip: str) -> None:
        """A bar from `left` to `right` and from `bottom` to `top`; it is never thinner than a line."""
        x1, x2, y1, y2 = self._x(left), self._x(right), self._y(top), self._y(bottom)
        width = x2 - x1 - (1.0 if x2 - x1 > 3 else 0.0)
        place = {"x": x1, "y": y1, "width": max(width, 0.8), "height": max(y2 - y1, 0.8)}
        self._marks.append(("rect", look, {name: f"{value:.2f}" for name, value in place.items()}, tip))

    def dot(self, x: float, y: float, look: str, tip: str, radius: float = 3) -> None:
        place = {"cx": f"{self._x(x):.1f}", "cy": f"{self._y(y):.1f}", "r": f"{radius:g}"}
        self._marks.append(("circle", look, place, tip))

    def line(self, points: Sequence[tuple[float, float]], look: str) -> None:
        """A line through these points."""
        places = " ".join(f"{self._x(x):.1f},{self._y(y):.1f}" for x, y in points)
        self._marks.append(("polyline", look, {"points": places}, ""))

    def limit(self, y: float, text: str) -> None:
        """A limit, drawn as a line across the plot."""
        self._limits.append((self._y(y), text))

    def svg(self) -> Html:
        return rendered(
            "chart.svg", title=self._title, width=_WIDTH, height=_HEIGHT, left=_LEFT, right=_WIDTH - _RIGHT,
            bottom=_HEIGHT - _BOTTOM, x_ticks=[(self._x(value), text) for value, text in self._x_axis.ticks],
            y_ticks=[(self._y(value), text) for value, text in self._y_axis.ticks], marks=self._marks,
            limits=self._limits,
        )  # fmt: skip

    def _x(self, value: float) -> float:
        return _LEFT + self._x_axis.share(value) * (_WIDTH - _LEFT - _RIGHT)

    def _y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - self._y_axis.share(value) * (_HEIGHT - _TOP - _BOTTOM)
