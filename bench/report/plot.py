"""Draws pictures of a bench: on the left the distribution of the lateness (or latency), on the right throughput and
lateness over time."""

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from duemq.bench.report import growth, page
from duemq.bench.report.figures import ScenarioResult, Trace
from duemq.bench.report.report import document, number
from duemq.bench.report.style import BLUE, FAINT, INK, ORANGE, STYLE, TEAL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def write_plot(path: Path, results: Sequence[ScenarioResult], where: dict[str, Any]) -> None:
    """Write a PNG with a row per scenario or, if `path` ends in `.html`, one self-contained page with tables and
    pictures.

    If there are several numbers of waiting messages, the PNG shows how their cost grows instead, and the page shows
    this, too.
    """
    traced = [(result, trace) for result in results if (trace := result.outcomes[-1].trace) is not None]
    points = growth.points_in(document(results, where)["scenarios"])
    grown = growth.draw(points) if len(points) > 1 else None
    if path.suffix == ".html":
        pictures = {id(result): _svg(_draw([(result, trace)], titles=False)) for result, trace in traced}
        text = page.render(results, pictures, where, _svg(grown) if grown else "")
        path.write_text(text, encoding="utf-8")
    elif grown:
        grown.savefig(path, dpi=140)
    elif traced:
        _draw(traced).savefig(path, dpi=140)


def _svg(figure: "Figure") -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg")
    text = file.getvalue()
    return text[text.index("<svg") :]


def _draw(traced: Sequence[tuple[ScenarioResult, Trace]], titles: bool = True) -> "Figure":
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(cast(Any, STYLE)):
        height = 3.6 if titles else 3.2
        figure = Figure(figsize=(12, height * len(traced)), layout="constrained")
        rows = figure.subfigures(len(traced), 1, squeeze=False, hspace=0.04)
        for (result, trace), row in zip(traced, rows[:, 0], strict=True):
            if titles:
                row.suptitle(result.title, x=0.012, ha="left", fontsize=12, fontweight="bold")
            left, right = row.subplots(1, 2, width_ratios=(1, 1.35))
            _distribution(left, trace)
            _over_time(right, trace)
    return figure


def _distribution(axes: "Axes", trace: Trace) -> None:
    """Draw a histogram (in shares of all samples) and the cumulative curve over it; mark p50 and p99."""
    sample = trace.sample_ms
    p50, p99, top = np.percentile(sample, (50, 99, 99.9), method="higher").tolist()
    low, high = min(0.0, float(sample.min())), max(min(top * 1.08, p99 * 3), 1.0)
    edges = np.linspace(low, high, 70)
    share = np.histogram(sample, edges)[0] * 100 / len(sample)
    axes.bar(edges[:-1], share, np.diff(edges), align="edge", color=BLUE, alpha=0.85, linewidth=0)
    axes.set(title=f"{trace.label}, ms", ylabel="% of all", xlim=(low, high), ylim=(0, float(share.max()) * 1.3 or 1))
    axes.grid(axis="x", visible=False)
    cumulative = axes.twinx()
    ordered = np.sort(sample)
    at = np.linspace(low, high, 300)
    cumulative.plot(at, np.searchsorted(ordered, at, "right") * 100 / len(sample), color=TEAL, linewidth=1.6)
    cumulative.set(ylim=(0, 130), yticks=[0, 25, 50, 75, 100])
    cumulative.set_ylabel("cumulative, %", color=TEAL)
    cumulative.tick_params(axis="y", colors=TEAL)
    cumulative.grid(visible=False)
    _mark(axes, (low, high), (("p50", p50, INK, 0.97), ("p99", p99, ORANGE, 0.885)))
    beyond = np.count_nonzero(sample > high)
    if beyond:
        text = f"{beyond:,} beyond, max {number(float(sample.max()), 'ms')}"
        axes.annotate(text, (0.995, 0.72), xycoords="axes fraction", ha="right", va="top", fontsize=8, color=FAINT)


def _mark(axes: "Axes", span: tuple[float, float], marks: Sequence[tuple[str, float, str, float]]) -> None:
    for name, value, colour, height in marks:
        axes.axvline(value, color=colour, linewidth=1.2, linestyle=(0, (4, 2)))
        left_half = value < (span[0] + span[1]) / 2
        axes.annotate(
            f"{name}  {number(value, 'ms')}",
            (value, height),
            xycoords=("data", "axes fraction"),
            xytext=(5 if left_half else -5, 0),
            textcoords="offset points",
            ha="left" if left_half else "right",
            va="top",
            color=colour,
            fontweight="bold",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
        )


def _over_time(axes: "Axes", trace: Trace) -> None:
    from matplotlib.ticker import FuncFormatter

    series = trace.over_time()
    axes.stairs(series.per_s, [*series.start_s, series.start_s[-1] + series.width_s], fill=True, color=BLUE, alpha=0.22)
    axes.set(xlabel="s since the first", xlim=(0, float(series.start_s[-1] + series.width_s)))
    axes.set_ylim(0, float(series.per_s.max()) * 1.25 or 1)
    axes.set_ylabel(trace.flow, color=BLUE)
    thousands = FuncFormatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(thousands)
    axes.grid(axis="x", visible=False)
    axes.set_title(f"{trace.flow} and {trace.label}, per {series.width_s:g} s")
    late = axes.twinx()
    centre = series.start_s + series.width_s / 2
    for values, name, colour in ((series.p50_ms, "p50", INK), (series.p99_ms, "p99", ORANGE)):
        finite = np.isfinite(values)
        late.plot(centre[finite], values[finite], color=colour, linewidth=1.5, label=name)
    highest = np.nanmax(series.p99_ms) if np.isfinite(series.p99_ms).any() else 1.0
    late.set_ylim(0, max(float(highest) * 1.25, 1.0) if math.isfinite(highest) else 1.0)
    late.set_ylabel("ms")
    if highest > 1000:
        late.yaxis.set_major_formatter(thousands)
    late.grid(visible=False)
    late.legend(loc="upper right", ncols=2, frameon=False)
