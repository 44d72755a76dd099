"""Plots of the report: how late messages came, in all and by the hour."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from duemq.pipeline.audit.lateness import Spread
from duemq.pipeline.report.chart import Chart, decades, instants, linear
from duemq.pipeline.report.document import keys

_LINES: Final = (("p50", "p50", "c0"), ("p99", "p99", "c1"), ("highest", "max", "c2"))
_PER_DECADE: Final = 8  # bars


def _ms(value: float) -> str:
    if value < 1_000:
        return f"{value:g} ms"
    return f"{value / 1_000:g} s" if value < 120_000 else f"{value / 60_000:.0f} min"


def histogram(late: Sequence[int], messages: Sequence[int]) -> str:
    """How many messages came how late: logarithmic bars, eight a decade."""
    axis = decades(0, max(late), _ms)
    top = axis.ticks[-1][0]
    edges = [0.0, *(10 ** (n / _PER_DECADE) for n in range(_PER_DECADE * round(math.log10(top)) + 1))]
    counts = [0] * (len(edges) - 1)
    for value, count in zip(late, messages, strict=True):
        at = 0 if value < 1 else min(int(math.log10(value) * _PER_DECADE + 1e-9) + 1, len(counts) - 1)
        counts[at] += count
    total = sum(counts)
    chart = Chart("How late messages came", axis, linear(max(counts) / total, lambda share: f"{share:.1%}"))
    for at, count in enumerate(counts):
        if count:
            begin, end = edges[at], edges[at + 1]
            tip = f"{_ms(round(begin, 1))} to {_ms(round(end, 1))}: {count:,} messages, {count / total:.2%}"
            chart.bar(begin, end, 0, count / total, "c0", tip)
    return chart.svg()


def by_hour(hours: Mapping[int, Spread]) -> str:
    """Percentiles of each hour (its start, epoch ms), on a logarithmic scale, under the key of their colours."""
    times = list(hours)
    chart = Chart(
        "Lateness by hour", instants(times[0], times[-1]),
        decades(0, max(spread.highest for spread in hours.values()), _ms),
    )  # fmt: skip
    for name, shown, look in _LINES:
        chart.line([(hour, getattr(spread, name)) for hour, spread in hours.items()], look)
        for hour, spread in hours.items():
            tip = f"{_hour(hour)}: {shown} {_ms(getattr(spread, name))} of {spread.messages:,} messages"
            chart.dot(hour, getattr(spread, name), look, tip)
    return keys({shown: look for _, shown, look in _LINES}) + chart.svg()


def _hour(hour: int) -> str:
    return datetime.fromtimestamp(hour / 1000, UTC).strftime("%m-%d %H:%M")
