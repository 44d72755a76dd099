"""Parallel work: several queries at once, and files spread over tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, cast

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from duemq.pipeline.spark.connect import is_remote

_AT_ONCE: Final = 3
_PER_CORE: Final = 4
_REMOTE_TASKS: Final = 64  # a Connect server does not report how many cores it has


def tasks_for(spark: SparkSession, items: int) -> int:
    """How many tasks should open `items` files in Python: a few per core. A task costs as much as opening 200 files."""
    tasks = _REMOTE_TASKS if is_remote(spark) else _PER_CORE * spark.sparkContext.defaultParallelism
    return max(1, min(items, tasks))


def run_all(spark: SparkSession, works: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run these queries and return their results in order: the driver plans one while executors run another. They count
    as part of the current `progress.step`. If one raises an error, the others that have started are finished first."""
    # Each query has its own wrapper: each thread gets a copy of this thread's properties, because Spark changes them.
    threads: list[Any] = [inheritable_thread_target(cast(Any, spark)) for _ in works]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        futures = [pool.submit(thread(work)) for thread, work in zip(threads, works, strict=True)]
        return [future.result() for future in futures]
