"""A Spark Connect server for tests, and steps in a session of it: a separate process without a JVM.

    python -m tests.support.spark.spark_connect URL STEP ARGUMENT...

prints the result of `STEP` as JSON. A process that has started Spark itself cannot have such a session as well.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import orjson
from pyspark.sql import DataFrame, SparkSession

from duemq.dev.servers.ports import HOST, free_port
from duemq.dev.servers.process import Process
from tests.support.spark.spark_cluster import SPARK_HOME, spark_environment
from tests.support.spark.spark_site import RecordingTeller, spark_jars

_ROOT = Path(__file__).parents[3]
_MAIN = "org.apache.spark.sql.connect.service.SparkConnectServer"
_READY_S, _STEP_S = 120.0, 300.0


class ConnectServer:
    """Spark with two cores and the Kafka connector behind `url`."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.url = f"sc://{HOST}:{port}"
        settings = (
            f"spark.connect.grpc.binding.port={port}", f"spark.connect.grpc.binding.address={HOST}",
            f"spark.driver.host={HOST}", f"spark.driver.bindAddress={HOST}", "spark.ui.enabled=false",
            "spark.sql.shuffle.partitions=4", f"spark.sql.warehouse.dir={folder / 'warehouse'}",
            "spark.driver.extraJavaOptions=-Xss16m -XX:ReservedCodeCacheSize=240m",
            f"spark.jars={','.join(map(str, sorted(spark_jars().glob('*.jar'))))}",
        )  # fmt: skip
        command = [
            str(SPARK_HOME / "bin" / "spark-submit"), "--class", _MAIN,
            "--master", "local[2]", *(word for one in settings for word in ("--conf", one)),
            "spark-internal",
        ]  # fmt: skip
        # spark-submit gives this class the memory of a daemon, whatever is said of the driver's.
        environment = spark_environment() | {"PYSPARK_PYTHON": sys.executable, "SPARK_DAEMON_MEMORY": "900m"}
        self.process = Process("spark-connect", command, folder / "connect.log", environment=environment)
        self._address = (HOST, port)

    def __enter__(self) -> Self:
        self.process.start()
        self.process.until(self._listens, _READY_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop()

    def _listens(self) -> bool:
        try:
            with socket.create_connection(self._address, timeout=1):
                return True
        except OSError:
            return False

    def run(self, step: str, *arguments: object) -> Any:
        """What a step gives in a session of this server."""
        paths = [str(_ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        settings = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.spark.spark_connect", self.url, step, *map(str, arguments)],
            capture_output=True, text=True, timeout=_STEP_S, env=spark_environment() | settings, cwd=_ROOT,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return orjson.loads(done.stdout.splitlines()[-1])


# --- steps ------------------------------------------------------------------------------------------------------------


def cancel(spark: SparkSession, server: str, table: str) -> Any:
    from duemq.pipeline.bulk_change import ChangeClient, Targets
    from duemq.pipeline.bulk_change import cancel as run

    rows, answers = spark.read.parquet(f"file://{table}"), f"{table}-cancelled"
    run(rows, Targets("id"), ChangeClient(server, batch=7), answers=answers, connections=3)
    return _plain(spark.read.parquet(f"file://{answers}"))


def move(spark: SparkSession, server: str, table: str, ids: str) -> Any:
    from duemq.pipeline.bulk_change import ChangeClient, Targets
    from duemq.pipeline.bulk_change import move as run

    rows, known = spark.read.parquet(f"file://{table}"), spark.read.parquet(f"file://{ids}")
    run(rows, Targets("order", known), ChangeClient(server), "due_ms", by_ms=1, answers=f"{table}-moved")
    return _plain(spark.read.parquet(f"file://{table}-moved"))


def judge(spark: SparkSession, table: str, now: str) -> Any:
    from duemq.pipeline.bulk_schedule.rules import BulkRules, judged, reasons, rejected
    from duemq.pipeline.columns import Columns

    columns = Columns("due", ("name", "text"), to="orders", key="key", name="name")
    frame = judged(spark.read.parquet(f"file://{table}"), columns, BulkRules(), int(now))
    return {"reasons": _plain(reasons(frame)), "rejected": _plain(rejected(frame))}


def schedule(spark: SparkSession, server: str, table: str, stage: str, job: str) -> Any:
    from duemq.pipeline.bulk_schedule.job import Options
    from duemq.pipeline.bulk_schedule.job import schedule as run
    from duemq.pipeline.columns import Columns
    from duemq.pipeline.logs.server import Server

    columns, told = Columns("due", "text", to="orders", key="key", name="name"), RecordingTeller()
    frame = spark.read.parquet(f"file://{table}")
    done = run(frame, columns, job, Options(Path(stage)), Server(server), teller=told)
    made, ids = done.manifest, _plain(done.ids.select("id", "name", "due_ms"))
    return {
        "rows": made.rows, "rejected": made.rejected, "again": done.again, "ids": ids, "steps": told.steps,
        "shares": told.shares,
    }  # fmt: skip


def send(spark: SparkSession, kafka: str, table: str) -> Any:
    from duemq.pipeline.columns import Columns
    from duemq.pipeline.send import send as run

    columns = Columns("due", "text", to="orders", key="key", name="name")
    done = run(spark.read.parquet(f"file://{table}"), columns, kafka)
    return {"rows": done.rows, "sent": done.sent, "rejected": done.rejected}


def audit(spark: SparkSession, kafka: str, out: str) -> Any:
    from duemq.pipeline.audit.job import audit as run

    done = run(spark, kafka, Path(out))
    return {
        "account": dict(done.account),
        "found": dict(done.violation_counts),
        "shown": [dict(row) for row in done.shown],
    }


def _plain(frame: DataFrame) -> list[dict[str, Any]]:
    table: Any = frame.toPandas()
    rows: list[dict[str, Any]] = table.astype(object).where(lambda cells: cells.notna(), None).to_dict("records")
    return rows


def main(url: str, step: str, *arguments: str) -> None:
    from duemq.pipeline.spark.connect import is_remote
    from duemq.pipeline.spark.session import running

    steps: dict[str, Callable[..., Any]] = {
        "cancel": cancel, "move": move, "judge": judge, "schedule": schedule, "send": send, "audit": audit,
    }  # fmt: skip
    assert "SPARK_REMOTE" not in os.environ
    with running("tests", master=url) as spark:
        assert is_remote(spark)
        print(orjson.dumps(steps[step](spark, *arguments), option=orjson.OPT_SERIALIZE_NUMPY).decode(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
