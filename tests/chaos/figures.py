"""Fail-over times of all scenarios of a run: a table on the screen, JSON for the pages that quote them."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median


class Figures:
    """Times in ms, by measurement."""

    def __init__(self) -> None:
        self.values: dict[str, list[int]] = {}

    def add(self, what: str, value: int) -> None:
        self.values.setdefault(what, []).append(value)

    def median(self, what: str) -> float:
        return median(self.values[what])

    def table(self) -> list[str]:
        width = max(map(len, self.values), default=0)
        head = f"{'':{width}} {'n':>4} {'min':>6} {'p50':>6} {'max':>6}  (ms)"
        lines = [
            f"{what:{width}} {len(found):>4} {min(found):>6} {median(found):>6.0f} {max(found):>6}"
            for what, found in sorted(self.values.items())
        ]
        return [head, *lines] if lines else []

    def write(self, path: Path) -> None:
        document = {
            what: {"n": len(found), "min": min(found), "p50": median(found), "max": max(found), "values": found}
            for what, found in sorted(self.values.items())
        }
        path.write_text(json.dumps(document, indent=1) + "\n")
