"""One shard with delay files under random schedules: what the oracle of `test_shard_model.py` claims still holds."""

import asyncio
from pathlib import Path

import pytest

from duemq.storage.rocksdb import Memory
from tests.support.shard.seeds import SEEDS
from tests.support.shard.tiering_schedule import TieringSchedule

MEMORY = Memory(8 << 20, 8 << 20)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_schedule(seed: int, tmp_path: Path) -> None:
    asyncio.run(TieringSchedule(seed, tmp_path, MEMORY).run())
