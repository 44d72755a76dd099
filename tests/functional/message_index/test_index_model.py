"""A shard's index under random schedules: with it, messages are found as in a list of all of them.

Messages are scheduled, cancelled, moved, delivered, redriven and forgotten; windows are sealed, loaded and imported;
the index is switched, built and merged; nodes are killed and take over.
"""

import asyncio
from pathlib import Path

import pytest

from duemq.storage.rocksdb import Memory
from tests.support.shard.index_schedule import IndexAndImports, IndexAndRetention, IndexSchedule
from tests.support.shard.seeds import SEEDS

MEMORY = Memory(8 << 20, 8 << 20)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", [IndexAndRetention, IndexAndImports])
def test_random_schedule(kind: type[IndexSchedule], seed: int, tmp_path: Path) -> None:
    asyncio.run(kind(seed, tmp_path, MEMORY).run())
