"""Shows the progress of a Spark job as named steps; Spark's own progress bar only shows numbered stages.

The counts of finished tasks come from the driver in this process, or from a Connect server.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from pyspark.sql import SparkSession

from duemq.pipeline.spark.connect import is_remote

_LOOK_S: Final = 0.2

Share = Callable[[int, int], None]
"""See `Teller.share`."""


class Teller(Protocol):
    """Shows the steps of a job."""

    def step(self, what: str) -> None:
        """Show that a step starts, such as `sorting and writing delay files`."""

    def share(self, done: int, total: int) -> None:
        """Show that `done` of the `total` tasks known so far have finished."""

    def says(self, sentence: str) -> None:
        """Show a fact, such as `10,000,000 rows accepted, 3 refused`."""


class Silent:
    """Shows nothing."""

    def step(self, what: str) -> None: ...

    def share(self, done: int, total: int) -> None: ...

    def says(self, sentence: str) -> None: ...


@contextmanager
def step(spark: SparkSession, teller: Teller, what: str) -> Iterator[None]:
    """Show Spark's work inside this block as the step `what`."""
    teller.step(what)
    with _told_by_server(spark, teller.share) if is_remote(spark) else _asked_of_driver(spark, teller.share, what):
        yield


@contextmanager
def _told_by_server(spark: SparkSession, share: Share) -> Iterator[None]:
    """Share the task counts that a Connect server reports while the client waits for a query's result."""
    tasks: dict[tuple[str | None, int], tuple[int, int]] = {}

    def tell(stages: Iterable[Any] | None, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        for stage in stages or ():
            tasks[operation_id, stage.stage_id] = (stage.num_completed_tasks, stage.num_tasks)
        _share(tasks.values(), share)

    handler: Any = tell
    spark.registerProgressHandler(handler)
    try:
        yield
    finally:
        spark.removeProgressHandler(handler)


@contextmanager
def _asked_of_driver(spark: SparkSession, share: Share, what: str) -> Iterator[None]:
    """Share the task counts that a thread polls from the status tracker of this process."""
    context, group = spark.sparkContext, f"duemq-{uuid.uuid4().hex}"
    context.setJobGroup(group, what)
    ended = threading.Event()
    watching = threading.Thread(target=_watch, args=(spark, group, share, ended), daemon=True)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def _watch(spark: SparkSession, group: str, share: Share, ended: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    stages: dict[int, tuple[int, int]] = {}
    while not ended.wait(_LOOK_S):
        for job in tracker.getJobIdsForGroup(group):
            for number in getattr(tracker.getJobInfo(job), "stageIds", ()):
                if (stage := tracker.getStageInfo(number)) is not None:
                    stages[number] = (stage.numCompletedTasks, stage.numTasks)
        _share(stages.values(), share)


def _share(stages: Collection[tuple[int, int]], share: Share) -> None:
    """`stages`: for each stage, the number of finished tasks and of all tasks."""
    if stages:
        share(sum(done for done, _ in stages), sum(total for _, total in stages))
