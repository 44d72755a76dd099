"""`duemq cluster`"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from duemq.cli.output import begin_round, echo_json, echo_nodes, echo_table
from duemq.cli.session import AsJson, Url, connected, examples

if TYPE_CHECKING:
    from duemq.client import Cluster, Shard

EXAMPLES = examples(
    "duemq cluster", "duemq cluster --watch", "duemq cluster --json | jq '.shards[] | select(.master == null)'"
)


def cluster(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(min=0.1, help="How often, with --watch.", metavar="SECONDS")] = 1,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show the shards (master, pending, last progress, lag of the slowest replica) and the nodes."""
    with connected(url, as_json) as client:
        try:
            while True:
                _show(client.cluster(), as_json, watch)
                if not watch:
                    return
                time.sleep(every)
        except KeyboardInterrupt:
            pass


def _show(status: Cluster, as_json: bool, watch: bool) -> None:
    if as_json:
        echo_json(status.raw)
        return
    if watch:
        begin_round()
    echo_shards(status)
    typer.echo("")
    echo_nodes(status.nodes)


def echo_shards(status: Cluster) -> None:
    """Print each shard's master, its progress, and the lag of its slowest replica."""
    lags = {
        shard.number: max((node.lag.get(shard.number, 0) for node in status.nodes), default=0)
        for shard in status.shards
    }
    echo_table(
        ("SHARD", "MASTER", "PENDING", "ENTRY", "LAST ENTRY", "CURSOR AGE", "LAG"),
        (_row(shard, lags[shard.number]) for shard in status.shards),
    )


def _row(shard: Shard, lag: int) -> tuple[str, ...]:
    return (
        str(shard.number), shard.master or "-", _number(shard.pending), _number(shard.entry), _age(shard.entry_age_ms),
        _age(shard.cursor_age_ms), str(lag),
    )  # fmt: skip


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _age(ms: int | None) -> str:
    """`0.3s`, `2m`, `5h`: rounded for readers."""
    if ms is None:
        return "-"
    if ms < 60_000:
        return f"{ms / 1000:.1f}s"
    return f"{ms // 60_000}m" if ms < 7_200_000 else f"{ms // 3_600_000}h"
