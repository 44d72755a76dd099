"""`duemq node` without a sub-command: a delay node."""

from __future__ import annotations

from typing import Annotated

import typer

from duemq.cli.operate.nodes import app
from duemq.cli.wiring import startup

EXAMPLES = """Examples:

    duemq node --data /var/lib/duemq --kafka broker1:9092 --zookeeper zk1:2181 --listen 10.0.0.5:8788
    duemq node --config duemq.toml --name node-a --workers 2
    duemq node ls
    duemq node drain node-a --wait
    duemq node resume node-a
"""


@app.callback(invoke_without_command=True, epilog=EXAMPLES)
def node(
    context: typer.Context,
    data: startup.Data = None,
    listen: Annotated[
        str | None, typer.Option(help="Where proxies and other nodes reach this one.", metavar="HOST:PORT")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Unique in the cluster. Default: the host name.")] = None,
    rack: Annotated[str | None, typer.Option(help="Where it stands, for zookeeper.strategy=same_rack.")] = None,
    kafka: startup.Kafka = None,
    zookeeper: startup.ZooKeeper = None,
    shards: Annotated[int | None, typer.Option(help="Shards of a new cluster.")] = None,
    workers: startup.Workers = 1,
    config: startup.Config = None,
    log_level: startup.LogLevel = None,
    log_format: startup.LogFormat = None,
    further: startup.Further = None,
) -> None:
    """Run a delay node of a cluster, or (with a command) look at the nodes there are.

    With --workers N it is N processes, each with a part of the shards: their names end in .0, .1 ..., their data is in
    sub-folders, and they listen on N ports in a row.
    """
    if context.invoked_subcommand is not None:
        return
    from duemq.cli.wiring.workers import run_workers

    options = {
        "data": data, "shards": shards, "log_level": log_level, "log_format": log_format, "node.listen": listen,
        "node.name": name, "node.rack": rack, "kafka.bootstrap": kafka, "zookeeper.hosts": zookeeper,
    }  # fmt: skip
    settings = startup.begin(config, options, further)
    notifier = startup.become_server(workers)
    if workers > 1:
        import duemq.bus.kafka.bus
        import duemq.cli.wiring.node_process  # noqa: F401  # before the fork: once for all, in memory that they share

    def run(worker: int | None) -> None:
        from duemq.cli.wiring.node_process import run_node

        startup.run(run_node(settings, worker, workers, notifier.of_worker(worker)))

    run_workers(workers, run)
