"""All checks of an audit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from duemq.model.log.ledger import Answer
from duemq.pipeline.audit.checks import answers, checksums, expected, letters, names, places
from duemq.pipeline.audit.evidence import Gathered, Judged
from duemq.pipeline.audit.imported import AuditedFile
from duemq.pipeline.audit.window import Finding
from duemq.pipeline.logs.logs import BUFFER

DOUBTS: Final = {
    "answers": "commands of plain clients name an id and were called unknown or malformed: whether the id was genuine "
    "cannot be known without the cluster's secret",
    "expected": "expected ids are of messages that were dropped from the logs, or not read: whether these were there "
    "cannot be known",
}
"""What cannot be known, in words that follow its number."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`violations`: each gives rows of `VIOLATIONS`, of one check, so that no plan has all of them; `doubts`: rows of
    what cannot be known, by key of `DOUBTS`; `findings` tells where the ledger's checksums are not those of the
    keys. Nothing is computed yet."""

    violations: Sequence[Callable[[], DataFrame]]
    doubts: Mapping[str, DataFrame]
    findings: Callable[[], list[Finding]]

    def doubt_counts(self) -> dict[str, int]:
        """How many, where there are some."""
        counts = {what: frame.count() for what, frame in self.doubts.items()}
        return {what: count for what, count in counts.items() if count}


def check(
    judged: Judged, gathered: Gathered, files: Sequence[AuditedFile], ids: DataFrame | None = None
) -> CheckResult:
    """`ids`: a table with a column `id`, of messages that should be in the logs. Raises BadInput."""
    frames, extent = gathered.frames, gathered.extent
    windows = windows_of(judged, gathered)
    verdicts = answers.verdicts(frames.commands, judged.answers, judged.changes, windows, len(extent.windows))
    claims = names.claims(frames.commands, judged.answers, judged.summary, judged.cycles, windows)
    refused = letters.comparison(frames.commands, judged.answers, frames.dead_letters, windows)
    counts = [(one.topic, len(one.ends)) for one in gathered.ranges if one.topic in extent.topics]
    partitions = windows.sparkSession.createDataFrame(counts, "topic string, partitions int")
    rows = [
        lambda: answers.violations(verdicts),
        lambda: names.violations(claims),
        lambda: letters.violations(refused, extent.letters_from),
        lambda: places.wrong_partitions(frames.deliveries, partitions),
        lambda: places.out_of_order(frames.deliveries, judged.summary, judged.entries, windows),
    ]
    by_id = F.col("plain") & F.col("by_id") & (F.col("answer") == int(Answer.UNKNOWN))
    unknown_ids = judged.changes.where(by_id).select("shard", F.col("command").alias("offset"))
    doubts = {"answers": answers.doubtful(verdicts).select("shard", "offset").unionByName(unknown_ids)}
    if ids is not None:
        missing = expected.missing_ids(
            ids, frames.commands, judged.answers, judged.imported, frames.deliveries, windows, extent.anywhere_from
        )
        rows.append(lambda: expected.violations(missing))
        doubts["expected"] = missing.where("unprovable")
    pending = checksums.pending_keys(frames.commands, judged.answers, judged.imported, judged.summary, windows)
    unread = {file.shard for file in files if file.why_not}

    def findings() -> list[Finding]:
        entry_findings = checksums.of_entries(pending, judged.entries, extent.windows, unread)
        return entry_findings + (checksums.of_files(judged.imported, judged.entries) if files else [])

    return CheckResult(rows, doubts, findings)


def windows_of(judged: Judged, gathered: Gathered) -> DataFrame:
    """`window.as_frame` with `whole` (all that ever happened in the shard is read), and `read_to` (where the commands
    that were read end)."""
    ends = next((one.ends for one in gathered.ranges if one.topic == BUFFER), {})
    more = [
        (shard, one.whole and not one.idle, ends.get(shard, one.buffer_end))
        for shard, one in gathered.extent.windows.items()
    ]
    frame = judged.windows.sparkSession.createDataFrame(more, "shard int, whole boolean, read_to bigint")
    return judged.windows.join(F.broadcast(frame), "shard")
