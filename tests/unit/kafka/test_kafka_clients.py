"""Every client of aiokafka in the product is made in one file, and none of them makes a topic by asking for it."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.metadata import MetadataRequest, MetadataResponse_v5

from duemq.bus.kafka import clients
from duemq.bus.kafka.aiokafka_internals import client_of
from tests.support.house.tree import ROOT, modules
from tests.support.servers.aiokafka_parts import connect, makes_topics, never_started, topics_of, update_metadata

CLASSES = {"AIOKafkaAdminClient", "AIOKafkaClient", "AIOKafkaConsumer", "AIOKafkaProducer"}


def made_in(path: Path) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and (node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")) in CLASSES
    ]


def test_one_file_makes_clients_of_aiokafka() -> None:
    # The benchmarks use plain clients, as users of duemq do.
    files = [path for path in modules() if path.relative_to(ROOT).parts[0] != "bench"]
    makers = {path: made for path in files if "AIOKafka" in path.read_text() and (made := made_in(path))}
    assert len(makers.pop(Path(clients.__file__).resolve())) == 4
    assert not makers


def plain(client: Any) -> Any:
    return client


def of_producer(producer: Any) -> Any:
    return producer.client


@pytest.mark.parametrize(
    ("make", "client_in"),
    [
        (clients.new_client, plain), (clients.new_sending_client, plain), (clients.new_producer, of_producer),
        (clients.new_consumer, client_of), (clients.new_admin, client_of),
    ],
)  # fmt: skip
def test_no_client_makes_a_topic_that_it_asks_for(
    make: Callable[..., Any], client_in: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the default of aiokafka and of the brokers, a topic that was deleted is made again within a minute."""
    asked: list[MetadataRequest] = []

    async def send(_: Any, request: MetadataRequest, **__: Any) -> Any:
        asked.append(request)
        return MetadataResponse_v5(0, [(1, "localhost", 9, None)], "cluster", 1, [])

    async def send_to(_: Any, node: int, request: MetadataRequest, **options: Any) -> Any:
        return await send(None, request)

    monkeypatch.setattr(AIOKafkaClient, "send", send_to)

    async def run() -> None:
        owner = make(bootstrap_servers="127.0.0.1:1")
        never_started(owner)
        client = client_in(owner)
        connection = AsyncMock()
        connection.send = lambda request: send(None, request)
        connect(client, connection)
        client.cluster.update_metadata(await send(None, MetadataRequest([])))
        asked.clear()
        await update_metadata(client, {"orders.gone"})
        await client.send(1, MetadataRequest(["orders.gone"]))

    asyncio.run(run())
    assert [topics_of(request) for request in asked] == [["orders.gone"]] * 2
    assert [makes_topics(request) for request in asked] == [False, False]
