"""The results of a run of rounds: as JSON, and as a table."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
from aiokafka.errors import for_code

from tests.chaos.delayed.round import Result


@dataclass(frozen=True)
class Account:
    """`protocol`: of Kafka's transactions."""

    seed: int
    protocol: str
    results: Sequence[Result]

    @property
    def clean(self) -> bool:
        return bool(self.results) and not any(result.wrong for result in self.results)

    @property
    def totals(self) -> dict[str, int | float]:
        held = sorted(seconds for result in self.results for seconds in result.held_s)
        commits: Counter[str] = Counter()
        for result in self.results:
            commits.update(result.commits)
        return {
            "rounds": len(self.results), "wrong rounds": sum(bool(result.wrong) for result in self.results),
            "messages": sum(result.messages for result in self.results),
            "requests held": len(held), "held, median s": held[len(held) // 2] if held else 0,
            "held, longest s": held[-1] if held else 0, "held for 10 s or more": sum(each >= 10 for each in held),
            "let go right after a later request": sum(result.met for result in self.results),
            "committers opened": sum(result.terms for result in self.results),
            **{f"commits: {outcome}": count for outcome, count in sorted(commits.items())},
        }  # fmt: skip

    def markdown(self) -> str:
        by_kind: dict[tuple[str, str], list[Result]] = defaultdict(list)
        for result in self.results:
            by_kind[result.level, result.kind].append(result)
        wrong = Counter(line.partition(":")[0] for result in self.results for line in result.wrong)
        lines = [
            f"seed {self.seed}, transactions {self.protocol}", "", "| | |", "|---|---|",
            *(f"| {what} | {count:,} |" for what, count in self.totals.items()),
            *(f"| {what} | {count:,} |" for what, count in sorted(wrong.items())), "",
            "| level | held | rounds | wrong | crossed | longest s | answers to what was held |",
            "|---|---|---|---|---|---|---|",
        ]  # fmt: skip
        for (level, kind), some in sorted(by_kind.items()):
            codes = Counter(_name_of(result.codes[0]) for result in some if result.codes)
            answers = ", ".join(f"{name} {count}" for name, count in codes.most_common())
            longest = max((seconds for result in some for seconds in result.held_s), default=0)
            bad, met = sum(bool(result.wrong) for result in some), sum(result.met for result in some)
            lines.append(f"| {level} | {kind} | {len(some)} | {bad} | {met} | {longest:.0f} | {answers} |")
        for result in self.results:
            lines += [f"- round {result.number}, {result.kind}: {line}" for line in result.wrong[:3]]
        return "\n".join(lines) + "\n"

    def write(self, path: Path) -> None:
        """`path` gets the JSON; the table goes beside it, with the ending `.md`."""
        document = {
            "clean": self.clean, "seed": self.seed, "protocol": self.protocol, "totals": self.totals,
            "rounds": [asdict(result) for result in self.results],
        }  # fmt: skip
        path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
        path.with_suffix(".md").write_text(self.markdown())


def _name_of(code: int | None) -> str:
    return "no answer" if code is None else for_code(code).__name__
