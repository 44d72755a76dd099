"""The bench's own cluster: Kafka, ZooKeeper, nodes and proxies as processes on this machine."""

import asyncio
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import orjson

from duemq.bench.clients.kafka_reader import KafkaSource
from duemq.bench.system.metrics import gauge
from duemq.bench.system.system import SiteError, SystemLayout, get, post, ready
from duemq.dev.cluster.cluster import LocalCluster
from duemq.dev.servers.errors import LocalError
from duemq.dev.servers.process import Process
from duemq.dev.servers.usage import Bill, Meter
from duemq.storage.data_folder import disk_bytes

_PARTITIONS = 1  # partitions of a topic for deliveries
_READY_WITHIN_S = 120.0
_HANDED_OVER_WITHIN_S = 60.0


class BenchCluster:
    """A `Site` on Kafka. `start`, `stop` and `kill` apply to all nodes at once; brokers and proxies keep running.

    `data`: the folder for all data, which is never removed. `keep`: also keep the temporary folder, with the logs.
    """

    own = True
    accepts_while_stopped = True

    def __init__(
        self,
        layout: SystemLayout,
        data: Path | None = None,
        keep: bool = False,
        shards: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._layout, self._data, self._keeps_folder, self._shards = layout, data, keep, shards
        self._settings = dict(settings or {})
        self._folder = Path()
        self._cluster: LocalCluster | None = None
        self._meters: list[tuple[Meter, Process]] = []
        self.url = ""
        self.bootstrap: str | None = None

    def __str__(self) -> str:
        return str(self._layout)

    @property
    def source(self) -> KafkaSource:
        assert self.bootstrap is not None
        return KafkaSource(self.bootstrap, _PARTITIONS)

    @property
    def _running(self) -> LocalCluster:
        if self._cluster is None:
            raise SiteError("the cluster was not started")
        return self._cluster

    def __enter__(self) -> "BenchCluster":
        self._folder = self._data or Path(tempfile.mkdtemp(prefix="duemq-bench-"))
        layout = self._layout
        settings = self._settings | {"shards": str(self.shards)}
        try:
            with _translate_errors():
                self._cluster = LocalCluster(
                    self._folder,
                    brokers=layout.brokers,
                    zookeepers=layout.zookeepers,
                    nodes=layout.nodes,
                    proxies=layout.proxies,
                    settings=settings,
                )
                self._cluster.start()
        except BaseException:
            self._clean_up()
            raise
        self.url, self.bootstrap = self._cluster.proxies[0].url, self._cluster.kafka.bootstrap
        self._meters = [(Meter(role), process) for role, process in self._processes()]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clean_up()

    def _clean_up(self) -> None:
        try:
            if self._cluster is not None:
                with _translate_errors():
                    self._cluster.close()
        finally:
            if self._data is None and not self._keeps_folder:
                shutil.rmtree(self._folder, ignore_errors=True)

    def _processes(self) -> Iterator[tuple[str, Process]]:
        cluster = self._running
        yield from (("broker", each) for each in cluster.kafka.processes.values())
        yield from (("zookeeper", each) for each in cluster.zookeeper.processes.values())
        yield from (("node", each.process) for each in cluster.nodes)
        yield from (("proxy", each.process) for each in cluster.proxies)

    def start(self, settings: Mapping[str, str] | None = None) -> float:
        """Restart all nodes; return the seconds until they and the proxy were ready."""
        began, cluster = time.monotonic(), self._running
        with _translate_errors():
            for node in cluster.nodes:
                node.settings.update(settings or {})
                node.spawn()
            for node in cluster.nodes:
                node.wait_until_ready()
        if not ready(self.url, _READY_WITHIN_S):
            raise SiteError(f"the proxy at {self.url} was not ready again within {_READY_WITHIN_S:.0f} s")
        return time.monotonic() - began

    def start_empty(self) -> dict[str, float]:
        seconds = {}
        for process in (self._running.nodes[0], self._running.proxies[0]):
            with _translate_errors():
                process.process.stop()
            shutil.rmtree(process.data, ignore_errors=True)  # a proxy has no data folder
            began = time.monotonic()
            with _translate_errors():
                process.spawn()
            if not ready(process.url, _READY_WITHIN_S):
                raise SiteError(f"the {process.kind} at {process.url} was not ready within {_READY_WITHIN_S:.0f} s")
            seconds[process.kind] = time.monotonic() - began
        return seconds

    def stop(self) -> None:
        """Send SIGTERM to all nodes, and wait. Raises SiteError if a node has to be killed."""
        for process in self._nodes():
            process.terminate()
        self._end(Process.stop)

    def kill(self) -> None:
        """Send SIGKILL to all nodes."""
        self._end(Process.kill)

    def _nodes(self) -> list[Process]:
        return [node.process for node in self._running.nodes]

    def _end(self, how: Callable[[Process], object]) -> None:
        self.bill()  # the last chance to read their cost
        with _translate_errors():
            for process in self._nodes():
                how(process)

    @property
    def shards(self) -> int:
        return self._shards or self._layout.nodes

    def kill_broker(self, number: int) -> None:
        self.bill()
        with _translate_errors():
            self._running.kafka.kill(number)

    @property
    def nodes(self) -> list[str]:
        """The names of the cluster's nodes."""
        return [node.name for node in self._running.nodes]

    def sealed(self) -> int:
        """The number of messages in delay files, on the node with the fewest. Each node has all shards."""
        return int(min(gauge(node.url, "duemq_sealed_messages") or 0 for node in self._running.nodes))

    def hand_over(self) -> None:
        """Make the node that is master of the most shards hand over all of them, and then resume it.

        Returns once the shards are shared among the nodes again. Raises SiteError.
        """
        (name, _), *_ = Counter(self._masters()).most_common()
        post(self.url, f"/v1/cluster/nodes/{name}:drain")
        self._wait_for_masters(f"node {name} did not hand over its shards", lambda masters: not masters[name])
        post(self.url, f"/v1/cluster/nodes/{name}:resume")
        share = -(-self.shards // len(self._running.nodes))
        self._wait_for_masters(
            f"node {name} did not get its share of shards again", lambda masters: max(masters.values()) <= share
        )

    def _wait_for_masters(self, trouble: str, are_right: Callable[[Counter[str]], bool]) -> None:
        """Wait until each shard has a master, and `are_right` returns true for how many shards each node leads."""
        deadline = time.monotonic() + _HANDED_OVER_WITHIN_S
        while (masters := Counter(self._masters())).total() < self.shards or not are_right(masters):
            if time.monotonic() > deadline:
                raise SiteError(f"{trouble} within {_HANDED_OVER_WITHIN_S:.0f} s")
            time.sleep(0.05)

    def _masters(self) -> list[str]:
        """The master of each shard that has one."""
        status, body = get(self.url, "/v1/cluster")
        shards = orjson.loads(body)["shards"] if status == 200 else []
        return [shard["master"] for shard in shards if shard["master"] is not None]

    def failures(self) -> int:
        """How often, since the nodes were started, a part of a node failed unexpectedly or a shard was stopped."""
        counts = [
            gauge(node.url, name)
            for node in self._running.nodes
            for name in ("duemq_failures_total", "duemq_shard_stopped")
        ]
        return int(sum(count or 0 for count in counts))

    def create_topic(self, topic: str) -> None:
        """Create a topic with one partition, replicated like all other topics."""
        asyncio.run(_create_topic(self.source.bootstrap, topic, min(self._layout.brokers, 3)))

    def bill(self) -> Bill:
        """The cost of every process since its first start."""
        return tuple(meter.read(process.pid if process.running else None) for meter, process in self._meters)

    @property
    def folder(self) -> Path:
        """The first node's data folder."""
        return self._running.nodes[0].data

    def disk_bytes(self) -> int:
        """The disk space, in bytes, of the first node's folder."""
        return disk_bytes(self.folder)


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except LocalError as error:
        raise SiteError(str(error)) from error


async def _create_topic(bootstrap: str, topic: str, copies: int) -> None:
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        configs = {"min.insync.replicas": str(max(copies - 1, 1))}
        answer = await admin.create_topics([NewTopic(topic, _PARTITIONS, copies, topic_configs=configs)])
        for _, code, *reason in answer.topic_errors:
            if code:
                raise SiteError(f"Kafka did not make topic {topic}: error {code} {reason}")
    finally:
        await admin.close()
