"""A cluster whose topics of duemq's own are broken one by one, with the clients beside them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any

import httpx

from duemq.bus.kafka.options import KafkaOptions
from duemq.bus.kafka.topics.topics import NEVER, settings_of_own
from duemq.cluster.topics.internal_topics import BUFFER
from duemq.dev.cluster.cluster import LocalCluster
from duemq.model.messages.names import of_client, shard_of_name
from tests.chaos.topics import committed, make_topic
from tests.e2e.server import run, wait_for

SHARDS = 2
SETTINGS = {
    "shards": str(SHARDS), "storage.refuse_percent": "100", "topics.partitions": "1",
    "kafka.replication_factor": "1", "kafka.min_insync_replicas": "1", "http.answer_timeout_ms": "20000",
}  # fmt: skip
_LATE_MS = 20_000  # of a message that nothing holds up, on a machine that has other things to do


class ScopeSite:
    """A cluster of one node and one proxy, and what its clients do."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster, self.proxy, self.node = cluster, cluster.proxies[0], cluster.nodes[0]
        self.headers: dict[str, str] = {}
        self._sent = 0

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        return httpx.request(
            method, self.proxy.url + path, timeout=60, trust_env=False, headers=self.headers, **options
        )

    def make_key(self, name: str) -> dict[str, str]:
        """The header of a new key, made in the data folder of the node."""
        made = run("keys", "create", name, "--role", "admin", "--yes", "--data", str(self.node.data))
        assert made.returncode == 0, made.stdout + made.stderr
        return {"Authorization": f"Bearer {made.stdout.strip()}"}

    def schedule(self, topic: str, shard: int, after: str = "1s") -> tuple[str, int]:
        """Its name, which is its payload, and when it is due (epoch ms)."""
        answer = self.put(topic, shard, after)
        assert answer.status_code == 201, answer.text
        return f"n{self._sent}", answer.json()["deliver_at_ms"]

    def put(self, topic: str, shard: int, after: str = "1s") -> httpx.Response:
        self._sent += 1
        while shard_of_name(of_client(f"n{self._sent}"), SHARDS) != shard:
            self._sent += 1
        name = f"n{self._sent}"
        return self.ask("PUT", f"/v1/messages/{name}", json={"topic": topic, "payload": name, "deliver_after": after})

    def deliver_beside(self, topic: str, shards: Iterable[int] = range(SHARDS), seconds: int = 12) -> None:
        """Each of these shards takes a message a second and delivers it in time, and cancels one, all the while."""
        sent: dict[str, int] = {}
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for shard in shards:
                sent |= [self.schedule(topic, shard)]
                cancelled, _ = self.schedule(topic, shard, "1h")
                answer = self.ask("DELETE", f"/v1/messages/{cancelled}")
                assert answer.status_code == 200, answer.text
            time.sleep(1)
        self.until_delivered(topic, sent)

    def until_delivered(self, topic: str, sent: Mapping[str, int]) -> None:
        """Each of these was delivered once, when it was due (epoch ms)."""

        def late() -> dict[str, int]:
            records = asyncio.run(committed(self.cluster.kafka.bootstrap, topic))
            own = [one for one in records if one["payload"] in sent]
            assert len({one["payload"] for one in own}) == len(own), "twice"
            return {one["payload"]: one["timestamp_ms"] - sent[one["payload"]] for one in own}

        wait_for(lambda: late().keys() == sent.keys(), f"all messages in {topic}")
        assert all(0 <= ms < _LATE_MS for ms in late().values()), late()

    def readiness(self) -> list[tuple[int, dict[str, Any]]]:
        """What `/readyz` of proxy and node say."""
        answers = [httpx.get(f"{each.url}/readyz", timeout=60, trust_env=False) for each in (self.proxy, self.node)]
        return [(answer.status_code, answer.json()) for answer in answers]

    def until_told(self, topics: Iterable[str] = (), shards: Iterable[str] = ()) -> None:
        """Until proxy and node name these and no others, and are ready all the same."""

        def told() -> bool:
            said = self.readiness()
            assert all(status == 200 for status, _ in said), said
            return all(set(one["topics"]) == set(topics) and set(one["shards"]) == set(shards) for _, one in said)

        wait_for(told, f"topics {topics} and shards {shards} to be named, not {self.readiness()}")


async def place_topics(bootstrap: str, places: Mapping[str, Mapping[int, int]]) -> None:
    """Make topics of duemq's own of one replica: by topic and partition, the broker that has it."""
    options = KafkaOptions(bootstrap, replication_factor=1, min_insync_replicas=1)
    for topic, brokers in places.items():
        settings = settings_of_own(options, None if topic == BUFFER else NEVER)
        replicas = {partition: [broker] for partition, broker in brokers.items()}
        await make_topic(bootstrap, topic, replicas=replicas, settings=settings)
