"""Shows how the cost of waiting messages grows with their number, from the scenarios in `report.document`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from duemq.bench.report.style import BLUE, FAINT, INK, ORANGE, STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Scenario = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GrowthPoint:
    """The results for one number of messages: each figure's median, and the targets (upper or lower bounds), by figure
    key."""

    count: int
    medians: Mapping[str, float]
    targets: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Panel:
    """One diagram with several figures. `lines`: each figure's key, colour and legend. A figure's target is drawn in
    the figure's colour."""

    title: str
    unit: str
    lines: tuple[tuple[str, str, str], ...]


PANELS = (
    Panel("Memory", "MiB", (("rss_peak_mib", ORANGE, "peak, with sealing"), ("rss_settled_mib", BLUE, "settled"))),
    Panel("Disk by payload", "x", (("disk_ratio", BLUE, "whole data folder"),)),
    Panel("Accepted while filling", "msg/s", (("fill_rate", BLUE, "batches of 1,000"),)),
    Panel("After kill -9", "s", (("serving_s", ORANGE, "a known message read"), ("ready_s", BLUE, "ready"))),
    Panel("Look-up and cancel by id, p99", "ms", (("cancel_p99", ORANGE, "cancel"), ("get_p99", BLUE, "get"))),
    Panel("In delay files", "messages", (("far_messages", BLUE, "messages"),)),
)


def points_in(scenarios: Iterable[Scenario]) -> list[GrowthPoint]:
    """The points from the `pending` scenarios, by number of messages. If several scenarios have the same number, the
    last one is used."""
    points = {}
    for each in scenarios:
        if each["name"] == "pending":
            figures, count = each["figures"], int(each["parameters"]["count"])
            medians = {key: figure["median"] for key, figure in figures.items() if figure["median"] is not None}
            targets = {
                key: next(iter(figure["target"].values())) for key, figure in figures.items() if figure["target"]
            }
            points[count] = GrowthPoint(count, medians, targets)
    return [points[count] for count in sorted(points)]


def draw(points: list[GrowthPoint]) -> "Figure":
    """Draw the points; there must be at least two. Targets are dashed lines."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(cast(Any, STYLE)):
        figure = Figure(figsize=(12, 6.4), layout="constrained")
        figure.suptitle("What waiting messages cost, by their number", x=0.012, ha="left", fontweight="bold")
        for axes, panel in zip(figure.subplots(2, 3).flat, PANELS, strict=True):
            _panel(axes, panel, points)
    return figure


def _panel(axes: "Axes", panel: Panel, points: list[GrowthPoint]) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    highest = 0.0
    for key, colour, text in panel.lines:
        pairs = [(point.count, point.medians[key]) for point in points if key in point.medians]
        if not pairs:
            continue
        counts, values = zip(*pairs, strict=True)
        axes.plot(counts, values, color=colour, linewidth=1.8, marker="o", markersize=5, label=text)
        bounds = [point.targets[key] for point in points if key in point.targets]
        highest = max(highest, *values, *bounds[:1])
        if bounds:
            axes.axhline(bounds[0], color=colour, linewidth=1.1, linestyle=(0, (4, 3)), alpha=0.7)
    numbers = [point.count for point in points]
    axes.set(title=f"{panel.title}, {panel.unit}", xscale="log", ylim=(0, highest * 1.2 or 1), xticks=numbers)
    axes.set_xlim(numbers[0] / 1.3, numbers[-1] * 1.3)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}" if value < 1000 else short(value)))
    axes.tick_params(colors=FAINT)
    if highest:
        axes.legend(loc="best", frameon=False, labelcolor=INK, fontsize=8.5)
    else:
        axes.annotate("not measured", (0.5, 0.5), xycoords="axes fraction", ha="center", color=FAINT)


def short(value: float) -> str:
    """A short form of a number, such as 1M, 250K or 300."""
    for size, letter in ((1_000_000, "M"), (1_000, "K")):
        if value >= size:
            return f"{value / size:,.4g}{letter}"
    return f"{value:,.4g}"
