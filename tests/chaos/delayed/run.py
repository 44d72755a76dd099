"""Many rounds side by side on one broker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from duemq.cluster.topics.internal_topics import committer_name
from tests.chaos.delayed.model_shard import ModelShard
from tests.chaos.delayed.node_round import SHARDS, play_nodes
from tests.chaos.delayed.plan import KINDS, Kind, plan
from tests.chaos.delayed.round import Result, Site, play

# A transaction that its producer left is ended within this time and its own, and not within ten seconds.
OF_BROKER = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000"}


@dataclass(frozen=True)
class Rounds:
    """Which rounds of a seed: `count` from number `first` on, `at_once` side by side, held for `longest_s` at most.

    Every `node_every`-th is one of whole nodes, 0 for none.
    """

    seed: int
    first: int
    count: int
    kinds: tuple[Kind, ...] = KINDS
    at_once: int = 12
    longest_s: float = 60.0
    node_every: int = 5
    shard: type[ModelShard] = ModelShard
    """What commits, below the level of nodes."""

    async def play(self, site: Site, number: int, lane: int) -> Result:
        """Play one of them. `lane`: the number of the shard, where it is one of nodes."""
        of_nodes = self.node_every > 0 and number % self.node_every == self.node_every - 1
        cluster = f"late-{self.seed}-nodes" if of_nodes else f"late-{self.seed}-{number}"
        shard = lane if of_nodes else 0
        marker = f"duemq-{cluster}-{committer_name(shard)}".encode()
        made = plan(self.seed, number, marker, self.kinds, self.longest_s)
        if of_nodes:
            return await play_nodes(site, made, cluster, shard, f"late-{self.seed}-{number}")
        return await play(site, made, cluster)


async def run(bootstrap: str, rounds: Rounds, more: Mapping[str, Any]) -> list[Result]:
    """Play all of them, with a progress bar on the terminal. `more`: further arguments of `KafkaOptions`."""
    site = Site(bootstrap, dict(more), rounds.shard)
    results: list[Result] = []
    columns = (
        TextColumn("rounds"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[wrong]} wrong"),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("rounds", total=rounds.count, wrong=0)
        left = iter(range(rounds.first, rounds.first + rounds.count))

        async def play_some(lane: int) -> None:
            for number in left:
                result = await rounds.play(site, number, lane)
                results.append(result)
                for line in result.wrong[:5]:
                    progress.console.print(f"round {number} ({result.kind}): {line}", markup=False)
                wrong = sum(bool(each.wrong) for each in results)
                progress.update(bar, advance=1, wrong=wrong)

        async with asyncio.TaskGroup() as group:
            for lane in range(min(rounds.at_once, rounds.count, SHARDS)):
                group.create_task(play_some(lane), name=f"lane {lane}")
    return sorted(results, key=lambda result: result.number)
