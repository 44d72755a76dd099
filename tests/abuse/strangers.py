"""Strangers next to a client with a key: does it notice, and does the trail keep every act?

    PYTHONPATH=. python -m tests.abuse.strangers --seconds 120
    PYTHONPATH=. python -m tests.abuse.strangers --seconds 3600 --on kafka

A real `duemq serve` that requires keys, or with `--on kafka` a cluster of two nodes, whose proxy is met. A client with
a key sends 1,000 messages a second in batches, each due a second ahead, and an administrator creates and revokes a key
every second. For half of the time, up to a minute, they are alone. Then strangers come, from one address and without a
key: 5,000 connections that each send half of a login, and requests with wrong keys, as fast as they are answered. They
run in one process of lower priority, because they stand for other machines.

Ends with 0 if each message was accepted and is in its topic once, each act is in the trail, the 99th percentile of
the answers and of the lateness was below 100 ms, and each process of duemq stayed below 512 MiB. It needs `ulimit -Hn`
of 13,000.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import resource
import sys
import tempfile
import threading
import time
import urllib.parse
from multiprocessing.synchronize import Event as ProcessEvent
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import numpy as np

from duemq.bench.base.session import http_session
from tests.abuse.base import Abuser, Sizes
from tests.abuse.crowd import Crowd
from tests.abuse.server import AbusedCluster, AbusedServer

ROOT = "a-key-of-the-settings"
MAX_P99_MS, MAX_BYTES = 100.0, 512 << 20

Abused = AbusedServer | AbusedCluster
_KINDS: dict[str, type[Abused]] = {"embedded": AbusedServer, "kafka": AbusedCluster}
_TOPIC, _EVERY_S, _AHEAD_MS, _ACT_S = "honest", 0.02, 1_000, 1.0
_PATIENCE_S = 60.0  # without a further record
_FILES, _NICE, _FLOODS, _PIPELINED = 12_000, 10, 4, 50


class HalfLogins(Abuser):
    """A login each, with one byte of its body."""

    def run(self, stop: threading.Event) -> None:
        head = self.head(
            "POST", "/console/login", "Content-Type: application/x-www-form-urlencoded", "Content-Length: 4096"
        )
        Crowd(self, self.sizes.idle, lambda number: head + b"k").run(stop)


class Denials(Abuser):
    """Requests with another wrong key each, many at a time."""

    side_by_side = _FLOODS

    def run(self, stop: threading.Event) -> None:
        number = 0
        while not stop.is_set():
            try:
                with self.connect() as sock:
                    while not stop.is_set():
                        number += _PIPELINED
                        sock.sendall(b"".join(map(self._request, range(number - _PIPELINED, number))))
                        self.counts["tried"] += self._take(sock)
            except OSError:
                self.counts["cut off"] += 1
                stop.wait(0.1)

    def _request(self, number: int) -> bytes:
        return self.head("DELETE", f"/v1/keys/k{number}", f"Authorization: Bearer wrong-{self.seed}-{number}")

    def _take(self, sock: Any) -> int:
        """Read the answers to all requests of a turn; fewer if the connection ends."""
        count, rest = 0, b""
        while count < _PIPELINED and (part := sock.recv(1 << 16)):
            rest += part
            count += rest.count(b"HTTP/1.1 401")
            rest = rest[-len(b"HTTP/1.1 40") :]
        return count


def _attack(url: str, sizes: Sizes, stop: ProcessEvent, tried: Any) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.nice(_NICE)
    place = urllib.parse.urlsplit(url)
    told, abusers = threading.Event(), list[Abuser]()
    for kind in (HalfLogins, Denials):
        for number in range(kind.side_by_side):
            abusers.append(kind(place.hostname or "", place.port or 80, _TOPIC, sizes, number))
    threads = [threading.Thread(target=each.run, args=(told,)) for each in abusers]
    for thread in threads:
        thread.start()
    while not stop.wait(0.2):
        tried[0] = abusers[0].counts["tried"]
        tried[1] = sum(each.counts["tried"] for each in abusers[1:])
    told.set()
    for thread in threads:
        thread.join()


class Figures(NamedTuple):
    """`answer_ms`, `late_ms`: the 99th percentile of the answers to batches, and of the times of records behind due."""

    messages: int
    accepted: int
    in_topic: int
    acts: int
    in_trail: int
    answer_ms: float
    late_ms: float
    peak_bytes: int
    half_logins: int
    denials: int

    @property
    def exact(self) -> bool:
        return self.messages == self.accepted == self.in_topic and self.acts == self.in_trail

    @property
    def holds(self) -> bool:
        quick = self.answer_ms < MAX_P99_MS and self.late_ms < MAX_P99_MS
        return self.exact and quick and self.peak_bytes < MAX_BYTES

    def __str__(self) -> str:
        return (
            f"{self.messages:,} messages, {self.accepted:,} accepted, {self.in_topic:,} in their topic; {self.acts:,} "
            f"acts, {self.in_trail:,} in the trail; p99 of answers {self.answer_ms:.1f} ms, of lateness "
            f"{self.late_ms:.1f} ms; at most {self.peak_bytes >> 20:,} MiB; {self.half_logins:,} half-sent logins and "
            f"{self.denials:,} denials"
        )


class _Honest:
    """Sends and acts on a fixed schedule, however long answers take."""

    def __init__(self, http: aiohttp.ClientSession, key: str, rate: float) -> None:
        self._http, self._key, self._batch = http, _bearer(key), max(int(rate * _EVERY_S), 1)
        self.sent = self.accepted = 0
        self.answers_ms: list[float] = []
        self.acts: list[str] = []

    async def run(self, seconds: float) -> None:
        began, batches, acts = time.monotonic(), int(seconds / _EVERY_S), int(seconds / _ACT_S)
        async with asyncio.TaskGroup() as group:
            for number in range(batches):
                await asyncio.sleep(max(began + number * _EVERY_S - time.monotonic(), 0))
                group.create_task(self._send())
                if number * acts % batches < acts:
                    group.create_task(self._act())

    async def _send(self) -> None:
        due = time.time_ns() // 1_000_000 + _AHEAD_MS
        messages = [{"topic": _TOPIC, "payload": "p" * 256, "deliver_at": due} for _ in range(self._batch)]
        self.sent, began = self.sent + self._batch, time.monotonic()
        async with self._http.post("/v1/messages:batch", json={"messages": messages}, headers=self._key) as answer:
            results = (await answer.json()).get("results", ())
            self.accepted += sum("id" in one for one in results)
            self.answers_ms.append((time.monotonic() - began) * 1_000)

    async def _act(self) -> None:
        new = {"name": "act", "scopes": ["read"], "expires_after": "1h"}
        async with self._http.post("/v1/keys", json=new, headers=_bearer(ROOT)) as answer:
            assert answer.status == 201, await answer.text()
            self.acts.append((await answer.json())["id"])
        async with self._http.delete(f"/v1/keys/{self.acts[-1]}", headers=_bearer(ROOT)) as answer:
            assert answer.status == 200, await answer.text()


def run(
    folder: Path, seconds: float, rate: float = 1_000, share: float = 1.0, on: str = "embedded"
) -> tuple[Figures, Figures]:
    """Alone, and beside strangers. `share`: of the connections. `on`: `embedded` or `kafka`."""
    settings = {"DUEMQ_HTTP__ACCESS": "keys", "DUEMQ_HTTP__API_KEYS": ROOT}
    with _KINDS[on](folder, _FILES, settings) as server:
        return asyncio.run(_run(server, seconds, rate, Sizes().scaled(share)))


async def _run(server: Abused, seconds: float, rate: float, sizes: Sizes) -> tuple[Figures, Figures]:
    context = multiprocessing.get_context("spawn")
    stop, tried = context.Event(), context.Array("q", 2)
    async with http_session(server.url, 16) as http:
        new = {"name": "honest", "scopes": ["send", "read"], "topics": [_TOPIC]}
        async with http.post("/v1/keys", json=new, headers=_bearer(ROOT)) as answer:
            key = (await answer.json())["key"]
        alone = _Honest(http, key, rate)
        await alone.run(min(seconds / 2, 60))
        quiet = await _figures(http, server, alone, 0, (0, 0))
        attack = context.Process(target=_attack, args=(server.url, sizes, stop, tried))
        attack.start()
        try:
            while tried[0] < sizes.idle:  # noqa: ASYNC110  # a figure of another process
                await asyncio.sleep(0.1)
            beside = _Honest(http, key, rate)
            await beside.run(seconds)
        finally:
            stop.set()
            attack.join()
        return quiet, await _figures(http, server, beside, alone.sent, (tried[0], tried[1]))


async def _figures(
    http: aiohttp.ClientSession,
    server: Abused,
    honest: _Honest,
    before: int,
    tried: tuple[int, int],
) -> Figures:
    """`before`: messages of the topic that are not meant."""
    late_ms = (await _lateness(http, before + honest.accepted))[before:]
    acts = set(honest.acts)
    return Figures(
        honest.sent, honest.accepted, len(late_ms), 2 * len(acts), await _in_trail(http, acts),
        float(np.percentile(honest.answers_ms, 99)), float(np.percentile(late_ms, 99)),
        server.usage().peak_rss_bytes, *tried,
    )  # fmt: skip


async def _lateness(http: aiohttp.ClientSession, count: int) -> list[float]:
    """Of all records (ms), once there are `count`."""
    late_ms: list[float] = []
    after, deadline = "", time.monotonic() + _PATIENCE_S
    while len(late_ms) < count and time.monotonic() < deadline:
        path = f"/v1/topics/{_TOPIC}/records?max=10000&wait=1s{after}"
        async with http.get(path, headers=_bearer(ROOT)) as answer:
            page = await answer.json()
        if page["records"]:
            deadline = time.monotonic() + _PATIENCE_S
        late_ms += [one["timestamp_ms"] - int(one["headers"]["duemq-due"]) for one in page["records"]]
        after = f"&after={page['cursor']}"
    return late_ms


async def _in_trail(http: aiohttp.ClientSession, ids: set[str]) -> int:
    """How many keys were made, and how many of these revoked, by the trail."""
    made, revoked, cursor = 0, 0, ""
    while True:
        async with http.get(f"/v1/trail?limit=1000{cursor}", headers=_bearer(ROOT)) as answer:
            page = await answer.json()
        done = [one for one in page["entries"] if one["by"] == "settings" and one["result"] < 400]
        made += sum(one["action"] == "POST /v1/keys" for one in done)
        revoked += sum(one["target"].rpartition("/")[2] in ids for one in done if one["action"].startswith("DELETE"))
        if page["cursor"] is None:
            return int(min(made, len(ids)) + revoked)
        cursor = f"&cursor={page['cursor']}"


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def main() -> int:
    arguments = argparse.ArgumentParser(
        prog="python -m tests.abuse.strangers", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    arguments.add_argument("--seconds", type=float, default=120, help="beside strangers")
    arguments.add_argument("--rate", type=float, default=1_000, help="messages/s")
    arguments.add_argument("--share", type=float, default=1.0, help="of the connections: 0.1 for 500")
    arguments.add_argument("--on", choices=list(_KINDS), default="embedded", help="one process, or a cluster")
    said = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="duemq-strangers-") as folder:
        quiet, beside = run(Path(folder), said.seconds, said.rate, said.share, said.on)
    print(f"alone: {quiet}\nbeside strangers: {beside}")
    return 0 if beside.holds else 1


if __name__ == "__main__":
    sys.exit(main())
