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

import pytest

from duemq.model.errors import DuemqError
from tests.power.layer import Layer
from tests.power.trace import Kind
from tests.support.node.bus_batches import WRITER, recovered

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


def wrong_after_cuts(layer: Layer, cuts: int, chance: Random, image: Path) -> str | None:
    """What is wrong after a cut at some moment of a run, in a sentence; None where nothing is after any of them."""
    written(layer, 60)
    notes = layer.notes()
    acknowledged = [
        (at, int(note.name.removeprefix(ACKNOWLEDGED)))
        for at, note in enumerate(notes)
        if note.kind is Kind.CREATE and note.name.startswith(ACKNOWLEDGED)
    ]
    assert len(acknowledged) >= 60
    for number in range(cuts):
        until = chance.randrange(len(notes) + 1)
        layer.image(image, until, chance if number % 4 else None)
        try:
            ledger, batches = asyncio.run(recovered(image / "log"))
        except DuemqError as error:
            return f"cut {number} at {until}: {error}"
        lost = {batch for at, batch in acknowledged if at < until} - set(ledger)
        if lost:
            return f"cut {number} at {until}: {sorted(lost)} are lost"
        if not sorted(batches) == sorted(set(ledger)) == sorted(ledger):
            return f"cut {number} at {until}: a batch is there in part, or twice"
        shutil.rmtree(image)
    return None


def test_what_was_acknowledged_outlasts_a_cut_at_any_moment(new_layer: Callable[..., Layer], tmp_path: Path) -> None:
    assert wrong_after_cuts(new_layer(), CUTS, Random(3), tmp_path / "image") is None


@pytest.mark.parametrize("forgets", ["*/log/*.log", "*/log/MANIFEST-*", "*/log", "*/root"])
def test_each_sync_of_the_log_is_needed(forgets: str, new_layer: Callable[..., Layer], tmp_path: Path) -> None:
    """Its write-ahead log, its manifest, its folder, and the folder that it is in."""
    assert wrong_after_cuts(new_layer(forgets=forgets), 20, Random(3), tmp_path / "image") is not None
