"""A program with a Spark query, as a process that can be killed with all that it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from duemq.pipeline.spark.connector import JARS_VARIABLE
from tests.support.spark.spark_cluster import spark_environment
from tests.support.spark.spark_site import spark_jars

ROOT = Path(__file__).parents[3]


class SparkProcess:
    """`module`: in `tests.support.spark`; `words`: its arguments; `folder`: gets its log."""

    def __init__(self, module: str, folder: Path, *words: object) -> None:
        self._log = folder / f"run-{time.monotonic_ns()}.log"
        paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        settings = {
            "PYTHONPATH": os.pathsep.join(paths), JARS_VARIABLE: str(spark_jars()), "PYSPARK_PYTHON": sys.executable
        }  # fmt: skip
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"tests.support.spark.{module}", *map(str, words)],
                cwd=ROOT, stdout=log, stderr=log, start_new_session=True, env=spark_environment() | settings,
            )  # fmt: skip

    @property
    def log(self) -> str:
        return self._log.read_text()

    def alive(self) -> bool:
        assert self.process.poll() is None, self.log
        return True

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
