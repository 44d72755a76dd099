"""The embedded log, cut at any moment of a run: what was acknowledged is there, nothing is half, and no start fails."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.bus_batches import WRITER, recovered
from tests.power.layer import Layer
from tests.power.trace import Kind

CUTS = int(os.environ.get("POWER_ROUNDS", "20"))
ACKNOWLEDGED = "acknowledged-"


def written(layer: Layer, count: int) -> None:
    """By a process that is killed after so many acknowledgements, or a few more. Each of them is a file."""
    command = [sys.executable, "-c", WRITER, layer.root / "log", "0", layer.root / ACKNOWLEDGED]
    with subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, text=True, env=os.environ | layer.environment
    ) as writer:
        assert writer.stdout is not None
        for _ in range(count):
            assert writer.stdout.readline()
        writer.kill()
    layer.wait()


def test_what_was_acknowledged_outlasts_a_cut_at_any_moment(new_layer: Callable[..., Layer], tmp_path: Path) -> None:
    layer, chance = new_layer(), Random(3)
    written(layer, 60)
    notes = layer.notes()
    acknowledged = [
        (at, int(note.name.removeprefix(ACKNOWLEDGED)))
        for at, note in enumerate(notes)
        if note.kind is Kind.CREATE and note.name.startswith(ACKNOWLEDGED)
    ]
    assert len(acknowledged) >= 60
    image = tmp_path / "image"
    for number in range(CUTS):
        until = chance.randrange(len(notes) + 1)
        layer.image(image, until, Random(number) if number % 4 else None)
        ledger, batches = asyncio.run(recovered(image / "log"))
        lost = {batch for at, batch in acknowledged if at < until} - set(ledger)
        assert not lost, (number, until, lost)
        assert sorted(batches) == sorted(set(ledger)) == sorted(ledger), (number, until)
        shutil.rmtree(image)
