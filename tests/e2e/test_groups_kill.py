"""Eight workers share a topic while workers and the server are killed; their messages and acks are reconciled."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.e2e.group_worker import GROUP, TOPIC
from tests.e2e.server import Server, environment, wait_for
from tests.support.house.tree import ROOT

pytestmark = pytest.mark.slow

WORKERS, MESSAGES = 8, 4_000
_WITHIN_S = 240.0
_QUIET_S = 5.0  # longer than a lease
_WINDOW_MS = 100  # between the end of a lease and a kill
_SLACK_MS = 50  # between the server's decision and the worker's clock

Event = dict[str, Any]


class Workers:
    """Processes on `url`, and their notes, in files of `folder`."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url, self._folder = url, folder
        self._processes = list[subprocess.Popen[bytes]]()
        self._started = 0

    def start(self, count: int) -> None:
        for _ in range(count):
            self._started += 1
            path = self._folder / f"{self._started}.jsonl"
            command = [sys.executable, "-m", "tests.e2e.group_worker", self._url, str(path)]
            self._processes.append(subprocess.Popen(command, env=environment() | {"PYTHONPATH": str(ROOT)}))

    def kill(self, count: int) -> None:
        for process in random.sample(self._processes, count):
            self._processes.remove(process)
            process.kill()
            process.wait()

    @property
    def died(self) -> list[int]:
        return [code for process in self._processes if (code := process.poll()) is not None]

    def events(self) -> list[Event]:
        lines = [line for path in self._folder.glob("*.jsonl") for line in path.read_bytes().splitlines(keepends=True)]
        return [orjson.loads(line) for line in lines if line.endswith(b"\n")]

    def has_acked(self, count: float) -> bool:
        assert self.died == []
        return len({event["payload"] for event in self.events() if event["event"] == "acked"}) >= count

    def is_quiet(self) -> bool:
        """Whether nothing was received for some seconds."""
        assert self.died == []
        last_ms: float = max(event["at"] for event in self.events() if event["event"] == "received")
        return time.time() * 1000 - last_ms > _QUIET_S * 1000


def send(url: str) -> None:
    begin = int(time.time() * 1000)
    messages = [
        {"topic": TOPIC, "payload": str(number), "deliver_at": begin + number * 2} for number in range(MESSAGES)
    ]
    answer = httpx.post(f"{url}/v1/messages:batch", json={"messages": messages}, timeout=60)
    assert answer.json()["accepted"] == MESSAGES


def test_each_message_is_acked_and_no_two_workers_have_one_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    kills = list[float]()
    with Server(tmp_path / "data") as server:
        server.start()
        workers = Workers(server.url, tmp_path / "workers")
        try:
            workers.start(WORKERS)
            send(server.url)
            for share in (0.2, 0.4, 0.6, 0.8):
                wait_for(partial(workers.has_acked, share * MESSAGES), f"{share:.0%} acked", _WITHIN_S)
                workers.kill(2)
                server.kill()
                kills.append(time.time() * 1000)
                server.start()
                workers.start(2)
            wait_for(partial(is_done, server, workers), "all are done, and nothing comes any more", _WITHIN_S)
        finally:
            workers.kill(WORKERS - len(workers.died))
    reconcile(workers.events(), kills)


def is_done(server: Server, workers: Workers) -> bool:
    figures = server.call("GET", f"/v1/topics/{TOPIC}/groups/{GROUP}").json()["figures"] or {}
    assert not figures.get("dead")
    return (figures.get("lag"), figures.get("in_flight")) == (0, 0) and workers.is_quiet()


def reconcile(events: list[Event], kills: list[float]) -> None:
    by_payload: dict[int, list[Event]] = defaultdict(list)
    for event in sorted(events, key=lambda event: event["at"]):
        by_payload[event["payload"]].append(event)
    assert by_payload.keys() == set(range(MESSAGES)), "nothing is lost"
    again = early = unknown = 0
    for payload, history in by_payload.items():
        received = [event for event in history if event["event"] == "received"]
        if not any(event["event"] == "acked" for event in history):
            unknown += 1
            last = [event for event in history if event["event"] in ("acking", "late")][-1]
            assert last["event"] == "acking" or any(last["asked"] <= kill <= last["at"] for kill in kills), history
        ended = any(kill - _WINDOW_MS <= event["until"] <= kill for event in received for kill in kills)
        count = Counter(event["event"] for event in history)
        if ended or count["nacking"] > count["nacked"]:
            continue  # a kill between the retry and the position: both may come
        for ack in (event for event in history if event["event"] == "acked"):
            assert not [event for event in received if event["asked"] > ack["at"]], f"{payload} came after its ack"
        for first, second in pairwise(received):
            again += 1
            nacked = any(
                event["event"] == "nacked" and first["at"] <= event["at"] and event["asked"] <= second["at"]
                for event in history
            )
            killed = any(first["asked"] <= kill <= second["at"] for kill in kills)
            early += not (nacked or killed or second["at"] >= first["until"] - _SLACK_MS)
    print(f"\n{len(kills)} kills of the server, {again:,} of {MESSAGES:,} received again, {unknown} acks unanswered")
    assert early == 0, "while a lease holds, no other worker gets the message"
