"""Dead letters redriven at a rate while others flow, and the server killed in the middle: each comes once.

`make redrive`: 100,000 at 2,000/s beside 2,000/s, as of issue 19. Here some of them.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.server import Server, wait_for
from tests.support.patience import PROCESS_S

LETTERS = int(os.environ.get("REDRIVE_LETTERS", "6000"))
RATE = int(os.environ.get("REDRIVE_RATE", "1000"))
FLOW = int(os.environ.get("REDRIVE_FLOW", "200"))
EXACT = "REDRIVE_LETTERS" in os.environ  # whether the machine is quiet, and the rate is judged
BATCH = 1_000


class Flow:
    """Messages of others, sent at a rate; those that were not accepted in doubt are not counted."""

    def __init__(self, server: Server) -> None:
        self.sent: set[str] = set()
        self._server, self._stop = server, threading.Event()
        self._thread = threading.Thread(target=self._run, name="flow")

    def __enter__(self) -> Flow:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        count = max(FLOW // 10, 1)
        due, number = time.monotonic(), 0
        with httpx.Client(base_url=self._server.url, timeout=10) as http:
            while not self._stop.wait(max(due - time.monotonic(), 0)):
                due += count / FLOW
                names = [f"flow-{number + n}" for n in range(count)]
                number += count
                messages = [{"name": name, "topic": "flow", "payload": name, "deliver_after": 500} for name in names]
                try:
                    answer = http.post("/v1/messages:batch", json={"messages": messages})
                except httpx.TransportError:
                    time.sleep(0.2)
                    continue
                if answer.status_code == 200:
                    self.sent.update(
                        name for name, one in zip(names, answer.json()["results"], strict=True) if "error" not in one
                    )


def bury(server: Server, count: int) -> None:
    """So many dead letters: messages that expire while the server is away."""
    due = int(time.time() * 1000) + 5_000 + count // 3
    for start in range(0, count, BATCH):
        messages = [
            {"topic": "later", "payload": str(number), "deliver_at": due, "expires_at": due + 1}
            for number in range(start, min(start + BATCH, count))
        ]
        answer = server.call("POST", "/v1/messages:batch", {"messages": messages})
        assert answer.status_code == 200 and answer.json()["accepted"] == len(messages), answer.text
    assert time.time() * 1000 < due, "this machine is too slow for the times of this test"
    server.stop()
    time.sleep(max(due / 1000 + 0.1 - time.time(), 0))
    server.start()
    wait_for(lambda: _dead(server) == count, f"{count} dead letters", PROCESS_S)


def _dead(server: Server) -> int:
    dead: int = server.call("GET", "/v1/cluster").json()["shards"][0]["outcomes"]["dead"]
    return dead


def test_letters_redriven_while_a_server_is_killed_come_once_each(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        server.start()
        bury(server, LETTERS)
        with Flow(server) as flow:
            order = {"kind": "redrive", "rate": RATE, "filter": {"dead_from": "2026-01-01T00:00:00Z"}}
            assert server.call("POST", "/v1/jobs", order | {"dry_run": True}).json()["total"] == LETTERS
            id_ = server.call("POST", "/v1/jobs", order).json()["id"]

            def job() -> dict[str, Any]:
                document: dict[str, Any] = server.call("GET", f"/v1/jobs/{id_}").json()
                return document

            wait_for(lambda: job()["done"] > LETTERS // 2, "half of the letters", PROCESS_S)
            server.kill()
            server.start()
            wait_for(lambda: not job()["active"], "the end of the job", PROCESS_S)
            ended = job()
        assert (ended["state"], ended["total"], ended["done"], ended["skipped"], ended["failed"]) == (
            "done", LETTERS, LETTERS, 0, 0,
        )  # fmt: skip
        wait_for(lambda: len(server.records("later")) >= LETTERS, "all records", PROCESS_S)
        records = server.records("later")
        counts = Counter(record["payload"] for record in records)
        assert counts == Counter(str(number) for number in range(LETTERS)), "lost or twice"
        assert {record["headers"]["duemq-redrives"] for record in records} == {"1"}
        wait_for(lambda: len(server.records("flow")) >= len(flow.sent), "the messages of others", PROCESS_S)
        others = Counter(record["payload"] for record in server.records("flow"))
        assert flow.sent <= others.keys() and max(others.values()) == 1
        rates = rates_of(records)
        print(f"{LETTERS} letters redriven; each whole second (messages/s): {rates}")
        if EXACT:
            steady = [rate for rate in rates if rate]
            mean = sum(steady) / len(steady)
            assert abs(mean - RATE) <= 0.02 * RATE, f"{mean:.0f}/s"


def rates_of(records: list[dict[str, Any]]) -> list[int]:
    """How many records came in each second between the first and the last, without those around a gap of a second or
    more: the server was not there."""
    times = sorted(record["timestamp_ms"] for record in records)
    runs, start = [], 0
    for at, (before, after) in enumerate(pairwise(times), 1):
        if after - before >= 1_000:
            runs.append(times[start:at])
            start = at
    runs.append(times[start:])
    rates: list[int] = []
    for run in runs:
        seconds = Counter((at - run[0]) // 1_000 for at in run)
        rates += [seconds[second] for second in range(max(seconds))]  # the last one is not whole
    return rates


@pytest.mark.parametrize("gap", [False, True])
def test_rates_leave_gaps_out(gap: bool) -> None:
    times = [*range(0, 2_500, 10), *range(9_000 if gap else 2_500, 11_000 if gap else 4_500, 10)]
    assert set(rates_of([{"timestamp_ms": at} for at in times])) == {100}
