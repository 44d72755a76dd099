"""A real history for the audit: a duemq on a separate Kafka does each kind of work once, and is killed in between."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from pyspark.sql import SparkSession

from duemq.dev.kafka.kafka import KafkaServers
from duemq.model.messages.message import Draft
from duemq.model.timing import WINDOW_MS
from duemq.pipeline.audit.evidence import Frames, Gathered
from duemq.pipeline.audit.job import gathered
from duemq.pipeline.logs import decode
from tests.e2e.server import Server, wait_for
from tests.support.servers.real_servers import need_servers
from tests.support.shard.import_schedule import write_messages

SHARDS = 2
IMPORTED = 40


@dataclass
class History:
    """The work done, by the issued ids."""

    delivered: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    moved_on: list[str] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)
    direct: list[str] = field(default_factory=list)
    file: Path | None = None
    halfway: int = 0
    """A time in the middle of it (epoch ms), at which nothing was under way."""
    before: int = 0
    """So many messages were accepted before that."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def make_topics(bootstrap: str, topics: dict[str, int]) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        answer = await admin.create_topics([NewTopic(name, partitions, 1) for name, partitions in topics.items()])
        assert all(error[1] == 0 for error in answer.topic_errors)
    finally:
        await admin.close()


async def send_plain(bootstrap: str, records: Iterable[tuple[dict[str, str], int]]) -> None:
    """Records of a plain client, with these headers and in these partitions of the buffer."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for headers, partition in records:
            packed = [(name, value.encode()) for name, value in headers.items()]
            await producer.send_and_wait("duemq.buffer", b"plain", headers=packed, partition=partition)


def shard_of(name: str) -> int:
    return zlib.crc32(b"n:" + name.encode()) % SHARDS


class Site:
    """A server that makes a history."""

    def __init__(self, server: Server, bootstrap: str, shared: Path) -> None:
        self.server, self.bootstrap, self.shared = server, bootstrap, shared
        self.history = History()

    def make(self) -> History:
        asyncio.run(make_topics(self.bootstrap, {"orders": 3, "other": 1, "duemq.dlq": 1}))
        self.server.start()
        self._sends()
        self._settle()
        self.history.halfway = now_ms() + 1
        self.history.before = sum(
            len(ids) for ids in (
                self.history.delivered, self.history.cancelled, self.history.moved_on, self.history.pending,
                self.history.dead,
            )
        )  # fmt: skip
        time.sleep(0.01)
        self._changes()
        self._plain()
        self._dead()
        self._import_file()
        self._settle()
        assert self.server.stop() == 0, self.server.log
        return self.history

    def _settle(self) -> None:
        """Wait until all deliverable messages are delivered, and the ledger has moved on a little."""
        for id_ in self.history.delivered:
            wait_for(partial(self._is, id_, "delivered"), f"{id_} is delivered")

    def _call(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        answer = self.server.call(method, path, body)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None

    def _send(self, topic: str = "orders", **more: Any) -> str:
        return self.server.send(topic, **more)

    def _sends(self) -> None:
        history = self.history
        history.delivered += [
            self._send("orders" if n % 3 else "other", payload=f"m{n}", deliver_after=f"{300 + 10 * n}ms",
                       **({"key": f"k{n % 5}"} if n % 2 else {}),
                       **({"headers": {"trace": f"{n}"}, "labels": ["eu", "ü"]} if n % 4 == 0 else {}))
            for n in range(60)
        ]  # fmt: skip
        # Its key belongs to the last partition of its topic, which is seen to be there before most other records.
        wait_for(partial(self._is, history.delivered[1], "delivered"), "the second one is delivered")
        self.server.kill()
        self.server.start()
        # Delivered after the cancels of others that are asked for below, however slow the machine is.
        history.delivered += [self._send(payload=f"s{n}", deliver_after="6s") for n in range(6)]
        history.direct += [self._send(payload=f"d{n}") for n in range(7)]
        history.cancelled += [self._send(payload=f"c{n}", deliver_after="1h") for n in range(6)]
        history.pending += [self._send(payload=f"p{n}", deliver_after="2h") for n in range(5)]
        for id_ in history.cancelled:
            self._call("DELETE", f"/v1/messages/{id_}")
            self._call("DELETE", f"/v1/messages/{id_}")
        named = {"topic": "orders", "payload": "named", "deliver_after": "200ms"}
        history.delivered.append(self._call("PUT", "/v1/messages/one", named, 201)["id"])
        assert self._call("PUT", "/v1/messages/one", named)["id"] == history.delivered[-1]
        self._call("PUT", "/v1/messages/one", named | {"payload": "another"}, 409)

    def _changes(self) -> None:
        history = self.history
        self._call("DELETE", f"/v1/messages/{history.delivered[0]}", status=409)
        early = [self._send(payload=f"n{n}", deliver_after="1h") for n in range(4)]
        for id_ in early[:2]:
            self._call("POST", f"/v1/messages/{id_}:deliver-now")
        for id_ in early[2:]:
            self._call("PATCH", f"/v1/messages/{id_}", {"deliver_after": "400ms"})
        on = [self._send(payload=f"o{n}", deliver_after="30m") for n in range(3)]
        for id_ in on:
            self._call("PATCH", f"/v1/messages/{id_}", {"deliver_after": "3h"})
        # One that was accepted before, and is moved and cancelled now.
        moved = history.pending.pop()
        self._call("PATCH", f"/v1/messages/{moved}", {"deliver_after": "100ms"})
        gone = history.pending.pop()
        self._call("DELETE", f"/v1/messages/{gone}")
        self.server.kill()
        self.server.start()
        history.delivered += [*early, moved]
        history.cancelled.append(gone)
        history.moved_on += on

    def _plain(self) -> None:
        at = shard_of("plain-1")
        asyncio.run(send_plain(self.bootstrap, [
            ({"duemq-topic": "orders", "duemq-delay": "150ms", "mine": "1"}, 0),
            ({"duemq-topic": "orders", "duemq-delay": "1h", "duemq-name": "plain-1"}, at),
            ({"duemq-topic": "orders", "duemq-delay": "1h", "duemq-name": "plain-1"}, at),
            ({"duemq-cancel": "plain-1"}, at),
            ({"duemq-topic": "orders", "duemq-delay": "1h", "duemq-name": "plain-2"}, shard_of("plain-2")),
            ({"duemq-move": "plain-2", "duemq-delay": "100ms"}, shard_of("plain-2")),
            ({"duemq-topic": "orders", "duemq-delay": "2h", "duemq-name": "twice"}, shard_of("twice")),
            ({"duemq-topic": "orders", "duemq-delay": "2h", "duemq-name": "twice"}, shard_of("twice")),
            ({"duemq-topic": "orders", "duemq-delay": "2h", "duemq-name": "alone"}, shard_of("alone")),
            ({"duemq-topic": "orders"}, 1),
            ({"duemq-cancel": "nothing"}, shard_of("nothing")),
        ]))  # fmt: skip
        wait_for(partial(self._is, "plain-1", "cancelled"), "the cancel by name")
        wait_for(partial(self._is, "plain-2", "delivered"), "the move by name")
        self.history.pending += ["twice", "alone"]

    def _is(self, message: str, status: str) -> bool:
        answer = self.server.call("GET", f"/v1/messages/{message}")
        return answer.status_code == 200 and answer.json()["status"] == status

    def _dead(self) -> None:
        # A topic that is made once its message is dead.
        asyncio.run(send_plain(self.bootstrap, [
            ({"duemq-topic": "nowhere", "duemq-delay": "50ms", "duemq-name": f"lost-{n}"}, shard_of(f"lost-{n}"))
            for n in range(3)
        ]))  # fmt: skip
        for n in range(3):
            wait_for(partial(self._is, f"lost-{n}", "dead"), "a dead letter")
        asyncio.run(make_topics(self.bootstrap, {"nowhere": 1}))
        id_ = self.server.call("GET", "/v1/messages/lost-0").json()["id"]
        self._call("POST", f"/v1/dlq/{id_}:redrive")
        wait_for(partial(self._is, "lost-0", "delivered"), "the redriven message")

    def _import_file(self) -> None:
        window = (now_ms() // WINDOW_MS + 4) * WINDOW_MS
        self.history.file = self.shared / "a.parquet"
        rows = [Draft("orders", b"far %d" % n, window + n) for n in range(IMPORTED)]
        write_messages(self.history.file, rows)
        answer = self.server.call("POST", "/v1/imports", {"path": str(self.history.file)})
        assert answer.status_code == 202, answer.text
        where = answer.url.join(answer.headers["Location"]).path
        wait_for(lambda: self.server.call("GET", where).json()["state"] == "imported", "the import")
        listed = self.server.call("GET", "/v1/messages?topic=orders&limit=1000").json()["messages"]
        near, gone = [one["id"] for one in listed if one["deliver_at_ms"] >= window + 10][:2]
        self._call("POST", f"/v1/messages/{near}:deliver-now")
        self._call("DELETE", f"/v1/messages/{gone}")
        self.history.delivered.append(near)


@dataclass
class Past:
    """A completed history."""

    bootstrap: str
    history: History


@pytest.fixture(scope="session")
def past(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Past]:
    """One for all tests, which leave it as it is."""
    need_servers()
    folder = tmp_path_factory.mktemp("audit")
    shared = folder / "shared"
    shared.mkdir()
    with KafkaServers(folder / "kafka") as kafka:
        settings = {
            "topics.partitions": 0, "delivery.max_attempts": 2, "delivery.retry_delays": "100ms",
            "delay_files.import_from": shared,
        }  # fmt: skip
        options = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        with Server(folder / "data", "--kafka", kafka.bootstrap, "--shards", str(SHARDS), *options) as server:
            yield Past(kafka.bootstrap, Site(server, kafka.bootstrap, shared).make())


@pytest.fixture(scope="session")
def real(spark: SparkSession, past: Past, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gathered]:
    """The logs of that history, read once, in memory. For all tests, which leave them as they are."""
    with gathered(spark, past.bootstrap, tmp_path_factory.mktemp("real")) as found:
        frames = [
            spark.createDataFrame([tuple(row) for row in frame.collect()], schema).cache()
            for frame, schema in (
                (found.frames.entries, decode.ENTRIES), (found.frames.commands, decode.COMMANDS),
                (found.frames.deliveries, decode.DELIVERIES), (found.frames.dead_letters, decode.DEAD_LETTERS),
            )
        ]  # fmt: skip
    yield replace(found, frames=Frames(*frames))  # the session has its own settings again
