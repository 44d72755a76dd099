"""One shard under random schedules, over real stores and virtual time: the executable model's claims, of the product.

Exactly once, never early, truthful answers and convergence are judged by `tests/support/shard/shard_oracle.py`.
"""

import asyncio
from pathlib import Path

import pytest

from duemq.storage.rocksdb import Memory
from tests.support.shard.seeds import SEEDS
from tests.support.shard.shard_schedule import Schedule

MEMORY = Memory(8 << 20, 8 << 20)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_schedule(seed: int, tmp_path: Path) -> None:
    asyncio.run(Schedule(seed, tmp_path, MEMORY).run())
