"""A flipped bit on the disk: it is found, named, and nothing wrong or incomplete is delivered."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from duemq.bus.embedded.bus import EmbeddedBus
from tests.e2e.server import Server, run

_MESSAGES = 300


def flip_a_bit(folder: Path) -> None:
    """In the middle of the largest table, where the rows are."""
    table = max(folder.glob("*.sst"), key=lambda path: path.stat().st_size)
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 0x10
    table.write_bytes(content)


@pytest.mark.parametrize("damaged", ["shards/000", "bus"])
def test_a_flipped_bit_is_found_by_verify_and_stops_the_server(new_server: Callable[..., Server], damaged: str) -> None:
    server = new_server().start()
    # Random payloads, so that the rows and not their indexes fill the table.
    due = time.time() + 20
    at = datetime.fromtimestamp(due, UTC).isoformat()
    batch = [{"topic": "t", "payload": os.urandom(400).hex(), "deliver_at": at} for _ in range(_MESSAGES)]
    server.call("POST", "/v1/messages:batch", {"messages": batch}).json()
    direct = [{"topic": "u", "payload": os.urandom(400).hex()} for _ in range(_MESSAGES)]
    server.call("POST", "/v1/messages:batch", {"messages": direct})
    assert server.stop() == 0
    assert run("verify", "--data", server.data).returncode == 0

    flip_a_bit(server.data / damaged)
    checked = run("verify", "--data", server.data, "--json")
    assert checked.returncode == 1, checked.stdout
    assert "orruption" in checked.stdout + checked.stderr
    if checked.stdout:
        assert json.loads(checked.stdout)["good"] is False

    if damaged != "bus":
        time.sleep(max(0.0, due - time.time()))  # so that it would be delivered
    server.spawn()
    assert server.process.wait(300) == 1
    assert "orruption" in server.log.splitlines()[-1]
    assert "Traceback" not in server.log
    if damaged != "bus":
        assert asyncio.run(delivered(server.data, "t")) == 0


async def delivered(data: Path, topic: str) -> int:
    bus = await EmbeddedBus.open(data / "bus")
    try:
        return await bus.end_offset(topic, 0)
    finally:
        await bus.close()
