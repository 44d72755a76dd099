"""`python -m duemq.proxy.local up|down|status`: what `make cluster` and `make cluster-down` call."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from duemq.proxy.cli.show import echo_table
from duemq.proxy.local.cluster import LocalCluster, Ports
from duemq.proxy.local.kept import Kept
from duemq.proxy.local.problem import LocalError

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help="A duemq cluster on this machine.")
Data = Annotated[Path, typer.Option(help="Folder of all data and logs.", metavar="DIR")]
_MIB = 1 << 20


@contextmanager
def _alone(data: Path) -> Iterator[None]:
    """One command at a time on a folder."""
    data.mkdir(parents=True, exist_ok=True)
    with (data / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LocalError(f"another command is at work on {data}") from None
        yield


@app.command()
def up(
    data: Data,
    brokers: Annotated[int, typer.Option(help="Kafka brokers: 1 or 3.")] = 3,
    zookeepers: Annotated[int, typer.Option(help="ZooKeeper servers: 1 or 3.")] = 3,
    nodes: Annotated[int, typer.Option(help="Delay nodes.", min=1)] = 3,
    proxies: Annotated[int, typer.Option(help="Proxies.", min=1)] = 2,
    port: Annotated[int, typer.Option(help="Of the first proxy; the others follow. 0 = any free ones.", min=0)] = 8787,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of all nodes and proxies.", metavar="KEY=VALUE")
    ] = None,
) -> None:
    """Start a cluster and leave it running. Repeated, it starts again what has ended, on the same ports and data."""
    given = dict(setting.split("=", 1) for setting in settings or ())
    screen = Console(stderr=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.umask(0o077)  # of the brokers' files, too: they hold every payload
    with _alone(data):
        kept = Kept.read(data) or Kept(Ports.choose(brokers, zookeepers, nodes, proxies, port), given)
        had = tuple(map(len, (kept.ports.kafka, kept.ports.zookeeper, kept.ports.nodes, kept.ports.proxies)))
        if had != (brokers, zookeepers, nodes, proxies):
            raise LocalError(
                f"{data} holds another cluster (brokers {had[0]}, ZooKeeper servers {had[1]}, nodes {had[2]}, proxies "
                f"{had[3]}): ask for the same, or choose another folder"
            )
        kept.write(data)
        with screen.status("fetching Kafka and ZooKeeper, if they are not here yet") as status:
            cluster = kept.cluster(data, report=lambda what: status.update(f"starting {what}"))
            ran = {name for name, process in cluster.processes.items() if process.running}
            try:
                cluster.start()
                Kept.of(cluster, kept.settings).write(data)
            except BaseException:
                screen.print("ending what was started")
                for name, process in cluster.processes.items():
                    if name not in ran:
                        process.kill()
                raise
        for process in cluster.processes.values():
            process.leave()
    _tell(cluster, data)


def _tell(cluster: LocalCluster, data: Path) -> None:
    duemq = Path(sys.executable).with_name("duemq")
    url = cluster.proxies[0].url
    typer.echo(f"""\
proxies    {" ".join(proxy.url for proxy in cluster.proxies)}
nodes      {" ".join(node.url for node in cluster.nodes)}
Kafka      {cluster.kafka.bootstrap}
ZooKeeper  {cluster.zookeeper.hosts}
logs       {data}/logs {data}/kafka/*/server.log {data}/zookeeper/*/server.log

Try:
  export DUEMQ_URL={url}
  {duemq} send hello "it is time" --after 10s
  {duemq} tail hello --from-start
  {duemq} cluster
  {duemq} node drain node-1 --wait
End it: make cluster-down DATA={data}""")


@app.command()
def down(data: Data) -> None:
    """Stop all that `up` started in this folder. The data stays: remove the folder when it is no longer needed."""
    with _alone(data):
        kept = Kept.read(data)
        cluster = kept.cluster(data) if kept else None
        if kept is None or cluster is None or not any(process.running for process in cluster.processes.values()):
            typer.echo(f"nothing runs in {data}")
            return
        with Console(stderr=True).status("stopping the cluster"):
            cluster.stop()
        Kept.of(cluster, kept.settings).write(data)
    typer.echo(f"stopped; the data is in {data}")


@app.command()
def status(data: Data) -> None:
    """List the processes of the cluster in this folder. Exit code 1 unless all of them run."""
    kept = Kept.read(data)
    if kept is None:
        raise LocalError(f"no cluster was started in {data}")
    processes = kept.cluster(data).processes
    rows = []
    for name, process in processes.items():
        usage = process.usage()
        rows.append(
            (name, str(process.pid), f"{usage.rss_bytes // _MIB} MiB", f"{usage.cpu_s:.0f} s")
            if process.running
            else (name, "down", "", "")
        )
    echo_table(("PROCESS", "PID", "MEMORY", "CPU"), rows)
    if not all(process.running for process in processes.values()):
        raise typer.Exit(1)


def main() -> None:
    try:
        app()
    except LocalError as error:
        print(f"cluster: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
