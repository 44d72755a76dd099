"""`start`: measures how soon a process with an empty folder is ready."""

from statistics import median

from duemq.bench.harness.harness import Harness
from duemq.bench.report.figures import Figure, ScenarioOutcome


def start(harness: Harness, *, starts: int) -> ScenarioOutcome:
    """Start each kind of process `starts` times with an empty folder. Measure from exec to the first 200 from
    `/readyz`."""
    seconds_by_kind: dict[str, list[float]] = {}
    with harness.screen.phase("starting with empty folders", starts) as advance:
        for number in range(1, starts + 1):
            for kind, seconds in harness.site.start_empty().items():
                seconds_by_kind.setdefault(kind, []).append(seconds)
            advance(number)
    return ScenarioOutcome(
        tuple(
            Figure(f"{kind}_{key}", f"duemq {kind}: start to ready, {text}", value(all_seconds), "s")
            for kind, all_seconds in seconds_by_kind.items()
            for key, text, value in (("min", "fastest", min), ("p50", "median", median), ("max", "slowest", max))
        )
    )
