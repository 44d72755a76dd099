"""`duemq serve`: everything in one process."""

from __future__ import annotations

from typing import Annotated

import typer

from duemq.cli.wiring import startup

EXAMPLES = """Examples:

    duemq serve
    DUEMQ_HTTP__API_KEYS=first-secret duemq serve --data /var/lib/duemq --listen 0.0.0.0:8787
    duemq serve --config duemq.toml --set limits.max_delay=1y --set storage.retention=6h
    duemq serve --kafka localhost:9092
"""


def serve(
    data: startup.Data = None,
    listen: startup.Listen = None,
    kafka: startup.Kafka = None,
    shards: Annotated[int | None, typer.Option(help="Shards of a new data folder.")] = None,
    config: startup.Config = None,
    log_level: startup.LogLevel = None,
    log_format: startup.LogFormat = None,
    further: startup.Further = None,
) -> None:
    """Run duemq in one process: HTTP API, delivery and storage. On its own embedded log, or (--kafka) on Kafka.

    The console is at /console/ of its address: by default http://127.0.0.1:8787/console/
    """
    from duemq.cli.wiring.workers import run_workers

    options = {
        "data": data, "listen": listen, "shards": shards, "log_level": log_level, "log_format": log_format,
        "bus": "kafka" if kafka else None, "kafka.bootstrap": kafka,
    }  # fmt: skip
    settings = startup.begin(config, options, further)
    notifier = startup.become_server()

    def run(_: int | None) -> None:
        from duemq.cli.wiring.single_process import serve as service

        startup.run(service(settings, notifier=notifier))

    run_workers(1, run)
