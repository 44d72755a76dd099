"""aiokafka's private attributes: each that is used exists in the installed version, and one file uses them."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.producer.sender import Sender
from aiokafka.producer.transaction_manager import TransactionManager

from duemq.bus.kafka import aiokafka_internals
from tests.support.house.tree import ROOT, modules

INTERNALS = ROOT / "bus" / "kafka" / "aiokafka_internals.py"
# Names of private parts of aiokafka that no object of ours has.
PRIVATE = {
    "_batches", "_client", "_closed", "_commit_lock", "_conns", "_coordinator", "_coordinator_dead",
    "_coordinators", "_do_commit_offsets", "_drain_waiter", "_fail_all", "_fetcher", "_isolation_level",
    "_message_accumulator", "_metadata_update", "_on_connection_closed", "_pending_batches", "_retrieve_offsets",
    "_sender", "_set_producer_state", "_subscription", "_sync_task", "_topics", "_transaction_waiter",
    "_txn_manager", "_wait_on_metadata", "_wait_topics",
}  # fmt: skip


def foreign_privates(path: Path) -> list[str]:
    """Uses of `x._name`, where x is not `self` or `cls` and `_name` is one of aiokafka's."""
    tree = ast.parse(path.read_text())
    return [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in PRIVATE
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    ]


def test_one_file_uses_private_parts_of_aiokafka() -> None:
    using = [path for path in modules() if path != INTERNALS and "aiokafka" in path.read_text()]
    assert len(using) > 20
    assert [use for path in using for use in foreign_privates(path)] == []
    assert {use.rpartition(".")[2] for use in foreign_privates(INTERNALS)} == PRIVATE


def test_the_private_parts_exist() -> None:
    async def parts() -> None:
        producer = AIOKafkaProducer(bootstrap_servers="127.0.0.1:1", transactional_id="t")
        consumer = AIOKafkaConsumer("t", bootstrap_servers="127.0.0.1:1", group_id="g")
        manager = aiokafka_internals.transaction_manager(producer)
        assert isinstance(manager, TransactionManager) and callable(manager.partitions_to_add)
        assert hasattr(manager, "_transaction_waiter") and not aiokafka_internals.is_sending(producer)
        assert isinstance(producer._sender, Sender) and aiokafka_internals.transaction_coordinator(producer) is None
        for owner, names in (
            (producer, ["_closed"]),
            (producer._sender, ["_coordinators", "_coordinator_dead", "_fail_all", "sender_task"]),
            (producer._message_accumulator, ["_batches", "_pending_batches", "fail_all", "reenqueue"]),
            (producer.client, ["_conns", "_wait_on_metadata", "_topics", "_metadata_update", "_on_connection_closed",
                               "_sync_task"]),
            (consumer, ["_client", "_fetcher", "_coordinator", "_subscription", "_wait_topics"]),
            (producer.create_batch(), ["_set_producer_state", "_build"]),
        ):  # fmt: skip
            assert [name for name in names if not hasattr(owner, name)] == [], owner
        await producer.client.close()
        await consumer.stop()
        await producer.stop()

    asyncio.run(parts())


def test_a_use_elsewhere_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "a.py").write_text("import aiokafka\nself._client.x\nproducer._sender.stop()\n")
    assert foreign_privates(tmp_path / "a.py") == ["a.py:3: producer._sender"]
