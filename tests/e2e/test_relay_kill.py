"""The relay, or what it hands messages to, is killed while many are due; what arrived is counted there."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from duemq.dev.cluster.cluster import LocalCluster
from duemq.dev.cluster.duemq_process import DuemqProcess
from duemq.dev.servers.ports import free_port
from tests.e2e.server import Server, wait_for
from tests.support.relay.receivers import RECEIVERS, NatsReceiver, Receiver
from tests.support.servers.real_servers import need, need_servers

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.xdist_group("destinations")]

MESSAGES = int(os.environ.get("RELAY_MESSAGES", "3000"))
ALLOWED = {"relay.private_networks": "127.0.0.0/8"}
_BATCH = 5_000
_SPREAD_MS = 1_000
_QUIET_S = 3.0
_WITHIN_S = 240.0

Sent = Counter[tuple[str, bytes]]


@pytest.fixture(params=list(RECEIVERS))
def receiver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Receiver]:
    with need(lambda: RECEIVERS[request.param](tmp_path / "receiver")) as receiver:
        receiver.prepare()
        yield receiver


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    options = [word for name, value in ALLOWED.items() for word in ("--set", f"{name}={value}")]
    with Server(tmp_path / "data", *options) as server:
        yield server.start()


def declare(url: str, receiver: Receiver) -> None:
    fields = {"name": "there", "topics": ["orders"], **receiver.declaration()}
    answer = httpx.post(f"{url}/v1/destinations", json=fields, timeout=60)
    assert answer.status_code == 201, answer.text


def send(url: str) -> Sent:
    """Messages that are due within one second, once all of them are accepted. Comes back when the first is due."""
    begin = int(time.time() * 1000) + 2_000 + MESSAGES // 5
    ids: list[str] = []
    for first in range(0, MESSAGES, _BATCH):
        numbers = range(first, min(first + _BATCH, MESSAGES))
        batch = [
            {"topic": "orders", "payload": str(n), "key": str(n), "deliver_at": begin + n * _SPREAD_MS // MESSAGES}
            for n in numbers
        ]
        answer = httpx.post(f"{url}/v1/messages:batch", json={"messages": batch}, timeout=120)
        ids += [result["id"] for result in answer.json()["results"]]
    assert time.time() * 1000 < begin, "all are accepted before the first is due"
    time.sleep(max(begin / 1000 - time.time(), 0))
    return Counter({(id_, str(n).encode()): 1 for n, id_ in enumerate(ids)})


def until_all_arrived(receiver: Receiver) -> None:
    """As many as were sent, and no more for some seconds."""
    seen, since = -1, time.monotonic()

    def quiet() -> bool:
        nonlocal seen, since
        if (count := receiver.count()) != seen:
            seen, since = count, time.monotonic()
        return seen >= MESSAGES and time.monotonic() - since >= _QUIET_S

    wait_for(quiet, "all messages", _WITHIN_S)


def reconcile(receiver: Receiver, sent: Sent, killed: str, at: int) -> None:
    """`at`: messages that had arrived when something was killed."""
    until_all_arrived(receiver)
    arrived = receiver.arrived()
    twice = (arrived - sent).total()
    print(f"\n{type(receiver).__name__}, {killed} killed after {at:,} of {MESSAGES:,}: {twice:,} arrived twice")
    assert not sent - arrived, "nothing is lost"
    assert arrived.keys() == sent.keys(), "nothing arrives that was not sent"
    assert twice <= receiver.most_twice


def test_the_relay_is_killed(server: Server, receiver: Receiver) -> None:
    declare(server.url, receiver)
    sent = send(server.url)
    wait_for(lambda: receiver.count() >= MESSAGES // 3, "a third of the messages")
    server.kill()
    at = receiver.count()
    assert at < MESSAGES, "it is killed in the middle"
    server.start()
    reconcile(receiver, sent, "the relay", at)


def test_the_receiver_is_killed(server: Server, receiver: Receiver) -> None:
    declare(server.url, receiver)
    sent = send(server.url)
    wait_for(lambda: receiver.count() >= MESSAGES // 3, "a third of the messages")
    receiver.kill()
    figures = _figures(server)
    assert figures["results"]["accepted"] < MESSAGES, "it is killed in the middle"
    wait_for(lambda: _failures(server), "a message that is not accepted")
    receiver.start()
    reconcile(receiver, sent, "the receiver", figures["results"]["accepted"])


def _figures(server: Server) -> Any:
    return server.call("GET", "/v1/destinations/there").json()["figures"]


def _failures(server: Server) -> int:
    results = _figures(server)["results"]
    return int(results["away"] + results["failed"])


def test_the_only_relay_of_a_cluster_is_killed(tmp_path: Path, not_for_ever: None) -> None:
    need_servers()
    settings = ALLOWED | {"topics.partitions": "4"}
    with (
        need(lambda: NatsReceiver(tmp_path / "receiver")) as receiver,
        LocalCluster(tmp_path, brokers=1, zookeepers=1, nodes=1, proxies=1, settings=settings) as cluster,
    ):
        receiver.prepare()
        bootstrap = {"kafka.bootstrap": cluster.kafka.bootstrap}
        relay = DuemqProcess("relay", "relay", free_port(), tmp_path, settings | bootstrap)
        relay.start()
        try:
            url = cluster.proxies[0].url
            declare(url, receiver)
            sent = send(url)
            wait_for(lambda: receiver.count() >= MESSAGES // 3, "a third of the messages")
            relay.process.kill()
            at = receiver.count()
            assert at < MESSAGES, "it is killed in the middle"
            relay.start()
            reconcile(receiver, sent, "the relay of a cluster", at)
        finally:
            relay.process.kill()
