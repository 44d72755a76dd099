"""A standalone Spark: a master and workers as processes on the loopback, and an environment to send to them."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import pyspark
import pytest

from duemq.dev.servers.ports import HOST, free_port
from duemq.dev.servers.process import Process
from tests.e2e.server import environment

SPARK_HOME = Path(pyspark.__file__).parent
_READY_S = 60.0
_APART = ("unshare", "--mount", "--propagation", "private", "sh", "-c", 'mount -t tmpfs apart "$0" && exec "$@"')


class SparkCluster:
    """One master and this many workers with one core each. `hidden`: a folder that each worker sees empty, and in which
    no other process sees its files, as if it were on another machine."""

    def __init__(self, folder: Path, workers: int, memory: str = "700m", hidden: Path | None = None) -> None:
        self._folder, self._workers, self._memory, self._hidden = folder, workers, memory, hidden
        self._stack = ExitStack()
        self._page = free_port()
        self.url = f"spark://{HOST}:{free_port()}"

    def __enter__(self) -> Self:
        port = self.url.rpartition(":")[2]
        self._start("master", "Master", "--host", HOST, "--port", port, "--webui-port", str(self._page))
        for number in range(self._workers):
            self._start(
                f"worker-{number}", "Worker", "--host", HOST, "--cores", "1", "--memory", self._memory, "--webui-port",
                str(free_port()), "--work-dir", str(self._folder / f"work-{number}"), self.url,
            )  # fmt: skip
        self._last.until(lambda: self._alive() == self._workers, _READY_S)
        return self

    def _start(self, name: str, main: str, *arguments: str) -> None:
        log = self._folder / f"{name}.log"
        command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{main.lower()}.{main}"]
        more = {}
        if self._hidden is not None and main == "Worker":
            command = [*_APART, str(self._hidden), *command]
            more = {"SPARK_LOCAL_DIRS": str(self._hidden / "local")}
        self._last = Process(name, [*command, *arguments], log, environment=spark_environment() | more)
        self._last.start()
        self._stack.callback(self._last.stop)

    def _alive(self) -> int:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._page}/json/", timeout=5) as answer:
                found: int = json.load(answer)["aliveworkers"]
                return found
        except OSError:
            return 0

    def executors(self) -> list[int]:
        """Processes of the executors that run."""
        return [process.pid for process in psutil.process_iter() if self._is_executor(process)]

    def _is_executor(self, process: psutil.Process) -> bool:
        try:
            named = any("CoarseGrainedExecutorBackend" in word for word in process.cmdline())
            return named and Path(process.cwd()).is_relative_to(self._folder)
        except psutil.Error:  # it ended, or is not ours
            return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def spark_environment() -> dict[str, str]:
    """That of a machine with this Spark, whose Java is small."""
    return environment() | {
        "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": HOST, "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC",
    }  # fmt: skip


def packed(made: Path) -> Path:
    """The environment as an archive to send to executors."""
    archive = made.with_suffix(".tar.gz")
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        for path in made.iterdir():
            tar.add(path, path.name)
    return archive


def submit(
    master: str, made: Path, archive: Path, *words: object, attempts: int = 1, settings: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`spark-submit` as docs/guides/pipeline.md has it, run to its end, with the driver in the environment `made`.
    `attempts`: of a task, before the job fails. `settings`: more of Spark's."""
    script = subprocess.check_output([made / "bin" / "duemq", "spark", "script"], text=True, env=spark_environment())
    command = [
        SPARK_HOME / "bin" / "spark-submit", "--master", master, "--archives", f"{archive}#environment",
        "--conf", "spark.executor.memory=500m", "--conf", f"spark.task.maxFailures={attempts}",
        "--conf", "spark.ui.enabled=false",
        "--conf", f"spark.driver.host={HOST}", "--conf", f"spark.driver.bindAddress={HOST}",
        *(word for name, value in (settings or {}).items() for word in ("--conf", f"{name}={value}")),
        "--driver-memory", "700m", script.strip(), *words,
    ]  # fmt: skip
    pythons = {"PYSPARK_DRIVER_PYTHON": str(made / "bin" / "python"), "PYSPARK_PYTHON": "environment/bin/python"}
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=300, env=spark_environment() | pythons
    )


def need_namespaces() -> None:
    """Skip the test if a process cannot get a separate file system; fail it in CI."""
    try:
        subprocess.run([*_APART, "/mnt", "true"], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = f"mount namespaces cannot be made here: {getattr(error, 'stderr', error)}"
        if os.environ.get("CI"):
            pytest.fail(said, pytrace=False)
        pytest.skip(said)
