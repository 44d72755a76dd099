"""Many rounds side by side on one broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from duemq.cluster.internal_topics import committer_name
from tests.chaos.delayed.plan import KINDS, Kind, plan
from tests.chaos.delayed.round import Result, Site, play


@dataclass(frozen=True)
class Rounds:
    """Which rounds of a seed: `count` from number `first` on, `at_once` side by side, held for `longest_s` at most."""

    seed: int
    first: int
    count: int
    kinds: tuple[Kind, ...] = KINDS
    at_once: int = 12
    longest_s: float = 60.0


async def run(
    bootstrap: str,
    rounds: Rounds,
    more: Mapping[str, Any],
    on_result: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Play all of them, with a progress bar on the terminal. `more`: further arguments of `KafkaOptions`."""
    site = Site(bootstrap, dict(more))
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

        async def play_some() -> None:
            for number in left:
                cluster = f"late-{rounds.seed}-{number}"
                marker = f"duemq-{cluster}-{committer_name(0)}".encode()
                made = plan(rounds.seed, number, marker, rounds.kinds, rounds.longest_s)
                result = await play(site, made, cluster)
                results.append(result)
                on_result(result)
                for line in result.wrong[:5]:
                    progress.console.print(f"round {number} ({result.kind}): {line}", markup=False)
                wrong = sum(bool(each.wrong) for each in results)
                progress.update(bar, advance=1, wrong=wrong)

        async with asyncio.TaskGroup() as group:
            for lane in range(min(rounds.at_once, rounds.count)):
                group.create_task(play_some(), name=f"lane {lane}")
    return sorted(results, key=lambda result: result.number)
