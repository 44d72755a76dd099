"""A replica that is replaced by a peer's: at whatever moment the power goes, it is the old one or the new one."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from duemq.delay.recovery.replica_snapshot import fetch
from duemq.model.errors import DuemqError
from duemq.storage.checkpoint.replica_swap import finish_replacements
from tests.power.layer import Layer
from tests.support.shard.snapshot_world import SHARD, Peer, Wire, contents

MOMENTS = int(os.environ.get("POWER_ROUNDS", "15"))
ROOT = Path(__file__).parents[2]
New = Callable[..., Layer]

WORK = textwrap.dedent("""
    import asyncio
    import sys
    from pathlib import Path
    from duemq.delay.recovery.replica_snapshot import fetch
    from tests.support.shard.snapshot_world import SHARD, Peer, Wire

    root, peer = Path(sys.argv[1]), Peer(Path(sys.argv[2]))
    asyncio.run(fetch(Wire(peer), SHARD, root / "shards" / "003", lambda done, total: None))
    (root / "replaced").touch()
""")


def grown(folder: Path, seed: int, entries: int) -> Path:
    """A peer's folder with a store at rest."""
    peer = Peer(folder, seed)
    for _ in range(entries):
        peer.grow()
    peer.store.close()
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return grown(tmp_path_factory.mktemp("source"), 1, 3)


def check_rebuilt(layer: Layer, source: Path, image: Path) -> None:
    grown(layer.root, 2, 1)
    old, new = contents(layer.root / "shards" / "003"), contents(source / "shards" / "003")
    layer.begin()
    environment = os.environ | layer.environment | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", WORK, layer.root, source], env=environment, check=True)
    layer.check()
    for done in layer.moments(image, MOMENTS):
        replica = image / "shards" / "003"
        finish_replacements(replica.parent)
        found = contents(replica)
        assert found == new or (found == old and "replaced" not in done)
        peer = Peer(source)
        asyncio.run(fetch(Wire(peer), SHARD, replica, lambda done, total: None))  # goes on with what is there
        peer.store.close()
        assert contents(replica) == new
        assert [path.name for path in replica.parent.iterdir()] == ["003"]


def test_a_replica_is_the_old_one_or_the_new_one(source: Path, new_layer: New, tmp_path: Path) -> None:
    check_rebuilt(new_layer(), source, tmp_path / "image")


@pytest.mark.parametrize("forgets", ["*/parts/*", "*/files", "*/shards"])
def test_each_sync_of_a_rebuild_is_needed(forgets: str, source: Path, new_layer: New, tmp_path: Path) -> None:
    with pytest.raises((AssertionError, DuemqError)):
        check_rebuilt(new_layer(forgets=forgets), source, tmp_path / "image")
