"""One run of a bulk job as a separate process, which can be killed at any step.

    python -m tests.support.spark.bulk_run TABLE STAGE URL JOB [STEP]

STEP: the step at which this process kills itself (see `job.schedule`; `writing`: while one of its tasks reads the rows
to be written), or `failing`, which lets such a task fail once.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from duemq.pipeline.bulk_schedule.job import Options, schedule
from duemq.pipeline.cli.command import ProgressLines
from duemq.pipeline.columns import Columns
from duemq.pipeline.logs.server import Server
from duemq.pipeline.spark.session import running

SETTINGS = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "4", "spark.default.parallelism": "2"}
COLUMNS = Columns("due", ("name", "text"), topic="topic", key="key", name="name")


def main(table: str, stage: str, url: str, job: str, step: str = "") -> None:
    driver, names = os.getpid(), Path(stage) / "names"

    def fault(reached: str) -> None:
        if reached == "names":
            names.touch()
        if reached == step:
            os.kill(driver, signal.SIGKILL)

    def passed_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if not names.exists():  # it is read a first time for the names in it
                continue
            if step == "writing":
                os.kill(driver, signal.SIGKILL)
            if step == "failing":
                try:
                    (Path(stage) / "failed").mkdir()
                except FileExistsError:
                    continue
                raise RuntimeError("the source fails the first time")

    with running("bulk run", master="local[2,4]", settings=SETTINGS) as spark:
        frame = spark.read.parquet(table)
        read = frame.mapInArrow(passed_on, frame.schema) if step in ("writing", "failing") else frame
        done = schedule(
            read, COLUMNS, job, Options(Path(stage)), Server(url), source="a table", teller=ProgressLines(),
            failpoint=fault
        )  # fmt: skip
        done.ids.write.mode("overwrite").parquet(f"file://{stage}/ids-{job}")
        print(done.manifest.accepted, done.manifest.rejected, done.again)


if __name__ == "__main__":
    main(*sys.argv[1:])
