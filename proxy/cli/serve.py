"""`duemq serve`: everything in one process."""

from __future__ import annotations

from typing import Annotated

import typer

from duemq.proxy.cli import starting

EXAMPLES = """Examples:

    duemq serve
    duemq serve --data /var/lib/duemq --listen 0.0.0.0:8787
    duemq serve --config duemq.toml --set limits.max_delay=1y --set storage.history_retention=6h
    duemq serve --kafka localhost:9092
    DUEMQ_HTTP__API_KEYS=first-secret,second-secret duemq serve
"""


def serve(
    data: starting.Data = None,
    listen: starting.Listen = None,
    kafka: starting.Kafka = None,
    shards: Annotated[int | None, typer.Option(help="Shards of a new data folder.")] = None,
    config: starting.Config = None,
    log_level: starting.LogLevel = None,
    log_format: starting.LogFormat = None,
    further: starting.Further = None,
    demo: Annotated[bool, typer.Option("--demo", help="Show a short live demonstration, then go on serving.")] = False,
) -> None:
    """Run duemq in one process: HTTP API, delivery and storage. On its own embedded log, or (--kafka) on Kafka."""
    from duemq.proxy.workers import run_workers

    given = {
        "data": data, "listen": listen, "shards": shards, "log_level": log_level, "log_format": log_format,
        "bus": "kafka" if kafka else None, "kafka.bootstrap": kafka,
    }  # fmt: skip
    quiet = "warning" if demo and log_level is None else None
    settings = starting.begin(config, given, further, log_level=quiet)
    starting.become_server()

    def run(_: int | None) -> None:
        from duemq.proxy import demo as demonstration
        from duemq.proxy.service import serve as service

        starting.run(service(settings, demonstration.show if demo else None))

    run_workers(1, run)
