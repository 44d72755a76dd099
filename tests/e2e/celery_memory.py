"""What tasks with an eta a day ahead cost the workers, held by duemq and without it.

`python -m tests.e2e.celery_memory --tasks 100000` prints the figures of both as JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import redis

from tests.e2e.celery_site import Process, Site
from tests.e2e.server import wait_for

DAY_S = 86_400
ONE_BY_ONE = 2_000
MIB = 1024 * 1024


def memory(process: Process) -> float:
    """MiB of the process and its children: each page counted once however many share it (PSS)."""
    return sum(_pss(pid) for pid in process.group()) / MIB


def _pss(pid: int) -> int:
    pss: int = psutil.Process(pid).memory_full_info().pss
    return pss


def measure(folder: Path, tasks: int, held: bool, singles: int = ONE_BY_ONE) -> dict[str, Any]:
    """Figures of one site. Held tasks are counted again after a kill -9 of every process."""
    folder.mkdir()
    with Site(folder, held=held) as site:
        broker = redis.Redis(port=site.broker.port)
        site.worker.start()
        app = site.tasks()
        for n in range(20):
            app.note.apply_async((f"warm{n}",), ignore_result=True)
        site.wait_for_runs(*(f"warm{n}" for n in range(20)))
        before = memory(site.worker)

        started = time.monotonic()
        for n in range(min(singles, tasks)):
            app.note.apply_async((f"t{n}",), countdown=DAY_S, ignore_result=True)
        single_s = time.monotonic() - started
        rest = range(min(singles, tasks), tasks)
        started = time.monotonic()
        if held:
            for first in range(rest.start, rest.stop, 10_000):
                with app.app.duemq.batch():
                    for n in range(first, min(first + 10_000, rest.stop)):
                        app.note.apply_async((f"t{n}",), countdown=DAY_S, ignore_result=True)
        else:
            for n in rest:
                app.note.apply_async((f"t{n}",), countdown=DAY_S, ignore_result=True)
        rest_s = time.monotonic() - started
        figures: dict[str, Any] = {"held": held, "tasks": tasks, "one_by_one_per_s": round(rest.start / single_s)}
        if held:
            figures["batch_per_s"] = round(len(rest) / rest_s) if rest else None
        else:
            wait_for(lambda: broker.hlen("unacked") == tasks, "the worker has fetched all tasks", 600)
        time.sleep(2.0)  # a measurement: what is in flight comes to rest
        figures |= {"workers_before_mib": round(before, 1), "workers_grew_mib": round(memory(site.worker) - before, 1)}
        if held:
            for process in (site.worker, site.duemq, site.broker):
                process.kill()
            for process in (site.broker, site.duemq, site.worker):
                process.start()
            figures["pending_after_kill"] = sum(1 for _ in app.app.duemq.client.list(topic="celery"))
            app.app.duemq.close()
        broker.close()
        app.app.close()
        gc.collect()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=100_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for held in (True, False):
            print(json.dumps(measure(Path(folder) / str(held), arguments.tasks, held)), flush=True)


if __name__ == "__main__":
    main()
