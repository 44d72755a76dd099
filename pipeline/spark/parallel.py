"""Work side by side: several queries at the same time, and items shared out among tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, cast

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from duemq.pipeline.spark.connect import is_remote

_AT_ONCE: Final = 3
_PER_CORE: Final = 4
_REMOTE_TASKS: Final = 64  # a Connect server does not tell how many cores it has


def tasks_for(spark: SparkSession, items: int) -> int:
    """Into how many tasks to share out files, each of which Python looks at: a few for each core. A task costs as much
    as a look at 200 small files."""
    tasks = _REMOTE_TASKS if is_remote(spark) else _PER_CORE * spark.sparkContext.defaultParallelism
    return max(1, min(items, tasks))


def run_all(spark: SparkSession, works: Sequence[Callable[[], Any]]) -> list[Any]:
    """What each of these queries gives, in their order: while Spark plans one on the driver, its executors work on
    another. They belong to the step that is under way (`progress.step`). Where one raises, those that have begun end
    first."""
    # One wrapper for each: it hands over a copy of this thread's properties, which Spark changes there.
    threads: list[Any] = [inheritable_thread_target(cast(Any, spark)) for _ in works]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        futures = [pool.submit(thread(work)) for thread, work in zip(threads, works, strict=True)]
        return [future.result() for future in futures]
