"""A scenario's results: figures with their units and targets, and a trace to plot."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median

import numpy as np
import numpy.typing as npt

_BINS_S = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0, 600.0)
_MAX_BINS = 120


@dataclass(frozen=True, slots=True)
class Target:
    """A target for a figure: at most `limit`, or, with `at_least`, at least `limit`."""

    limit: float
    at_least: bool = False

    def met(self, value: float) -> bool:
        """Whether a value meets the target. NaN, a value that could not be measured, never does."""
        return value >= self.limit if self.at_least else value <= self.limit


NONE = Target(0)


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number. `vital`: any value except zero is a fault in the system, not a matter of speed."""

    key: str
    text: str
    value: float
    unit: str = ""
    target: Target | None = None

    @property
    def vital(self) -> bool:
        return self.target == NONE


def vital(key: str, text: str, value: int) -> Figure:
    """A count that must be zero."""
    return Figure(key, text, value, target=NONE)


@dataclass(frozen=True, slots=True)
class Trace:
    """Samples over time: `sample_ms` (named `label`), taken at `at_ms` (epoch ms). Each sample is for `weight`
    messages."""

    label: str
    flow: str
    sample_ms: npt.NDArray[np.float64]
    at_ms: npt.NDArray[np.float64]
    weight: npt.NDArray[np.int64]

    def over_time(self) -> "Series":
        """The trace in at most 120 bins, which have a round width."""
        began = float(self.at_ms.min())
        span_s = max(float(self.at_ms.max()) - began, 1.0) / 1000
        width = next((width for width in _BINS_S if span_s / width <= _MAX_BINS), _BINS_S[-1])
        place = ((self.at_ms - began) / 1000 / width).astype(np.int64)
        order = np.argsort(place, kind="stable")
        edges = np.searchsorted(place[order], np.arange(place.max() + 2))
        flow = np.bincount(place, weights=self.weight) / width
        parts = [self.sample_ms[order[low:high]] for low, high in pairwise(edges)]
        p50, p99 = (
            np.array([np.percentile(part, q, method="higher") if len(part) else math.nan for part in parts], np.float64)
            for q in (50, 99)
        )
        return Series(width, (np.arange(len(flow)) * width).astype(np.float64), flow, p50, p99)


@dataclass(frozen=True, slots=True)
class Series:
    """Bins of `width_s`. Each has its start (s), messages/s, and p50 and p99 of the samples (ms; NaN for an empty
    bin)."""

    width_s: float
    start_s: npt.NDArray[np.float64]
    per_s: npt.NDArray[np.float64]
    p50_ms: npt.NDArray[np.float64]
    p99_ms: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ScenarioOutcome:
    """One run of one scenario."""

    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()
    trace: Trace | None = None

    def against(self, targets: Mapping[str, Target]) -> "ScenarioOutcome":
        """The same outcome with targets, by figure key. Raises KeyError if a target has no figure."""
        keys = {figure.key for figure in self.figures}
        if unknown := targets.keys() - keys:
            raise KeyError(f"no figure named {', '.join(sorted(unknown))}")
        figures = (replace(each, target=targets.get(each.key, each.target)) for each in self.figures)
        return replace(self, figures=tuple(figures))


@dataclass(frozen=True, slots=True)
class FigureRow:
    """One figure over all runs. It is judged by its median; a vital figure is judged by its worst run."""

    figure: Figure
    values: tuple[float, ...]

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def middle(self) -> float:
        return median(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None if there is no target."""
        if self.figure.target is None:
            return None
        return self.figure.target.met(self.high if self.figure.vital else self.middle)


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """All runs of one scenario with one set of parameters."""

    name: str
    title: str
    parameters: Mapping[str, object]
    outcomes: tuple[ScenarioOutcome, ...]
    rows: tuple[FigureRow, ...] = field(init=False)

    def __post_init__(self) -> None:
        by_key: dict[str, list[Figure]] = {}
        for outcome in self.outcomes:
            for figure in outcome.figures:
                by_key.setdefault(figure.key, []).append(figure)
        rows = tuple(FigureRow(same[-1], tuple(each.value for each in same)) for same in by_key.values())
        object.__setattr__(self, "rows", rows)

    @property
    def sound(self) -> bool:
        """Whether no message was lost, duplicated, early or answered wrongly in any run."""
        return all(row.met for row in self.rows if row.figure.vital)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes from all runs, each only once."""
        return tuple(dict.fromkeys(note for outcome in self.outcomes for note in outcome.notes))
