"""`duemq dev-cluster`: a whole duemq on this machine, to try it and for development."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from duemq.cli.output import echo_json, echo_table
from duemq.dev.servers.errors import LocalError

if TYPE_CHECKING:  # every `duemq` command imports this module, and importing the servers would take longer
    from duemq.dev.cluster.cluster import LocalCluster

app = typer.Typer(
    no_args_is_help=True, help="Run a duemq cluster on this machine: Kafka, ZooKeeper, delay nodes and proxies."
)
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Data = Annotated[Path, typer.Option(help="Folder of all data and logs.", metavar="DIR")]
_MIB = 1 << 20


@contextmanager
def _report_errors() -> Iterator[None]:
    """Report a LocalError as one line, and exit with code 1."""
    try:
        yield
    except LocalError as error:
        typer.echo(f"duemq dev-cluster: {error}", err=True)
        raise typer.Exit(1) from error


@contextmanager
def _alone(data: Path) -> Iterator[None]:
    """Let only one command at a time work on a folder."""
    data.mkdir(parents=True, exist_ok=True)
    with (data / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LocalError(f"another command is working on {data}") from None
        yield


@app.command()
def up(
    data: Data,
    brokers: Annotated[int, typer.Option(help="Kafka brokers: 1 or 3.")] = 3,
    zookeepers: Annotated[int, typer.Option(help="ZooKeeper servers: 1 or 3.")] = 3,
    nodes: Annotated[int, typer.Option(help="Delay nodes.", min=1)] = 3,
    proxies: Annotated[int, typer.Option(help="Proxies.", min=1)] = 2,
    port: Annotated[int, typer.Option(help="The first proxy's; the others follow. 0 = any free ones.", min=0)] = 8787,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of all nodes and proxies.", metavar="KEY=VALUE")
    ] = None,
    json: Json = False,
) -> None:
    """Start a cluster and leave it running. Run again, it restarts ended processes, on the same ports and data."""
    from rich.console import Console

    from duemq.dev.cluster.cluster import Ports
    from duemq.dev.cluster.state_file import ClusterState

    setting_values = dict(setting.split("=", 1) for setting in settings or ())
    screen = Console(stderr=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.umask(0o077)  # this also applies to the brokers' files, which contain every payload
    with _report_errors(), _alone(data):
        state = ClusterState.read(data) or ClusterState(
            Ports.choose(brokers, zookeepers, nodes, proxies, port), setting_values
        )
        had = tuple(map(len, (state.ports.kafka, state.ports.zookeeper, state.ports.nodes, state.ports.proxies)))
        if had != (brokers, zookeepers, nodes, proxies):
            raise LocalError(
                f"{data} holds another cluster (brokers {had[0]}, ZooKeeper servers {had[1]}, nodes {had[2]}, proxies "
                f"{had[3]}): request the same, or choose another folder"
            )
        state.write(data)
        with screen.status("fetching Kafka and ZooKeeper, if they are missing") as status:
            cluster = state.cluster(data, report=lambda what: status.update(f"starting {what}"))
            ran = {name for name, process in cluster.processes.items() if process.running}
            try:
                cluster.start()
                ClusterState.of(cluster, state.settings).write(data)
            except BaseException:
                screen.print("ending the started processes")
                for name, process in cluster.processes.items():
                    if name not in ran:
                        process.kill()
                raise
        for process in cluster.processes.values():
            process.leave()
    _show(cluster, data, json)


def _show(cluster: LocalCluster, data: Path, json: bool) -> None:
    if json:
        echo_json({
            "proxies": [proxy.url for proxy in cluster.proxies], "nodes": [node.url for node in cluster.nodes],
            "kafka": cluster.kafka.bootstrap, "zookeeper": cluster.zookeeper.hosts, "data": str(data),
        })  # fmt: skip
        return
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
End it: {duemq} dev-cluster down --data {data}""")


@app.command()
def down(data: Data, json: Json = False) -> None:
    """Stop all processes that `up` started in this folder. The data stays: remove the folder if you do not need it."""
    from rich.console import Console

    from duemq.dev.cluster.state_file import ClusterState

    with _report_errors(), _alone(data):
        state = ClusterState.read(data)
        cluster = state.cluster(data) if state else None
        if state is None or cluster is None or not any(process.running for process in cluster.processes.values()):
            echo_json({"data": str(data), "stopped": []}) if json else typer.echo(f"nothing runs in {data}")
            return
        ran = [name for name, process in cluster.processes.items() if process.running]
        with Console(stderr=True).status("stopping the cluster"):
            cluster.stop()
        ClusterState.of(cluster, state.settings).write(data)
    if json:
        echo_json({"data": str(data), "stopped": ran})
    else:
        typer.echo(f"stopped; the data is in {data}")


@app.command()
def status(data: Data, json: Json = False) -> None:
    """List the processes of the cluster in this folder. Exit code 1 unless all are running."""
    from duemq.dev.cluster.state_file import ClusterState

    with _report_errors():
        state = ClusterState.read(data)
        if state is None:
            raise LocalError(f"no cluster was started in {data}")
    processes = state.cluster(data).processes
    usage = {name: process.usage() for name, process in processes.items() if process.running}
    if json:
        echo_json({
            name: {"pid": process.pid, "rss_bytes": usage[name].rss_bytes, "cpu_s": round(usage[name].cpu_s, 1)}
            if name in usage
            else None
            for name, process in processes.items()
        })  # fmt: skip
    else:
        rows = [
            (name, str(process.pid), f"{usage[name].rss_bytes // _MIB} MiB", f"{usage[name].cpu_s:.0f} s")
            if name in usage
            else (name, "down", "", "")
            for name, process in processes.items()
        ]
        echo_table(("PROCESS", "PID", "MEMORY", "CPU"), rows)
    if len(usage) < len(processes):
        raise typer.Exit(1)
