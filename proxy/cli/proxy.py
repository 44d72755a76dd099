"""`duemq proxy`: the HTTP API of a cluster."""

from __future__ import annotations

from duemq.proxy.cli import starting

EXAMPLES = """Examples:

    duemq proxy --kafka broker1:9092,broker2:9092 --zookeeper zk1:2181,zk2:2181,zk3:2181
    duemq proxy --listen 0.0.0.0:8787 --workers 2 --config duemq.toml
    duemq proxy --config duemq.toml --set proxy.selection=least_latency
"""


def proxy(
    listen: starting.Listen = None,
    kafka: starting.Kafka = None,
    zookeeper: starting.ZooKeeper = None,
    workers: starting.Workers = 1,
    config: starting.Config = None,
    log_level: starting.LogLevel = None,
    log_format: starting.LogFormat = None,
    further: starting.Further = None,
) -> None:
    """Run a proxy: it takes messages and commands over HTTP for the delay nodes of a cluster, and keeps nothing."""
    from duemq.proxy.workers import run_workers

    given = {
        "listen": listen, "log_level": log_level, "log_format": log_format, "kafka.bootstrap": kafka,
        "zookeeper.hosts": zookeeper,
    }  # fmt: skip
    settings = starting.begin(config, given, further)
    starting.become_server()
    if workers > 1:
        starting.share_imports()

    def run(worker: int | None) -> None:
        from duemq.proxy.cluster_service import run_proxy

        starting.run(run_proxy(settings, shared=worker is not None))

    run_workers(workers, run)
