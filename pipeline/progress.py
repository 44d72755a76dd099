"""How far a Spark job is, in words a user understands: what is being done, and which share of it is.

Spark's own bar shows stages by number. Here a step has a name, and a thread asks Spark's status tracker how many of its
tasks are done.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from pyspark.sql import SparkSession

_LOOK_S: Final = 0.2


class Teller(Protocol):
    """Shows the steps of a job."""

    def step(self, what: str) -> None:
        """Another step begins, such as `sorting and writing delay files`."""

    def share(self, done: int, total: int) -> None:
        """So many of the tasks known so far are done."""

    def says(self, sentence: str) -> None:
        """A fact worth keeping, such as `10,000,000 rows accepted, 3 refused`."""


class Silent:
    """Tells nothing."""

    def step(self, what: str) -> None: ...

    def share(self, done: int, total: int) -> None: ...

    def says(self, sentence: str) -> None: ...


@contextmanager
def step(spark: SparkSession, teller: Teller, what: str) -> Iterator[None]:
    """What Spark does inside this block is the step `what`."""
    teller.step(what)
    context, group = spark.sparkContext, f"duemq-{uuid.uuid4().hex}"
    context.setJobGroup(group, what)
    ended = threading.Event()
    watching = threading.Thread(target=_watch, args=(spark, group, teller.share, ended), daemon=True)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def _watch(spark: SparkSession, group: str, share: Callable[[int, int], None], ended: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    stages: dict[int, tuple[int, int]] = {}
    while not ended.wait(_LOOK_S):
        for job in tracker.getJobIdsForGroup(group):
            for number in getattr(tracker.getJobInfo(job), "stageIds", ()):
                if (stage := tracker.getStageInfo(number)) is not None:
                    stages[number] = (stage.numCompletedTasks, stage.numTasks)
        if stages:
            share(sum(done for done, _ in stages.values()), sum(total for _, total in stages.values()))
