"""`duemq lag`: how far consumer groups are behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from duemq.cli.output import begin_round, echo_json
from duemq.cli.session import AsJson, examples, failure
from duemq.cli.wiring import startup
from duemq.model.errors import DuemqError, Unavailable

if TYPE_CHECKING:
    import asyncio

    from duemq.client.lag import LagReader

EXAMPLES = examples(
    "duemq lag --kafka localhost:9092",
    "duemq lag billing shipping --kafka localhost:9092 --partitions --watch --every 2",
    "duemq lag billing --kafka localhost:9092 --topic orders --tags 'paid || refunded'",
    "duemq lag --kafka localhost:9092 --json | jq '.groups[] | select(.total.lag > 1000) | .group'",
    "duemq lag --config duemq.toml --set kafka.user=monitor --listen 127.0.0.1:9108 --every 15",
)


def lag(
    groups: Annotated[list[str] | None, typer.Argument(metavar="GROUP", help="Default: all groups.")] = None,
    kafka: startup.Kafka = None,
    topic: Annotated[list[str] | None, typer.Option("--topic", "-t", help="Only this one. Can be repeated.")] = None,
    tags: Annotated[
        str | None,
        typer.Option(help="Also count the messages with any of these tags; * counts all messages."),
    ] = None,
    most: Annotated[
        int, typer.Option(min=1, help="Offsets of each topic that are read to count; above, N+ is shown.", metavar="N")
    ] = 10_000,
    partitions: Annotated[bool, typer.Option("--partitions", "-p", help="A row for each partition.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C.")] = False,
    listen: Annotated[
        str | None, typer.Option(help="Serve it to Prometheus instead of showing it.", metavar="HOST:PORT")
    ] = None,
    every: Annotated[
        float | None,
        typer.Option(min=0.1, help="How often. Default: 1, with --listen 10.", metavar="SECONDS", show_default=False),
    ] = None,
    config: startup.Config = None,
    further: startup.Further = None,
    as_json: AsJson = False,
) -> None:
    """Show how far consumer groups are behind, by topic: lag, messages in hand, and messages not pulled yet.

    It reads from Kafka, so the groups need not use duemq, nor be online. Reading has no side effects.
    """
    import asyncio
    import logging

    from duemq.cli.wiring.parts import kafka_options
    from duemq.client.lag import LagReader

    if listen is not None and watch:
        raise typer.BadParameter("use either --watch or --listen", param_hint="--watch")
    if watch and groups and every is None and groups[-1].replace(".", "", 1).isdecimal():  # the syntax up to 0.1
        raise typer.BadParameter(f"it takes no number; use --watch --every {groups[-1]}", param_hint="--watch")
    address = None if listen is None else _address(listen)
    settings = startup.begin(config, {"kafka.bootstrap": kafka}, further, log_level="warning")
    if not settings.kafka.bootstrap:
        raise typer.BadParameter("name the brokers, or set kafka.bootstrap", param_hint="--kafka")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # we report its errors in one line
    what = _What(groups or None, topic or None, tags)
    try:
        options = kafka_options(settings)
        reader = LagReader(options.bootstrap, kafka=options.client(), max_offsets=most)
        if address is None:
            asyncio.run(_show(reader, what, (every or 1.0) if watch else None, partitions, as_json))
        else:
            asyncio.run(_serve(reader, what, *address, every or 10.0))
    except DuemqError as error:
        raise failure(error, as_json) from error


class _What(NamedTuple):
    """What to read; None means all."""

    groups: list[str] | None
    topics: list[str] | None
    tags: str | None


async def _show(reader: LagReader, what: _What, every_s: float | None, partitions: bool, as_json: bool) -> None:
    """Print the lag every `every_s` seconds; None: only once."""
    import asyncio
    import time
    from contextlib import suppress

    from duemq.cli.operate.lag_table import echo_lag
    from duemq.client.lag.document import document

    stop = _stopped_by_signals()
    async with reader:
        while not stop.is_set():
            try:
                lags = await reader.read(*what)
            except Unavailable as error:
                if every_s is None:
                    raise
                typer.secho(f"duemq: {error}; retrying", err=True, fg=typer.colors.RED)
            else:
                if as_json:
                    echo_json(document(lags, time.time_ns() // 1_000_000))
                else:
                    if every_s is not None:
                        begin_round()
                    echo_lag(lags, by_partition=partitions, tags=what.tags)
            if every_s is None:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), every_s)


async def _serve(reader: LagReader, what: _What, host: str, port: int, every_s: float) -> None:
    from prometheus_client import CollectorRegistry, start_http_server

    from duemq.client.lag.metrics import LagMetrics, keep_reading
    from duemq.model.errors import BadConfig

    stop = _stopped_by_signals()
    registry, metrics = CollectorRegistry(), LagMetrics()
    registry.register(metrics)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise BadConfig(f"--listen {host}:{port}: {error.strerror or error}") from error
    try:
        shown = f"[{host}]" if ":" in host else host
        typer.echo(f"duemq lag serves http://{shown}:{server.server_port}/metrics")
        await keep_reading(reader, metrics, stop, every_s, *what)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _stopped_by_signals() -> asyncio.Event:
    import asyncio
    import signal

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def _address(listen: str) -> tuple[str, int]:
    from duemq.model.settings import host_and_port

    try:
        host, _, port = host_and_port(listen).rpartition(":")
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--listen") from error
    return host.strip("[]"), int(port)
