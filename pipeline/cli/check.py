"""`duemq spark check` and `duemq spark script`: check Spark's environment, and print the script for spark-submit."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from duemq.pipeline.cli import command as common

CHECK_EXAMPLES = common.examples(
    "duemq spark check",
    "duemq spark check --no-kafka",
    "spark-submit --master spark://host:7077 --archives environment.tar.gz#environment $(duemq spark script) check",
)
SCRIPT_EXAMPLES = common.examples("spark-submit --master yarn $(duemq spark script) check")


def check(
    kafka: Annotated[bool, typer.Option("--kafka/--no-kafka", help="Also check for the Kafka connector.")] = True,
    tasks: Annotated[int, typer.Option(min=1, help="Tasks that check their executors.")] = 16,
    master: common.Master = None,
    conf: common.Settings = None,
    as_json: common.AsJson = False,
) -> None:
    """Start Spark and show versions, the Kafka connector, and the Python of each executor.

    Exit code 1 if something that jobs need is missing.
    """
    with common.spark_session("check", master, conf, as_json, kafka=kafka) as (spark, teller):
        from duemq.pipeline.spark.check import has_connector, versions, workers
        from duemq.pipeline.spark.progress import step

        details = versions(spark)
        connector = has_connector(spark) if kafka else None
        with step(spark, teller, "checking the executors"):
            executors = workers(spark, tasks)
    if as_json:
        common.echo_json({**details, "kafka_connector": connector, "workers": [asdict(worker) for worker in executors]})
    else:
        typer.echo(f"Spark {details['spark']} on Java {details['java']}, {details['master']}")
        if connector is not None:
            typer.echo(f"Kafka connector: {'there' if connector else 'missing'}")
        for worker in executors:
            typer.echo(
                f"executor {worker.executor}: Python {worker.python}, pyarrow {worker.pyarrow}, duemq {worker.duemq}"
            )
    if connector is False:
        raise typer.Exit(common.FAILED)


def script() -> None:
    """Print the path of the script for spark-submit; it takes the arguments of `duemq spark`."""
    from importlib.util import find_spec

    spec = find_spec("duemq.pipeline.cli.submit")
    assert spec is not None
    typer.echo(spec.origin)
