"""A consistent snapshot of all of a node's data, for a backup."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from duemq.delay.node import Node
from duemq.delay.threads import in_thread
from duemq.model.errors import Unavailable
from duemq.storage.checkpoint.checkpoint import link_imported, make_checkpoint


async def freeze(node: Node, into: Path) -> None:
    """Link the files of the node's stores and of its log into a new folder, ready for a start. Deliveries continue.

    Each store is in its state at one ledger entry. The log contains that entry and still has all records that
    the stores need, because it is linked last and not trimmed before that. Raises Unavailable.
    """
    async with AsyncExitStack() as locks:
        for shard in node.shards.values():
            if shard.rebuilding:
                raise Unavailable(f"shard {shard.number} is being copied from a peer")
            await locks.enter_async_context(shard.at_rest)
        if node.why_not_ready is not None:
            raise Unavailable(f"the server is not ready: {node.why_not_ready}")
        for number, why in node.health.unfit.items():
            raise Unavailable(f"shard {number} is unfit on this node, back up another one: {why}")
        for number, shard in node.shards.items():
            await in_thread(make_checkpoint, shard.store, into / "shards" / f"{number:03d}")
        await node.bus.checkpoint(into / "bus")
        # The log may contain the import of a file that is not in the catalog of any linked store yet.
        for number, shard in node.shards.items():
            await in_thread(link_imported, shard.store, into / "shards" / f"{number:03d}")
