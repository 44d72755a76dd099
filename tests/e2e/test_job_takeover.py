"""Jobs of a cluster on Kafka: the proxy that runs one is killed, and the other one finishes it."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from duemq.dev.cluster.cluster import LocalCluster
from tests.e2e.server import wait_for
from tests.support.servers.real_servers import need_servers

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.xdist_group("servers")]

LETTERS, PENDING = 600, 900


def test_another_proxy_finishes_the_job_of_one_that_is_killed(tmp_path: Path) -> None:
    need_servers()
    settings = {"shards": "2", "storage.refuse_percent": "100"}
    with LocalCluster(tmp_path, nodes=1, proxies=2, settings=settings) as cluster:
        proxies = {proxy.url: proxy for proxy in cluster.proxies}

        def call(method: str, path: str, body: Any = None) -> Any:
            """By a proxy that lives."""
            answer = httpx.request(method, next(iter(proxies)) + path, json=body, timeout=60)
            assert answer.status_code < 300, answer.text
            return answer.json()

        def send(messages: list[dict[str, Any]]) -> None:
            assert call("POST", "/v1/messages:batch", {"messages": messages})["accepted"] == len(messages)

        def records(topic: str) -> list[Any]:
            page = call("GET", f"/v1/topics/{topic}/records?max=10000")
            return list(page["records"])

        send([
            {"topic": "dlq.billing", "payload": f"letter {n}", "key": f"k{n}",
             "headers": {"x-duemq-topic": "orders", "x-duemq-partition": "0", "x-duemq-offset": str(n),
                         "x-duemq-retried": "16", "x-duemq-reason": "retries", "kind": "a"}}
            for n in range(LETTERS)
        ])  # fmt: skip
        send([{"topic": "later", "payload": str(n), "deliver_after": "1d"} for n in range(PENDING)])
        wait_for(lambda: len(records("dlq.billing")) == LETTERS, "the dead letters")
        redrive = {"kind": "redrive", "source": "dlq.billing", "filter": {"dead_from": "2026-01-01T00:00:00Z"}}
        jobs = [
            call("POST", "/v1/jobs", {**redrive, "rate": 100}),
            call("POST", "/v1/jobs", {"kind": "cancel", "rate": 150, "filter": {"topic": "later"}}),
        ]

        def job(at: int) -> Any:
            return call("GET", f"/v1/jobs/{jobs[at]['id']}")

        wait_for(lambda: job(0)["done"] > LETTERS // 4 and job(1)["done"] > PENDING // 4, "a part of both")
        (runs_it,) = [url for url, one in proxies.items() if f"job {jobs[0]['id']}".encode() in one.log.read_bytes()]
        proxies.pop(runs_it).process.kill()
        wait_for(lambda: not job(0)["active"] and not job(1)["active"], "the end of both")
        for at, count in enumerate((LETTERS, PENDING)):
            ended = job(at)
            assert (ended["state"], ended["total"], ended["done"], ended["skipped"], ended["failed"]) == (
                "done", count, count, 0, 0,
            )  # fmt: skip
        wait_for(lambda: len(records("orders")) >= LETTERS, "all redriven records")
        redriven = records("orders")
        assert Counter(record["payload"] for record in redriven) == Counter(f"letter {n}" for n in range(LETTERS))
        headers = redriven[0]["headers"]
        assert headers["x-duemq-redrives"] == "1" and headers["x-duemq-redriven-from"].startswith("dlq.billing/0/")
        assert headers["kind"] == "a" and "x-duemq-topic" not in headers
        assert not call("GET", "/v1/messages?topic=later")["messages"]
        jobs.append(call("POST", "/v1/jobs", redrive))
        wait_for(lambda: not job(2)["active"], "a second redrive of the same")
        assert job(2)["skipped_by_reason"] == {"already_redriven": LETTERS}, "a record was redriven by two jobs"
        purge = {"kind": "purge", "source": "dlq.billing", "filter": {"dead_to": int(time.time() * 1000) + 1000}}
        jobs.append(call("POST", "/v1/jobs", purge))
        wait_for(lambda: not job(3)["active"], "the purge")
        assert job(3)["done"] == LETTERS and not call("GET", "/v1/dlq/topics/dlq.billing")["letters"]
