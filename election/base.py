"""The port to mastership: which shards this node should be master of.

Plugs: `single` (one node owns all), later `zookeeper`. The election says who should; fencing by the bus makes a
mistake harmless.
"""

from __future__ import annotations

from typing import Protocol


class Election(Protocol):
    """One node's part in the election."""

    async def join(self) -> None:
        """Take part. Idempotent."""
        ...

    def owned(self) -> frozenset[int]:
        """The shards this node should be master of now."""
        ...

    async def changed(self, timeout_s: float | None = None) -> bool:
        """Wait until `owned` may have changed; False after the time-out."""
        ...

    async def leave(self) -> None:
        """Give up every shard. Idempotent."""
        ...
