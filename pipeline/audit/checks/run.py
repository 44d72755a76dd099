"""All checks of an audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from duemq.model.ledger import Answer
from duemq.pipeline.audit.adopted import AdoptedFile
from duemq.pipeline.audit.checks import answers, checksums, expected, letters, names, places
from duemq.pipeline.audit.window import Finding

if TYPE_CHECKING:
    from duemq.pipeline.audit.job import Frames, Gathered, Judged

DOUBTS: Final = {
    "answers": "commands of plain clients name an id and were called unknown or malformed: whether the id was genuine "
    "cannot be known without the cluster's secret",
    "expected": "expected ids are of messages that were dropped from the logs, or not read: whether these were there "
    "cannot be known",
}
"""What cannot be known, in words that follow its number."""


@dataclass(frozen=True, slots=True)
class Checked:
    """`violations`: rows of `VIOLATIONS`, a frame for each check, so that no plan has all of them; `doubts`: rows of
    what cannot be known, by key of `DOUBTS`."""

    violations: Sequence[DataFrame]
    doubts: Mapping[str, DataFrame]

    def doubted(self) -> dict[str, int]:
        """How many, where there are some."""
        counts = {what: frame.count() for what, frame in self.doubts.items()}
        return {what: count for what, count in counts.items() if count}


def checked(judged: Judged, found: Gathered, ids: DataFrame | None = None) -> Checked:
    """`ids`: a table with a column `id`, of messages that should be in the logs. Raises BadInput."""
    frames, extent = found.frames, found.extent
    windows = windows_of(judged, found)
    told = answers.told(frames.commands, judged.answers, judged.changes, windows, len(extent.windows))
    taken = names.taken(frames.commands, judged.answers, judged.summary, judged.cycles, windows)
    refused = letters.compared(frames.commands, judged.answers, frames.dead_letters, windows)
    counts = [(one.topic, len(one.ends)) for one in found.ranges if one.topic in extent.topics]
    partitions = windows.sparkSession.createDataFrame(counts, "topic string, partitions int")
    rows = [
        answers.found(told),
        names.found(taken),
        letters.found(refused, extent.letters_from),
        places.wrong_partitions(frames.deliveries, partitions),
        places.out_of_order(frames.deliveries, judged.summary, judged.entries, windows),
    ]
    by_id = F.col("plain") & F.col("by_id") & (F.col("answer") == int(Answer.UNKNOWN))
    unknown_ids = judged.changes.where(by_id).select("shard", F.col("command").alias("offset"))
    doubts = {"answers": answers.doubtful(told).select("shard", "offset").unionByName(unknown_ids)}
    if ids is not None:
        sought = expected.sought(
            ids, frames.commands, judged.answers, judged.adopted, frames.deliveries, windows, extent.anywhere_from
        )
        rows.append(expected.found(sought))
        doubts["expected"] = sought.where("unprovable")
    return Checked(rows, doubts)


def summed(judged: Judged, frames: Frames, found: Gathered, files: Sequence[AdoptedFile]) -> list[Finding]:
    """Where the ledger's checksums are not those of the keys."""
    windows = windows_of(judged, found)
    pending = checksums.pending_keys(frames.commands, judged.answers, judged.adopted, judged.summary, windows)
    unread = {file.shard for file in files if file.why_not}
    wrong = checksums.of_entries(pending, judged.entries, found.extent.windows, unread)
    return wrong + (checksums.of_files(judged.adopted, judged.entries) if files else [])


def windows_of(judged: Judged, found: Gathered) -> DataFrame:
    """`window.as_frame` with `whole` (all that ever happened in the shard is read), and `read_to` (where the commands
    that were read end)."""
    ends = next((one.ends for one in found.ranges if one.topic == "duemq.buffer"), {})
    more = [
        (shard, one.whole and not one.idle, ends.get(shard, one.buffer_end))
        for shard, one in found.extent.windows.items()
    ]
    frame = judged.windows.sparkSession.createDataFrame(more, "shard int, whole boolean, read_to bigint")
    return judged.windows.join(F.broadcast(frame), "shard")
