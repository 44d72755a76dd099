"""The results of an abused server: figures with and without abuse, and whether they are good enough."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from duemq.bench.clients.reader import ReceivedRecords
from duemq.bench.clients.send import ACCEPTED, SentMessages
from duemq.bench.harness.tally import LatenessSpread, Tally, spread, tally
from tests.abuse.abusers import Counts
from tests.abuse.base import Sizes
from tests.abuse.honest import Kept

MAX_RSS_BYTES = 1 << 30
MAX_P99_MS = 100.0
_PACE = 0.9  # of the topics a minute, which a server that is slow to answer slows down
_MIB = 1 << 20
_CROWDS = {"idle": "idle", "streams": "streams", "polls": "polls", "slow-heads": "slow_heads"}


class Check(NamedTuple):
    """Something that must hold. `exact`: it does not depend on how fast the machine is."""

    text: str
    found: str
    holds: bool
    exact: bool


@dataclass(frozen=True, slots=True)
class Phase:
    """With abuse, or without. Times in ms; `committed`: the record's time minus the due time; `read`: when the honest
    client had it, minus the due time; `answered`: the time of a batch; `newcomers`: of those that were answered."""

    messages: int
    accepted: int
    answered: LatenessSpread
    committed: LatenessSpread
    read: LatenessSpread
    newcomers: LatenessSpread
    visits: int
    turned_away: int
    most_rss_bytes: int


@dataclass(slots=True)
class Account:
    """`abused_from`, `abused_to`: epoch ms. `rss`: when (epoch ms) and bytes, of the server and its helpers.
    `peak_rss_bytes`: the most they ever had, by the kernel. `failure`: why the run did not come to its end."""

    minutes: float
    rate: float
    seed: int
    sizes: Sizes
    kinds: list[str]
    abused_from: float = math.inf
    abused_to: float = math.inf
    rss: list[tuple[float, int]] = field(default_factory=list)
    peak_rss_bytes: int = 0
    visits: list[tuple[float, float, bool]] = field(default_factory=list)
    counts: Counts = field(default_factory=dict)
    exit_code: int | None = None
    failure: str = ""
    sent: SentMessages | None = None
    received: ReceivedRecords | None = None
    kept: Kept | None = None

    def phase(self, abused: bool) -> Phase | None:
        """None where the run did not come so far."""
        if self.sent is None or self.received is None or self.kept is None:
            return None
        sent, received, kept = self.sent, self.received, self.kept

        def of(times: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
            chosen: npt.NDArray[np.bool_] = (times >= self.abused_from) == abused
            return chosen

        visits = [(took, ok) for at, took, ok in self.visits if (at >= self.abused_from) == abused]
        return Phase(
            messages=int(np.count_nonzero(of(sent.dues))),
            accepted=int(np.count_nonzero(sent.outcome[of(sent.dues)] == ACCEPTED)),
            answered=spread(sent.wait_ms[of(sent.answered_ms)]),
            committed=spread((kept.at - kept.due)[of(kept.due)].astype(np.float64)),
            read=spread((received.at - received.due)[of(received.due)]),
            newcomers=spread(np.array([took for took, ok in visits if ok])),
            visits=len(visits),
            turned_away=sum(not ok for _, ok in visits),
            most_rss_bytes=max((size for at, size in self.rss if (at >= self.abused_from) == abused), default=0),
        )

    def checks(self) -> Iterator[Check]:
        yield Check("the run came to its end", self.failure.partition("\n")[0] or "yes", not self.failure, True)
        yield Check(
            "the server lived, and stopped when told to", f"exit code {self.exit_code}", self.exit_code == 0, True
        )
        most = max(self.peak_rss_bytes, *(size for _, size in self.rss), 0)
        yield Check("memory below 1 GiB", f"{most / _MIB:,.0f} MiB", 0 < most < MAX_RSS_BYTES, False)
        for name in self.kinds:
            yield self._at_its_size(name)
        phase = self.phase(abused=True)
        if self.sent is None or self.received is None or self.kept is None or phase is None:
            return
        count, accepted = len(self.sent.dues), self.sent.accepted
        found = f"{accepted:,} of {count:,}" + (f": {self.sent.problem}" if self.sent.problem else "")
        yield Check("each honest message is accepted", found, accepted == count, True)
        counts = tally(self.sent, self.received)
        yield Check("each is read once, and not early", _found(counts), _exact(counts), True)
        times = np.bincount(self.kept.seq, minlength=count)
        lost, doubled = np.count_nonzero((self.sent.outcome == ACCEPTED) & (times == 0)), np.count_nonzero(times > 1)
        yield Check("each is in its topic once", f"{lost} missing, {doubled} twice", lost == doubled == 0, True)
        for text, late in (("by the records' times", phase.committed), ("as it is read", phase.read)):
            yield Check(f"p99 lateness below 100 ms, {text}", f"{late.p99:,.0f} ms", late.p99 < MAX_P99_MS, False)

    def _at_its_size(self, name: str) -> Check:
        """Whether the server met as much of a kind as was meant: a test without abuse would show nothing."""
        counts = self.counts.get(name, {})
        tried = counts.get("tried", 0)
        if name in _CROWDS:
            least = int(getattr(self.sizes, _CROWDS[name]))
        else:
            minutes = (self.abused_to - self.abused_from) / 60_000 if math.isfinite(self.abused_to) else self.minutes
            least = int(self.sizes.topics_per_minute * minutes * _PACE) if name == "topics" else 1
        return Check(f"{name}: {least:,} at least", f"{tried:,} tried", tried >= least, True)

    def document(self) -> dict[str, Any]:
        """Everything but the single messages, for a file of JSON."""
        phases = {"without": self.phase(abused=False), "with": self.phase(abused=True)}
        return {
            "minutes": self.minutes, "rate": self.rate, "seed": self.seed, "sizes": asdict(self.sizes),
            "kinds": self.kinds, "abused_from_ms": self.abused_from, "abused_to_ms": self.abused_to,
            "phases": {name: asdict(phase) if phase else None for name, phase in phases.items()},
            "late_sends": self.sent.late_sends if self.sent else None, "abuse": self.counts,
            "peak_rss_bytes": self.peak_rss_bytes, "rss": self.rss, "failure": self.failure,
            "checks": [check._asdict() for check in self.checks()], "holds": self.holds,
        }  # fmt: skip

    @property
    def holds(self) -> bool:
        return all(check.holds for check in self.checks())

    def write(self, path: Path) -> None:
        path.write_bytes(orjson.dumps(self.document(), option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY))

    def table(self) -> str:
        lines = []
        without, under = self.phase(abused=False), self.phase(abused=True)
        if without is not None and under is not None:
            lines.append(f"{'':34}{'without abuse':>32}{'with abuse':>32}")
            for name, (left, right) in _rows(without, under):
                lines.append(f"{name:34}{left:>32}{right:>32}")
            lines.append("")
        for name, counts in self.counts.items():
            lines.append(f"{name:16}" + ", ".join(f"{key} {count:,}" for key, count in sorted(counts.items())))
        lines += ["", *filter(None, (self.failure,))]
        for check in self.checks():
            lines.append(f"{'ok ' if check.holds else 'NOT'}  {check.text}: {check.found}")
        return "\n".join(lines)


def _found(counts: Tally) -> str:
    return (
        f"{counts.lost} lost, {counts.duplicate} twice, {counts.early} early, {counts.unasked} that were not accepted, "
        f"{counts.wrong_due} with another time"
    )


def _exact(counts: Tally) -> bool:
    return not (counts.lost or counts.duplicate or counts.early or counts.unasked or counts.wrong_due)


def _rows(without: Phase, under: Phase) -> Iterator[tuple[str, tuple[str, str]]]:
    both = (without, under)

    def each(text: list[str]) -> tuple[str, str]:
        return text[0], text[1]

    yield "messages, of these accepted", each([f"{one.messages:,} / {one.accepted:,}" for one in both])
    for name, key in (
        ("batch answered, p50/p99/max ms", "answered"),
        ("lateness (record), p50/p99/max ms", "committed"),
        ("lateness (read), p50/p99/max ms", "read"),
        ("new connection, p50/p99/max ms", "newcomers"),
    ):
        yield name, each([_shown(getattr(one, key)) for one in both])
    yield "new connections turned away", each([f"{one.turned_away} of {one.visits}" for one in both])
    yield "memory, most", each([f"{one.most_rss_bytes / _MIB:,.0f} MiB" for one in both])


def _shown(figures: LatenessSpread) -> str:
    return f"{figures.p50:,.1f} / {figures.p99:,.1f} / {figures.max:,.1f}"
