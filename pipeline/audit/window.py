"""Per shard: from which ledger entry to which one it is audited, and what these entries say about themselves.

The last entry before the range is the base, or where it is not there any more, the first one of the range; there is
none where the range begins with the shard's first entry. A shard is audited from the base's V and T on, up to those of
the last entry.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from duemq.model.ledger import Fates

LONG_MAX = 2**63 - 1
ENTRY_COLUMNS = (
    "shard", "ledger_offset", "written", "n", "applied", "cursor_due", "cursor_offset", "cursor_row", "at", "pending",
    "accepted", "delivered", "cancelled", "dead", "problem",
)  # fmt: skip

Cursor = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Window:
    """What is known of one shard.

    Commands from `known_from` to below `applied` were applied in the range and can be read. `base_n`: the entry before
    the range, -1 where the range begins with the shard's history. `ended_at`: when the last entry was made, epoch ms.
    `buffer_end`: where the buffer ended once everything else had been read; no command has that offset.
    `gained`: how the ledger's counts grew over the range; `pending`: after it.
    """

    shard: int
    base_n: int
    last_n: int
    base_applied: int
    known_from: int
    applied: int
    cursor: Cursor
    began_at: int
    ended_at: int
    gained: Fates
    pending: int
    buffer_end: int = LONG_MAX

    @property
    def whole(self) -> bool:
        """Whether the range holds the whole history of the shard, with all its commands."""
        return self.base_n < 0 and self.complete

    @property
    def complete(self) -> bool:
        """Whether all commands of the range can be read."""
        return self.known_from == self.base_applied

    def reading(self, log_start: int, end: int) -> Window:
        """With what is known of its partition of the buffer."""
        return replace(self, known_from=max(self.base_applied, log_start), buffer_end=end)


@dataclass(frozen=True, slots=True)
class Finding:
    """A contradiction in the logs that is about no single message."""

    kind: str
    shard: int
    detail: str


def windows(rows: Iterable[Mapping[str, Any]], since: int | None = None) -> tuple[dict[int, Window], list[Finding]]:
    """Of rows with `ENTRY_COLUMNS`, in any order. `since`: entries written before it (epoch ms) are no part of the
    range, and the last of them is the base. Shards without an entry in the range have no window."""
    by_shard: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    findings: list[Finding] = []
    for row in rows:
        if row["problem"] is not None:
            found = f"record {row['ledger_offset']} of the ledger: {row['problem']}"
            findings.append(Finding("ledger", row["shard"], found))
        else:
            by_shard[row["shard"]].append(row)
    found_windows = {}
    for shard, entries in sorted(by_shard.items()):
        entries.sort(key=lambda row: row["ledger_offset"])
        earlier = [row for row in entries if since is not None and row["written"] < since]
        entries = entries[max(len(earlier) - 1, 0) :]
        if len(entries) == 1 and earlier:
            continue
        findings += _check(shard, entries)
        found_windows[shard] = _window(shard, entries, whole=not earlier and entries[0]["n"] == 0)
    return found_windows, findings


def _window(shard: int, entries: list[Mapping[str, Any]], whole: bool) -> Window:
    first, last = entries[0], entries[-1]
    before = Fates() if whole else _fates(first)
    applied = 0 if whole else first["applied"]
    return Window(
        shard, -1 if whole else first["n"], last["n"], applied, applied, last["applied"], _cursor(last),
        0 if whole else first["at"], last["at"],
        Fates(*(after - earlier for after, earlier in zip(_fates(last), before, strict=True))), last["pending"],
    )  # fmt: skip


def _check(shard: int, entries: list[Mapping[str, Any]]) -> list[Finding]:
    wrong = []
    for row in entries:
        accepted, delivered, cancelled, dead = _fates(row)
        if accepted != delivered + cancelled + dead + row["pending"] or min(_fates(row)) < 0 or row["pending"] < 0:
            wrong.append(
                f"entry {row['n']}: {accepted} accepted, but {delivered} delivered + {cancelled} cancelled + {dead} "
                f"dead + {row['pending']} pending"
            )
    for one, two in pairwise(entries):
        if two["n"] != one["n"] + 1:
            wrong.append(f"entry {two['n']} follows entry {one['n']}")
        elif two["applied"] < one["applied"] or _cursor(two) < _cursor(one):
            wrong.append(f"entry {two['n']} goes back behind entry {one['n']}")
        elif two["accepted"] < one["accepted"] or two["cancelled"] < one["cancelled"]:
            wrong.append(f"entry {two['n']} counts fewer messages than entry {one['n']}")
    return [Finding("ledger", shard, text) for text in wrong]


def _fates(row: Mapping[str, Any]) -> Fates:
    return Fates(row["accepted"], row["delivered"], row["cancelled"], row["dead"])


def _cursor(row: Mapping[str, Any]) -> Cursor:
    return row["cursor_due"], row["cursor_offset"], row["cursor_row"]


def idle(shard: int, buffer_end: int) -> Window:
    """Of a shard that has no entry in the range: all it ever accepted was before."""
    return Window(shard, -1, -1, LONG_MAX, LONG_MAX, 0, (0, 0, 0), 0, 0, Fates(), 0, buffer_end)


def of_range(entries: DataFrame, found: Mapping[int, Window]) -> DataFrame:
    """The entries after the base of each shard."""
    bases = [(one.shard, one.base_n) for one in found.values()]
    wanted = entries.sparkSession.createDataFrame(bases, "shard int, base_n bigint")
    return entries.join(F.broadcast(wanted), "shard").where("n > base_n").drop("base_n")


def as_frame(spark: SparkSession, found: Mapping[int, Window]) -> DataFrame:
    """One row per shard, to be joined with messages."""
    rows = [
        (one.shard, one.known_from, one.applied, *one.cursor, one.began_at, one.ended_at, one.buffer_end)
        for one in found.values()
    ]
    return spark.createDataFrame(
        rows,
        "shard int, known_from bigint, applied bigint, cursor_due bigint, cursor_offset bigint, cursor_row bigint, "
        "began_at bigint, ended_at bigint, buffer_end bigint",
    )
