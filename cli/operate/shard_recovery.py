"""`duemq shard ls` and `recover`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from duemq.cli.operate.cluster_status import echo_shards
from duemq.cli.output import echo_json
from duemq.cli.session import AsJson, Url, connected, examples, failure
from duemq.cli.wiring import startup
from duemq.model.errors import DuemqError

app = typer.Typer(help="List the shards, and recover one that no replica can lead.", no_args_is_help=True)

_LOSS = """Accept the possible cost: changes by other replicas since this one's last entry are void.
Deliveries made since then may be repeated. Messages accepted since then and no longer in the buffer are lost."""


@app.command("ls", epilog=examples("duemq shard ls", "duemq shard ls --json | jq '.shards[].master'"))
def list_shards(url: Url = None, as_json: AsJson = False) -> None:
    """List the shards: master, pending, last progress, lag of the slowest replica."""
    with connected(url, as_json) as client:
        status = client.cluster()
    if as_json:
        echo_json({"shards": status.raw["shards"]})
    else:
        echo_shards(status)


@app.command("recover", epilog=examples("duemq shard recover 3 --data /var/lib/duemq --accept-loss"))
def recover(
    shard: Annotated[int, typer.Argument(metavar="SHARD", help="Its number, as `duemq cluster` lists it.", min=0)],
    accept_loss: Annotated[bool, typer.Option("--accept-loss", help=_LOSS)] = False,
    data: Annotated[Path | None, typer.Option(help="Data folder of the server.", metavar="DIR")] = None,
    config: startup.Config = None,
    as_json: AsJson = False,
) -> None:
    """Make this server's replica of a shard authoritative, if no replica can be current any more.

    For a shard that no node can lead: its ledger was deleted, or all replicas missed a part of it, or they wait for a
    lost file. Choose the node whose replica has come furthest: `duemq node ls --json` shows under `unfit` the entry
    that each has reached. Refused if a live node has a current replica. See docs/operate/operations.md.
    """
    from duemq.cli.settings.settings import Settings
    from duemq.delay.api.control_socket import ask_to_recover

    if not accept_loss:
        raise typer.BadParameter("read the possible cost (--help), then add --accept-loss", param_hint="--accept-loss")
    try:
        ask_to_recover(Settings.load(config, {"data": data}).data, shard)
    except DuemqError as error:
        raise failure(error, as_json) from error
    if as_json:
        echo_json({"shard": shard, "recovering": True})
    else:
        typer.echo(f"shard {shard} continues from this server's replica; `duemq cluster` shows when it has a master")
