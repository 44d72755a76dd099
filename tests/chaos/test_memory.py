"""Memory of a proxy while it is asked for too much: below 512 MiB, and what can be answered is answered at once.

MEMORY_SECONDS: how long the shards have no master; ten minutes show what grows.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import httpx
import orjson
import pytest

from duemq.cluster.shards.progress import Progress
from duemq.dev.cluster.cluster import LocalCluster
from duemq.dev.servers.procfs import peak_rss_bytes
from tests.support.servers.real_servers import need_servers

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("chaos")]

_SECONDS = float(os.environ.get("MEMORY_SECONDS", "10"))
_MAX_BYTES, _P99_S = 512 << 20, 0.1
_KEY_BYTES, _BATCH_BYTES = 60_000, 32 << 20
_SENDERS, _BATCHES = 8, 24
_ASKERS = 300


@contextmanager
def cluster_of_one(folder: Path) -> Iterator[LocalCluster]:
    need_servers()
    settings = {"shards": "4", "limits.max_key_bytes": "60KiB", "topics.partitions": "4"}
    with LocalCluster(folder, nodes=1, proxies=1, settings=settings) as cluster:
        yield cluster


def full_batch() -> bytes:
    """As many messages as fit whose keys are as long as they may be, none of them like another."""
    each = _KEY_BYTES + 60
    messages = [
        {"topic": "keys", "payload": "", "key": f"{secrets.token_hex(16)}".ljust(_KEY_BYTES, "k")}
        for _ in range(_BATCH_BYTES // each)
    ]
    return orjson.dumps({"messages": messages})


async def send_full_batches(http: httpx.AsyncClient, accepted: Counter[int]) -> None:
    while accepted[200] < _BATCHES:
        answer = await http.post(
            "/v1/messages:batch", content=full_batch(), headers={"Content-Type": "application/json"}
        )
        accepted[answer.status_code] += 1
        assert answer.status_code in (200, 503, 504), answer.text
        if answer.status_code != 200:
            await asyncio.sleep(float(answer.headers.get("Retry-After", 1)))


async def ask_in_vain(http: httpx.AsyncClient, ids: list[str], answers: Counter[int], end: float) -> None:
    """Changes wait for an answer that never comes, look-ups for a node that does not exist."""
    for number in count():
        if time.monotonic() > end:
            return
        method = "GET" if number % 4 == 0 else "DELETE"
        answers[(await http.request(method, f"/v1/messages/{secrets.choice(ids)}")).status_code] += 1


def be_answered(url: str, seconds: float) -> list[float]:
    """How long it takes to send messages that need no master, in seconds.

    Runs in its own process: in the askers' event loop it would measure that loop, not the proxy.
    """
    took, end = [], time.monotonic() + seconds
    with httpx.Client(base_url=url, timeout=300, trust_env=False) as http:
        while time.monotonic() < end:
            started = time.perf_counter()
            answer = http.post("/v1/messages", json={"topic": "good", "payload": "x", "key": "k"})
            took.append(time.perf_counter() - started)
            assert answer.status_code == 201, answer.text
            time.sleep(0.02)
    return took


def p99(took: list[float]) -> float:
    return sorted(took)[int(len(took) * 0.99)]


def test_a_proxy_that_is_asked_for_too_much(tmp_path: Path) -> None:
    with cluster_of_one(tmp_path) as cluster:
        proxy, node = cluster.proxies[0], cluster.nodes[0]
        answers: Counter[int] = Counter()
        batches: Counter[int] = Counter()

        async def keys() -> None:
            async with httpx.AsyncClient(
                base_url=proxy.url, timeout=120, limits=httpx.Limits(max_connections=None)
            ) as http:
                await asyncio.gather(*(send_full_batches(http, batches) for _ in range(_SENDERS)))

        async def stuck() -> list[float]:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=_ASKERS)
            async with httpx.AsyncClient(base_url=proxy.url, timeout=300, limits=limits) as http:
                sent = [
                    await http.post("/v1/messages", json={"topic": "t", "payload": "x", "deliver_after": "1d"})
                ] * 20
                ids = [answer.json()["id"] for answer in sent]
                node.process.kill()
                end = time.monotonic() + _SECONDS
                vain = [ask_in_vain(http, ids, answers, end) for _ in range(_ASKERS)]
                with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as apart:
                    other = asyncio.get_running_loop().run_in_executor(apart, be_answered, proxy.url, _SECONDS)
                    took, _ = await asyncio.gather(other, asyncio.gather(*vain))
                return took

        asyncio.run(keys())
        after_keys = peak_rss_bytes(proxy.process.pid)
        took = asyncio.run(stuck())
        peak = peak_rss_bytes(proxy.process.pid)
        figures = {
            "batches": dict(batches), "MiB after keys": after_keys >> 20, "MiB": peak >> 20, "answers": dict(answers),
            "others": len(took), "p99_ms": round(p99(took) * 1000, 1), "max_ms": round(max(took) * 1000, 1),
        }  # fmt: skip
        print(figures)
        assert batches[200] >= _BATCHES
        assert answers[202] and set(answers) <= {200, 202, 503}, figures
        assert peak < _MAX_BYTES, figures
        assert p99(took) < _P99_S, figures


def test_a_million_waiters() -> None:
    """At once, of a shard that gets nowhere: as many wait as may, and afterwards there is nothing left of them."""

    async def scenario() -> None:
        progress, offsets = Progress(), count(1)
        before = peak_rss_bytes(os.getpid())
        for _ in range(20):
            answers = await asyncio.gather(*(progress.wait_until_applied(next(offsets), 0.01) for _ in range(50_000)))
            assert not any(answers)
            assert progress.waiting == 0 and not progress.offsets
        assert peak_rss_bytes(os.getpid()) - before < 256 << 20

    asyncio.run(scenario())
