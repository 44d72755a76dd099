"""Abuses a server next to an honest client: does it stay small, on time and exact?

    make abuse                                       # or, with PYTHONPATH=. :
    python -m tests.abuse --minutes 10 --out abuse.json
    python -m tests.abuse --minutes 1 --only idle --only topics

A real `duemq serve` on the embedded bus with `ulimit -n 1024`. An honest client sends 1,000 messages a second all the
time, each due one to two seconds ahead, and reads them. For a fifth of the time, two minutes at most, it is alone.
Then, for the given number of minutes, all of these come at once: 5,000 silent connections, 2,000 event streams and 500
long polls that do not read, heads that arrive a byte a second, heads of 100 MiB, batches of 32 MiB of empty lists, and
a thousand new topics a minute. They run in one process of lower priority, because they stand for other machines.

Ends with 0 if the server stayed below 1 GiB, each honest message was accepted, delivered and read once, and the 99th
percentile of their lateness was below 100 ms. It needs Linux, `ulimit -Hn` of 8,000 and two quiet cores.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

from tests.abuse.abusers import KINDS
from tests.abuse.base import Sizes
from tests.abuse.run import Plan, run

_MAX_QUIET_S, _LEAST_QUIET_S = 120.0, 5.0


def main() -> int:
    summary, _, more = (__doc__ or "").partition("\n\n")
    arguments = argparse.ArgumentParser(
        prog="python -m tests.abuse", description=summary, epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    arguments.add_argument("--minutes", type=float, default=10, help="with abuse; a fifth of it more without")
    arguments.add_argument("--rate", type=float, default=1_000, help="honest messages/s")
    arguments.add_argument(
        "--only", action="append", default=[], choices=list(KINDS), metavar="KIND", help=", ".join(KINDS)
    )
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--share", type=float, default=1.0, help="of the abuse: 0.1 for a tenth of each size")
    arguments.add_argument("--folder", type=Path, help="of data and log, kept; a temporary one where it is not given")
    arguments.add_argument("--out", type=Path, default=Path("abuse.json"), help="where all figures are written to")
    said = arguments.parse_args()
    quiet_s = min(max(said.minutes * 12, _LEAST_QUIET_S), _MAX_QUIET_S)
    kinds = tuple(name for name in KINDS if not said.only or name in said.only)
    plan = Plan(said.minutes, quiet_s, said.rate, said.seed, kinds, Sizes().scaled(said.share))
    with tempfile.TemporaryDirectory(prefix="duemq-abuse-") as temporary:
        folder = said.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        account = run(plan, folder, partial(print, flush=True))
    account.write(said.out)
    print(account.table())
    return 0 if account.holds else 1


if __name__ == "__main__":
    sys.exit(main())
