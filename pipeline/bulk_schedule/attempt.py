"""One attempt at a job: check its rows, write the valid ones as delay files and the others as a table of rejected rows.

The written rows are compared with the judged ones, by count and by sums of hashes. A difference shows that the source
returned other rows when Spark read it again, for example to repeat a task.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from duemq.model.failpoint import Failpoint
from duemq.model.messages.import_command import MAX_FILES
from duemq.pipeline.bulk_schedule import files
from duemq.pipeline.bulk_schedule.files import WrittenFile, sums
from duemq.pipeline.bulk_schedule.manifest import JobFolder, JobManifest, print_of
from duemq.pipeline.bulk_schedule.rules import REASON, BulkRules, judged, rejected, repeated_names
from duemq.pipeline.columns import OWN, Columns
from duemq.pipeline.errors import JobFailed, RowsRejected
from duemq.pipeline.files.uris import below, local_path, uri_of
from duemq.pipeline.spark.progress import Teller, step

_MARGIN_MS: Final = 10_000  # allowed from writing the manifest to the server's answer to the hand-over
_IMPORT_RATE: Final = 1_000  # how many rows the server imports per ms
_LEAST_TASKS: Final = 3  # finished tasks that are needed to estimate the time for all tasks


@dataclass(frozen=True, slots=True)
class Sums:
    """The row count, and the sum and xor of the row hashes, for all rows of a judged frame and for the valid ones."""

    all: tuple[int, int, int]
    good: tuple[int, int, int]

    @property
    def bad(self) -> int:
        return self.all[0] - self.good[0]


@dataclass(frozen=True, slots=True)
class ScheduleAttempt:
    """`rejects`: the folder for rejected rows; None: a folder next to the delay files. `clock` returns epoch ms."""

    frame: DataFrame
    columns: Columns
    folder: JobFolder
    rules: BulkRules
    about: str
    rejects: Path | str | None
    strict: bool
    teller: Teller
    failpoint: Failpoint
    clock: Callable[[], int]

    def written(self) -> JobManifest:
        """Write the files of an attempt and return its manifest. Raises JobFailed, RowsRejected."""
        with repeated_names(self.frame, self.columns) as repeated:
            self.failpoint("names")
            return self._written(repeated)

    def _written(self, repeated: DataFrame | None) -> JobManifest:
        spark, folder, rules, teller = self.frame.sparkSession, self.folder, self.rules, self.teller
        began, attempt = self.clock(), folder.new_attempt()
        judged_rows = judged(self.frame, self.columns, rules, began, repeated)
        before, behind = Observation(), Observation()
        pace = WriteDeadline(teller, began, rules.lead_ms - rules.server_lead_ms - _MARGIN_MS, self.clock)
        with step(spark, pace, "sorting and writing delay files"):
            observed = judged_rows.observe(before, *_sums(judged_rows))
            files.write(files.messages(observed, self.columns, folder.job, behind), folder.stage.uri(attempt))
        self.failpoint("written")
        with step(spark, teller, "checking the written files"):
            written_files = files.looked_at(spark, folder.stage, attempt)
        if len(written_files) > MAX_FILES:
            folder.stage.remove(attempt)
            raise JobFailed(
                f"{len(written_files):,} files were written, for {len({file.window for file in written_files}):,} "
                f"windows of half an hour, and the server takes {MAX_FILES:,} files at once: nothing is scheduled. "
                "Schedule it as several jobs, such as one per year"
            )
        written = sum(file.rows for file in written_files)
        # If no row can be scheduled, Spark may have skipped reading the rows, and `before` has no values.
        totals = _sums_of(before.get) if written else _counted(judged_rows)
        teller.says(
            f"{totals.all[0]:,} rows read: {written:,} written to {len(written_files):,} files, {totals.bad:,} rejected"
        )
        behind_sums = _triple(behind.get) if written else (0, 0, 0)
        late, apart, rejects = self._rejected(written_files, totals, began, attempt, repeated)
        timely_files = [file for file in written_files if file not in late]

        def adds_up(totals: Sums) -> bool:
            if apart is None:
                return behind_sums == totals.good == totals.all and written == totals.all[0]
            bad = totals.bad + sum(one.rows for one in late)
            return (
                behind_sums == totals.good and written == totals.good[0] and (apart.all, apart.bad) == (totals.all, bad)
            )

        # A repeated task may be counted twice in an observation, so count again before failing.
        if not adds_up(totals) and not adds_up(_counted(judged_rows)):
            folder.stage.remove(attempt)
            raise JobFailed("the source changed while it was read: nothing is scheduled. Run the job again")
        bad = 0 if apart is None else apart.bad
        rows = sum(file.rows for file in timely_files) + bad
        if bad and self.strict:
            for window in {file.path.rpartition("/")[0] for file in written_files}:
                folder.stage.remove(f"{window}/")
            raise RowsRejected(f"{bad:,} of {rows:,} rows were rejected ({rejects}): nothing is scheduled")
        column_map = self.columns.as_dict()
        return JobManifest(
            folder.job, began, column_map, self.about, print_of(column_map, self.about), attempt, rows, bad,
            rejects, tuple(timely_files),
        )  # fmt: skip

    def _rejected(
        self, written_files: list[WrittenFile], totals: Sums, began: int, attempt: str, repeated: DataFrame | None
    ) -> tuple[list[WrittenFile], Sums | None, str | None]:
        """Write the rejected rows: those that cannot be scheduled, and those in windows that have come too near.

        Returns the delay files of these windows, the sums over the judged rows, and the folder of the rejected rows.
        This reads the source again; if more windows come too near in the process, it starts over in another folder.
        """
        spark, rules, teller = self.frame.sparkSession, self.rules, self.teller
        nearest_ms = rules.server_lead_ms + _MARGIN_MS + sum(file.rows for file in written_files) // _IMPORT_RATE
        more_ms = number = 0
        while True:
            soonest = self.clock() + nearest_ms + more_ms
            late = [file for file in written_files if file.window < soonest]
            if not late and not totals.bad:
                return [], None, None
            if late:
                teller.says(
                    f"{sum(file.rows for file in late):,} rows are due in {len({file.window for file in late}):,} "
                    "windows that have come too near while the files were written: they are rejected"
                )
            lead_ms = max(rules.lead_ms, soonest - began) if late else rules.lead_ms
            judged_rows = judged(self.frame, self.columns, replace(rules, lead_ms=lead_ms), began, repeated)
            folder = self._folder_of_rejects(attempt, number)
            since, again = time.monotonic(), Observation()
            with step(spark, teller, "writing the rejected rows"):
                rejected(judged_rows.observe(again, *_sums(judged_rows))).write.parquet(folder)
            self.failpoint("rejects")
            stays = self.clock() + nearest_ms
            if all(file.window >= stays for file in written_files if file not in late):
                rows = spark.read.parquet(folder).count()
                apart = _sums_of(again.get)
                return late, apart if rows == apart.bad else _counted(judged_rows), str(local_path(folder) or folder)
            number, more_ms = number + 1, int(2_000 * (time.monotonic() - since))

    def _folder_of_rejects(self, attempt: str, number: int) -> str:
        again = f"-{number}" if number else ""
        if self.rejects is None:
            return self.folder.stage.uri(f"{attempt}/rejects{again}")
        return below(uri_of(self.rejects), f"{self.folder.job}-{attempt}{again}")


def _sums(judged_rows: DataFrame) -> list[Any]:
    """The sums over all rows, and over the few rejected ones. Both together cost little more than one hash per row."""
    bad = F.col(OWN + REASON).isNotNull()
    return [
        *(column.alias(f"all_{name}") for name, column in sums(judged_rows).items()),
        *(column.alias(f"bad_{name}") for name, column in sums(judged_rows, bad).items()),
    ]


def _counted(judged_rows: DataFrame) -> Sums:
    """The sums, computed by reading the rows again."""
    row = judged_rows.agg(*_sums(judged_rows)).first()
    assert row is not None
    return _sums_of(row.asDict())


def _sums_of(metrics: dict[str, Any]) -> Sums:
    all_, bad = (_triple({name: metrics[f"{of}_{name}"] for name in ("rows", "sum", "xor")}) for of in ("all", "bad"))
    return Sums(all_, (all_[0] - bad[0], all_[1] - bad[1], all_[2] ^ bad[2]))


def _triple(metrics: dict[str, Any]) -> tuple[int, int, int]:
    return metrics["rows"], metrics["sum"], metrics["xor"]


class WriteDeadline:
    """A Teller that warns once if the finished tasks show that writing will take longer than `lead_ms` from `began`
    (epoch ms). `clock` returns epoch ms.

    Spark announces the tasks of a later stage only when that stage starts, so the job may take longer than estimated,
    but not less time.
    """

    def __init__(self, teller: Teller, began: int, lead_ms: int, clock: Callable[[], int]) -> None:
        self._teller, self._began, self._lead_ms, self._clock = teller, began, lead_ms, clock
        self._has_warned = False
        self.step, self.says = teller.step, teller.says

    def share(self, done: int, total: int) -> None:
        self._teller.share(done, total)
        if self._has_warned or done < _LEAST_TASKS:
            return
        took = self._clock() - self._began
        ends = self._began + took * total // done
        if ends > self._began + self._lead_ms:
            self._has_warned = True
            self.says(
                f"{done:,} of {total:,} tasks took {took / 1000:,.0f} s: writing ends at {_time(ends)} or later, and "
                f"the lead at {_time(self._began + self._lead_ms)}. Rows of windows that are too near by then are "
                "rejected; with a longer lead they would be rejected now"
            )


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%H:%M:%S UTC")
