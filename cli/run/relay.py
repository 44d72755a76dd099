"""`duemq relay`: sends messages that were delivered to topics on Kafka to destinations."""

from __future__ import annotations

from typing import Annotated

import typer

from duemq.cli.wiring import startup

EXAMPLES = """Examples:

    duemq relay --kafka broker1:9092,broker2:9092
    duemq relay --config duemq.toml --workers 2 --listen 127.0.0.1:8789
    duemq relay --config duemq.toml --set relay.private_networks=10.0.0.0/8
"""


def relay(
    kafka: startup.Kafka = None,
    listen: Annotated[
        str | None, typer.Option(help="Address that serves metrics and probes.", metavar="HOST:PORT")
    ] = None,
    workers: startup.Workers = 1,
    config: startup.Config = None,
    log_level: startup.LogLevel = None,
    log_format: startup.LogFormat = None,
    further: startup.Further = None,
) -> None:
    """Send messages delivered to topics of Kafka to the declared destinations (`duemq destination add`).

    Any number of relays share the work. `duemq serve` includes a relay. With --workers N it is N processes, which
    listen on N consecutive ports.
    """
    from duemq.cli.wiring.workers import run_workers

    options = {"relay.listen": listen, "log_level": log_level, "log_format": log_format, "kafka.bootstrap": kafka}
    settings = startup.begin(config, options, further)
    notifier = startup.become_server(workers)
    if workers > 1:
        import duemq.bus.kafka.bus
        import duemq.cli.wiring.relay.relay_process
        import duemq.relay.relay  # noqa: F401  # before the fork: imported once, into shared memory

    def run(worker: int | None) -> None:
        from duemq.cli.wiring.relay.relay_process import run_relay

        startup.run(run_relay(settings, worker or 0, notifier.of_worker(worker)))

    run_workers(workers, run)
