"""What a run came to: as JSON, and as Markdown for the pages that quote it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson


@dataclass
class Account:
    """`requests` and `probes`: the messages sent; `outcomes` and `violations`: the audit's results, over all slices.

    `servers`: of Kafka and of ZooKeeper each. `failure`: why the run, or the reconciliation from the senders' records,
    did not pass. `pauses`: ms.
    """

    seed: int
    minutes: float
    servers: int = 3
    breakages: Counter[str] = field(default_factory=Counter)
    requests: dict[str, int] = field(default_factory=dict)
    messages: int = 0
    probes: int = 0
    files: int = 0
    accepted: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    violations: dict[str, int] = field(default_factory=dict)
    slices: int = 0
    pauses: dict[str, list[int]] = field(default_factory=dict)
    failure: str = ""

    @property
    def clean(self) -> bool:
        return not self.failure and not self.violations

    def write(self, path: Path) -> None:
        """`path` gets the JSON; the tables go beside it, with the ending `.md`."""
        document: dict[str, Any] = {"clean": self.clean, **vars(self)}
        path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
        path.with_suffix(".md").write_text(self.markdown())

    def markdown(self) -> str:
        outcomes = " + ".join(f"{count:,} {outcome}" for outcome, count in self.outcomes.items() if count)
        changes = ("cancel", "cancel_some", "move", "deliver_now", "named", "keyed", "direct")
        counts = {
            "breakages": self.breakages.total(),
            "messages of the senders": self.messages,
            "messages of Kafka clients": self.probes,
            **{f"requests: {name}": self.requests.get(name, 0) for name in changes},
            "files imported": self.files,
            "requests without an answer": sum(
                count
                for name, count in self.requests.items()
                if name in ("no answer", "open 202", "open 503", "open 504")
            ),
            "wrong by the senders' own records": 1 if self.failure else 0,
            "wrong by the Spark audit": sum(self.violations.values()),
        }
        run = f"{self.minutes:g} minutes, seed {self.seed}, brokers: {self.servers}"
        lines = [
            f"{run}. {self.accepted:,} accepted = {outcomes}", "",
            "| | |", "|---|---|", *(f"| {what} | {count:,} |" for what, count in counts.items()), "",
            "| breakage | times |", "|---|---|",
            *(f"| {name} | {count} |" for name, count in sorted(self.breakages.items())),
        ]  # fmt: skip
        if self.failure:
            lines += ["", "```", self.failure, "```"]
        return "\n".join(lines) + "\n"
