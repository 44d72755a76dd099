"""Several queries at the same time: while Spark plans one on the driver, its executors work on another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, cast

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

_AT_ONCE: Final = 3


def run_all(spark: SparkSession, works: Sequence[Callable[[], Any]]) -> list[Any]:
    """What each gives, in their order. They are of the step that is under way (`progress.step`). Where one raises, the
    others that have begun end first."""
    # For each anew: what it copies of this thread, Spark changes in the other one.
    threads: list[Any] = [inheritable_thread_target(cast(Any, spark)) for _ in works]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        futures = [pool.submit(thread(work)) for thread, work in zip(threads, works, strict=True)]
        return [future.result() for future in futures]
