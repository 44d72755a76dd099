"""The ledger says which message a change by name meant: nobody has to look it up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from duemq.bus.memory import MemoryLog
from duemq.cluster.shards.shard_reader import NamedMessage
from duemq.cluster.topics.internal_topics import BUFFER, LEDGER
from duemq.delay.core import cycle
from duemq.delay.node_backend import NodeBackend
from duemq.model.log.ledger import Answer, Entry, read_ledger
from duemq.model.messages.message import CANCEL, DELIVER_NOW, MOVE, Draft, read_change, read_schedule
from duemq.model.messages.names import of_client
from duemq.model.messages.record import unpack_record
from duemq.model.timing import LAST_MS
from duemq.proxy.gateway.base import Receipt
from duemq.proxy.gateway.gateway import CommandGateway
from tests.support.http.proxy_site import running_node

LATER = LAST_MS - 1


class Asked(NodeBackend):
    """Counts what is looked up in the shard."""

    def __init__(self, node: Any) -> None:
        super().__init__(node)
        self.look_ups = 0
        look_up = self.reader.messages_by_name

        async def counted(shard: int, names: Sequence[bytes], offset: int | None) -> list[NamedMessage | None]:
            self.look_ups += 1
            return await look_up(shard, names, offset)

        self.reader.messages_by_name = counted  # type: ignore[method-assign,assignment]


async def named(gateway: CommandGateway, *names: str) -> list[str]:
    """The ids of new messages with these names."""
    drafts = [Draft("orders", b"pay", LATER, name=of_client(name), fingerprint=bytes(16)) for name in names]
    receipts = await gateway.send(drafts)
    return [receipt.id for receipt in receipts if isinstance(receipt, Receipt)]


async def entries(bus: Any) -> list[Entry]:
    found = [read_ledger(unpack_record(record.frame).payload) for record in await bus.read(LEDGER, 0, 0, 10_000)]
    return [entry for entry in found if isinstance(entry, Entry)]


def test_answers_show_ids_and_nothing_is_looked_up(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_node(tmp_path / "data", MemoryLog(), "", 1, 0.0) as node:
            backend = Asked(node)
            gateway = CommandGateway(backend)
            await node.bus.create_topic("orders", 1)
            ids = await named(gateway, "a", "b", "c")
            backend.look_ups = 0
            moved = await gateway.change(MOVE, ["a"], LATER - 5)
            cancelled = await gateway.change(CANCEL, ["a", "nobody", "b", ids[2]])
            again = await gateway.change(CANCEL, ["a"])
            sent = await gateway.change(DELIVER_NOW, ["c"])
            shown = [one.id for one in (*moved, *cancelled, *again)]
            assert shown == [ids[0], ids[0], "nobody", ids[1], ids[2], ids[0]]
            assert [one.answer for one in (*cancelled, *again, *sent)] == [
                Answer.OK, Answer.UNKNOWN, Answer.OK, Answer.OK, Answer.CANCELLED_BEFORE, Answer.CANCELLED_BEFORE,
            ]  # fmt: skip
            assert again[0].at == cancelled[0].at
            assert backend.look_ups == 0

    asyncio.run(run())


def test_an_entry_says_it_of_some_and_the_others_are_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cycle, "MAX_NAMED", 2)

    async def run() -> None:
        async with running_node(tmp_path / "data", MemoryLog(), "", 1, 0.0) as node:
            backend = Asked(node)
            gateway = CommandGateway(backend)
            await node.bus.create_topic("orders", 1)
            names = [f"order-{number}" for number in range(9)]
            ids = await named(gateway, *names)
            backend.look_ups = 0
            outcomes = await gateway.change(CANCEL, names)
            assert [(one.id, one.answer) for one in outcomes] == [(id_, Answer.OK) for id_ in ids]
            assert backend.look_ups == 1
            assert max(len(entry.named) for entry in await entries(node.bus)) == 2

    asyncio.run(run())


def test_no_command_has_a_name_that_an_older_node_finds_malformed(tmp_path: Path) -> None:
    wide = ["order/17", "größe 2", "n:a/b", "k:x@y"]

    async def run() -> None:
        async with running_node(tmp_path / "data", MemoryLog(), "", 1, 0.0) as node:
            gateway = CommandGateway(NodeBackend(node))
            await node.bus.create_topic("orders", 1)
            ids = await named(gateway, *wide)
            assert [one.answer for one in await gateway.change(MOVE, wide, LATER - 5)] == [Answer.OK] * 4
            outcomes = await gateway.change(CANCEL, [*wide, "no/body"])
            assert [(one.id, one.answer) for one in outcomes] == [
                *((id_, Answer.OK) for id_ in ids), ("no/body", Answer.UNKNOWN),
            ]  # fmt: skip
            commands = [record.frame for record in await node.bus.read(BUFFER, 0, 0, 100)]
            changes = [command for command in commands if read_schedule(command) is None]
            assert len(changes) == 8 and all(read_change(command) for command in changes)

    asyncio.run(run())
