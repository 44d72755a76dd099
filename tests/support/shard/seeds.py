"""The seeds of the random schedules: some at each `make test`, any number with `make schedules SEEDS=1000`."""

import os

SEEDS = range(int(os.environ.get("SEEDS", "6")))
