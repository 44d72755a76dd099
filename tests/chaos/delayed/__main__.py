"""Rounds in each of which a proxy delivers a Kafka request late, after its client gave it up; each is reconciled.

    python -m tests.chaos.delayed --rounds 200 --seed 1 [--first 0] [--protocol v1|v2] [--out FILE]

A request of a committer or of a sender is held for 1 to 60 s, while its retry or its successor goes on, and then
reaches the broker. Four of five rounds are of a committer and a plain model of a shard, the others of whole nodes. Many
run side by side, each behind a proxy of its own. Ends with 0 where nothing is lost, twice, torn, early or untrue.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from pathlib import Path

import uvloop

from duemq.bus.kafka.options import KafkaOptions
from duemq.dev.kafka.kafka import KafkaServers
from tests.chaos.delayed.account import Account
from tests.chaos.delayed.plan import KINDS
from tests.chaos.delayed.run import OF_BROKER, Rounds, run

_PROTOCOLS = {"v1": "v1", "v2": "auto"}  # what `kafka.transactions` says


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m tests.chaos.delayed", description=__doc__.split("\n\n")[0])
    arguments.add_argument("--rounds", type=int, default=100)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--first", type=int, default=0, help="the number of the first round")
    arguments.add_argument("--protocol", choices=tuple(_PROTOCOLS), default="v1", help="of Kafka's transactions")
    arguments.add_argument("--at-once", type=int, default=12, help="rounds side by side")
    arguments.add_argument("--node-every", type=int, default=5, help="every so many rounds one of whole nodes; 0: none")
    arguments.add_argument("--longest", type=float, default=60.0, help="of a hold, in seconds")
    arguments.add_argument("--kind", action="append", default=[], choices=[kind.name for kind in KINDS])
    arguments.add_argument("--out", type=Path, help="for every round, as JSON; the table goes beside it (.md)")
    said = arguments.parse_args()
    more: dict[str, str] = {}
    if "transactions" in KafkaOptions.__dataclass_fields__:
        more["transactions"] = _PROTOCOLS[said.protocol]
    elif said.protocol != "v1":
        arguments.error("this duemq knows transactions of version 1 alone")
    logging.basicConfig(level=os.environ.get("LOG_LEVEL", "CRITICAL"))
    kinds = tuple(kind for kind in KINDS if not said.kind or kind.name in said.kind)
    rounds = Rounds(said.seed, said.first, said.rounds, kinds, said.at_once, said.longest, said.node_every)
    with tempfile.TemporaryDirectory(prefix="delayed-") as folder:
        with KafkaServers(Path(folder), extra=OF_BROKER, heap_mib=512) as kafka:
            results = uvloop.run(run(kafka.bootstrap, rounds, more))
    account = Account(said.seed, said.protocol, results)
    if said.out:
        account.write(said.out)
    print(account.markdown())
    return 0 if account.clean else 1


if __name__ == "__main__":
    sys.exit(main())
