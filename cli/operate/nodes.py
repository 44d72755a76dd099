"""`duemq node ls`, `drain` and `resume`. (`duemq node` alone starts a node: `cli/run/node.py`.)"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from duemq.cli.exit_codes import Exit
from duemq.cli.output import echo_json, echo_nodes, runs_text
from duemq.cli.session import AsJson, Url, connected, examples

if TYPE_CHECKING:
    from duemq.client import Admin

app = typer.Typer(help="Run a delay node, or manage running ones.")

NodeName = Annotated[str, typer.Argument(metavar="NAME", help="The node's name, as `duemq node ls` lists it.")]
_LOOK_S = 0.2


@app.command("ls", epilog=examples("duemq node ls", "duemq node ls --json | jq -r '.nodes[].name'"))
def list_nodes(url: Url = None, as_json: AsJson = False) -> None:
    """List the live nodes: state, shards that they are master of, and ledger entries they are behind."""
    with connected(url, as_json) as client:
        cluster = client.cluster()
    if as_json:
        echo_json({"nodes": cluster.raw["nodes"]})
    else:
        echo_nodes(cluster.nodes)


@app.command(
    "drain", epilog=examples("duemq node drain node-1", "duemq node drain node-1 --wait && systemctl stop duemq")
)
def drain(
    name: NodeName,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is no longer a master.")] = False,
    within: Annotated[float, typer.Option(help="With --wait: for at most this many seconds.", min=0)] = 60,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Let a node hand over its shards, and get none until it is resumed. That delays no message.

    Exit code 5: with --wait, it is still master of some shards.
    """
    with connected(url, as_json) as client:
        client.drain(name)
        left = _wait_for_nothing(client, name, within) if wait else _shards_of(client, name)
    if as_json:
        echo_json({"name": name, "draining": True, "master_of": left})
    elif left:
        typer.echo(f"{name} is draining; it is still master of {runs_text(left)}")
    else:
        typer.echo(f"{name} is drained: it is no longer a master")
    if wait and left:
        raise typer.Exit(Exit.PENDING)


@app.command("resume", epilog=examples("duemq node resume node-1"))
def resume(name: NodeName, url: Url = None, as_json: AsJson = False) -> None:
    """Let a drained node take shards again."""
    with connected(url, as_json) as client:
        client.resume(name)
    if as_json:
        echo_json({"name": name, "draining": False})
    else:
        typer.echo(f"{name} takes shards again")


def _wait_for_nothing(client: Admin, name: str, within_s: float) -> tuple[int, ...]:
    """Wait until the node is master of no shard, or time is up. Returns the shards that it is still master of."""
    deadline = time.monotonic() + within_s
    while (left := _shards_of(client, name)) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return left


def _shards_of(client: Admin, name: str) -> tuple[int, ...]:
    """The shards that a node is master of; none if the node is gone."""
    return next((node.master_of for node in client.cluster().nodes if node.name == name), ())
