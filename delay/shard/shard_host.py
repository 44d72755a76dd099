"""What a shard needs from its node."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from duemq.delay.core.linger import ThreadShare
from duemq.delay.imports.file_copies import FilePeers
from duemq.delay.shard.master import MasterContext
from duemq.delay.tiering.tiering_policy import TieringPolicy
from duemq.election.base import Election
from duemq.storage.imports.policy import ImportPolicy


class ShardHost(MasterContext, Protocol):
    """What a shard needs from its node."""

    @property
    def election(self) -> Election: ...
    @property
    def delay_files(self) -> TieringPolicy: ...
    @property
    def tiering_turn(self) -> asyncio.Lock: ...
    @property
    def importing(self) -> ImportPolicy: ...
    @property
    def import_turn(self) -> asyncio.Lock: ...
    @property
    def indexed_topics(self) -> Sequence[str]: ...
    @property
    def peers(self) -> FilePeers | None: ...
    @property
    def thread_share(self) -> ThreadShare: ...
    def may_lead(self) -> bool:
        """Whether this machine's clock is good enough for deliveries."""
        ...

    def has_peer(self, shard: int) -> bool:
        """Whether another node has a replica of the shard that is fit for copying."""
        ...

    async def rebuild(self, shard: int, path: Path, least: int) -> bool:
        """Replace the closed replica at this path by a peer's. False if no peer provided one.

        `least`: the ledger offset that the peer's replica must have reached. Raises DiskFull and StoreFailed for this
        disk.
        """
        ...

    def on_ready(self, shard: int) -> None:
        """Record that the shard has caught up: it is the master, or a close follower."""
        ...

    def on_unfit(self, shard: int, reason: str) -> None:
        """Record that this node cannot lead the shard until `on_ready` is called again: another node must be its
        master."""
        ...
