"""A master and a standby that are handed one file, and what others have of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from duemq.delay.core.limits import CycleLimits
from duemq.delay.imports.file_copies import FileCopy
from duemq.model.messages.key import HIGHEST, LOWEST
from duemq.model.messages.message import Draft
from duemq.model.timing import WINDOW_MS
from tests.support.shard.import_schedule import write_messages
from tests.support.shard.shard_oracle import Handed
from tests.support.shard.shard_world import START, SimNode, World

WINDOW = (START // WINDOW_MS + 2) * WINDOW_MS
DRAFTS = [Draft("one", b"%d" % n, WINDOW + n // 2) for n in range(10)]


@asynccontextmanager
async def master_and_standby(folder: Path) -> AsyncIterator[World]:
    world = World(folder, CycleLimits(dead_letter_topic="dlq"), {"one": 1, "dlq": 1})
    await world.start(2)
    await world.nodes[0].promote()
    try:
        yield world
    finally:
        world.close()


async def hand_over(
    world: World, drafts: list[Draft] = DRAFTS, bad: bool = False, said: dict[str, Any] | None = None
) -> Handed:
    import_command = replace(write_messages(world.shared / "orders.parquet", drafts), **(said or {}))
    handed = Handed(import_command, drafts, bad)
    await world.produce([handed])
    await world.tick(world.nodes[0])
    return handed


class Others:
    """See `FilePeers`: nodes with these copies, and the content of one."""

    def __init__(self, nodes: dict[str, dict[int, FileCopy]], content: bytes = b"") -> None:
        self.nodes, self.content = nodes, content
        self.asked = 0  # how often

    def have(self, shard: int) -> bool:
        return bool(self.nodes)

    async def copies(self, shard: int, offsets: Sequence[int]) -> dict[str, dict[int, FileCopy]]:
        self.asked += 1
        return {
            node: {offset: copies[offset] for offset in offsets if offset in copies}
            for node, copies in self.nodes.items()
        }

    async def read_copy(self, shard: int, node: str, offset: int, at: int, count: int) -> bytes:
        return self.content[at : at + min(count, 1_000)]


def others_of(*nodes: SimNode) -> Others:
    """What these nodes have of the file of the first command."""
    others = Others({})
    for node in nodes:
        found = node.importer.copy(0)
        assert found is not None
        others.nodes[node.name], others.content = {0: found[1]}, found[0].read_bytes()
    return others


def outcome(node: SimNode, offset: int = 0) -> tuple[str, str]:
    import_record = node.store.imports.get(offset)
    assert import_record is not None
    return import_record.state, import_record.reason


def pending(node: SimNode) -> int:
    return len(node.store.scan_all(LOWEST, HIGHEST, 1_000, 1 << 20)[0])
