"""The torn end of the write-ahead log is cut off; damage is not taken for it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from duemq.bus.embedded.bus import EmbeddedBus
from duemq.bus.embedded.wal import cut_torn_end
from duemq.model.errors import CorruptStore
from tests.support.node.bus_batches import frames_of

pytestmark = pytest.mark.heavy

PAGE, BLOCK = 4096, 32 << 10
COUNT, FRAME = 3, b"x" * 100_000

# Leaves three records of four blocks each in its write-ahead log.
DYING = f"""
import asyncio, os, sys
from pathlib import Path
from duemq.bus.embedded.bus import EmbeddedBus

async def main():
    bus = await EmbeddedBus.open(Path(sys.argv[1]))
    await bus.create_topic("t", 1)
    for _ in range({COUNT}):
        await bus.append({{("t", 0): [b"x" * {len(FRAME)}]}})
    os._exit(0)

asyncio.run(main())
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    subprocess.run([sys.executable, "-c", DYING, str(tmp_path)], check=True)
    return tmp_path


def damage(folder: Path, *changes: tuple[int, bytes]) -> None:
    """Overwrite these places, counted from the end of the write-ahead log."""
    wal = max(folder.glob("*.log"), key=lambda path: path.stat().st_size)
    content = bytearray(wal.read_bytes())
    for before_end, new in changes:
        at = (len(content) - before_end) // PAGE * PAGE
        content[at : at + len(new)] = new
    wal.write_bytes(content)


def count_of(folder: Path) -> int:
    async def run() -> int:
        bus = await EmbeddedBus.open(folder)
        try:
            return len(await frames_of(bus, "t", 0))
        finally:
            await bus.close()

    return asyncio.run(run())


@pytest.mark.parametrize("before_end", [10_000, 40_000, 70_000, 95_000])
@pytest.mark.parametrize("pages", [1, 2])
def test_a_missing_page_of_the_last_write_is_a_torn_end(before_end: int, pages: int, log: Path) -> None:
    damage(log, (before_end, bytes(PAGE * pages)))
    assert count_of(log) == COUNT - 1
    assert count_of(log) == COUNT - 1, "and it stays so"


def test_a_missing_page_before_the_last_write_is_damage(log: Path) -> None:
    damage(log, (130_000, bytes(PAGE)))
    with pytest.raises(CorruptStore):
        count_of(log)
    assert cut_torn_end(log) == 0


def test_a_flipped_bit_in_the_last_write_is_damage(log: Path) -> None:
    damage(log, (40_000, b"y"))
    with pytest.raises(CorruptStore):
        count_of(log)
    assert cut_torn_end(log) == 0


def test_a_flipped_bit_before_a_missing_page_is_damage(log: Path) -> None:
    damage(log, (95_000, b"y"), (20_000, bytes(PAGE)))
    with pytest.raises(CorruptStore):
        count_of(log)


def test_a_log_that_is_whole_is_left_as_it_is(log: Path) -> None:
    assert cut_torn_end(log) == 0
    assert count_of(log) == COUNT
