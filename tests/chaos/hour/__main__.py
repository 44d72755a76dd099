"""Everything breaks, drawn by a seed, for as long as is said; then every message is reconciled, twice.

    python -m tests.chaos.hour --minutes 60 --seed 1 --out hour.json

By the senders' own records (each answer, each record), and by the Spark audit over the logs. Ends with 0 where
nothing is lost, twice, early or untrue.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.chaos.cluster import ChaosCluster, start_cluster
from tests.chaos.figures import Figures
from tests.chaos.hour.account import Account
from tests.chaos.hour.audit import Audits
from tests.chaos.hour.draw import BREAKAGES, draw
from tests.chaos.hour.files import Files
from tests.chaos.shape import Shape
from tests.chaos.world import World

_END_S = 3_600.0  # the last breakage, what is pending, and the reconciliation


def break_everything(cluster: ChaosCluster, account: Account, names: list[str]) -> None:
    """Fill the account; raises where something is wrong."""
    figures = Figures()
    world = World(cluster, cluster.shape, figures, f"hour.{account.seed}", account.seed)
    audits = Audits(world.bootstrap, cluster.folder / "audit")
    files = Files(world, cluster.folder / "import")
    world.before_purging = audits.slice

    async def breakages(world: World) -> None:
        until = time.monotonic() + account.minutes * 60
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(files.run(stop), name="files")
            for breakage in draw(world.chance, cluster.shape.brokers):
                if time.monotonic() > until:
                    break
                if names and breakage.name not in names:
                    continue
                began = time.monotonic()
                print(f"{time.strftime('%H:%M:%S')} {breakage.name}", end="", flush=True)
                await breakage.act(world)
                account.breakages[breakage.name] += 1
                print(f": {time.monotonic() - began:.0f} s", flush=True)
            stop.set()

    try:
        world.run(breakages, account.minutes * 60 + _END_S)
        asyncio.run(audits.slice())
    finally:
        account.requests = dict(world.load.done)
        account.messages, account.probes = len(world.load.messages), len(world.probe.sent)
        account.files, account.slices = files.imported, len(audits.slices)
        account.accepted, account.outcomes = audits.accepted, dict(audits.outcomes)
        account.violations, account.pauses = dict(audits.violations), figures.values


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m tests.chaos.hour", description=__doc__.split("\n\n")[0])
    arguments.add_argument("--minutes", type=float, default=60)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--out", type=Path, default=Path("hour.json"), help="the JSON; the tables go beside it")
    arguments.add_argument("--folder", type=Path, help="what is left of the cluster; removed where it is not given")
    arguments.add_argument(
        "--servers", type=int, default=3, choices=(1, 3),
        help="of Kafka and of ZooKeeper each; with 1, for a small machine, what takes three is left out",
    )  # fmt: skip
    arguments.add_argument("--only", action="append", default=[], choices=[each.name for each in BREAKAGES])
    said = arguments.parse_args()
    account = Account(said.seed, said.minutes, said.servers)
    shape = Shape(said.servers, said.servers, network=True, rights=True, partitions=1)
    with tempfile.TemporaryDirectory(prefix="chaos-hour-") as temporary:
        with start_cluster(said.folder or Path(temporary), shape) as cluster:
            try:
                break_everything(cluster, account, said.only)
            except Exception:
                account.failure = traceback.format_exc(limit=-20)
    account.write(said.out)
    print(account.markdown())
    return 0 if account.clean else 1


if __name__ == "__main__":
    sys.exit(main())
