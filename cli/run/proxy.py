"""`duemq proxy`: the HTTP API of a cluster."""

from __future__ import annotations

from duemq.cli.wiring import startup

EXAMPLES = """Examples:

    duemq proxy --kafka broker1:9092,broker2:9092 --zookeeper zk1:2181,zk2:2181,zk3:2181
    duemq proxy --listen 0.0.0.0:8787 --workers 2 --config duemq.toml
    duemq proxy --config duemq.toml --set proxy.selection=least_latency
"""


def proxy(
    listen: startup.Listen = None,
    kafka: startup.Kafka = None,
    zookeeper: startup.ZooKeeper = None,
    workers: startup.Workers = 1,
    config: startup.Config = None,
    log_level: startup.LogLevel = None,
    log_format: startup.LogFormat = None,
    further: startup.Further = None,
) -> None:
    """Run a proxy: it takes messages and commands over HTTP for the delay nodes of a cluster, and keeps nothing.

    The console is at /console/ of its address: by default http://127.0.0.1:8787/console/
    """
    from duemq.cli.wiring.workers import run_workers

    options = {
        "listen": listen, "log_level": log_level, "log_format": log_format, "kafka.bootstrap": kafka,
        "zookeeper.hosts": zookeeper,
    }  # fmt: skip
    settings = startup.begin(config, options, further)
    notifier = startup.become_server(workers)
    if workers > 1:
        import duemq.cli.wiring.proxy_process  # noqa: F401  # before the fork: once for all, in memory that they share

    def run(worker: int | None) -> None:
        from duemq.cli.wiring.proxy_process import run_proxy

        startup.run(run_proxy(settings, shared=worker is not None, notifier=notifier.of_worker(worker)))

    run_workers(workers, run)
