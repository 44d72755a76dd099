"""Folders that are made, backed up and restored: whatever moment the power goes at, what passes for whole is whole."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from duemq.model.errors import DuemqError, FolderRefused
from duemq.storage.backup.backup import check, names
from duemq.storage.backup.restore import restore
from duemq.storage.data_folder import Folder, read_info
from tests.power.layer import Layer
from tests.support.node.backup_world import DELAY_FILE, back_up, nothing, now, running, send, wrong

MOMENTS = int(os.environ.get("POWER_ROUNDS", "25"))
New = Callable[..., Layer]
WRONG = (AssertionError, DuemqError)
# Files, the folders they are in, and the names that are given last.
_OF_BACKUPS = (
    "*.sst", "*.parquet", "*/CURRENT", "*/MANIFEST*", "*/OPTIONS*", "*/IDENTITY", "*/rocksdict-config.json",
    "*/id.key", "*/duemq.json", "*/far/*", "*/far", "*/000", "*/shards", "*/bus", "*/.partial", "*/backup.new",
    "*/backups", "*/root",
)  # fmt: skip
_OF_RESTORES = (
    "*/data/*.sst", "*/data/*.parquet", "*/data/*/CURRENT", "*/data/*/far/*", "*/far", "*/000", "*/data/shards",
    "*/data", "*/new", "*/root",
)  # fmt: skip

# What each says is done is marked by a file of its name.
WORK = textwrap.dedent("""
    import sys
    from pathlib import Path
    from duemq.storage.backup.backups import Backups
    from duemq.storage.data_folder import Folder, read_info
    from duemq.storage.backup.restore import restore

    root = Path(sys.argv[1])
    data, into = root / "new" / "data", root / "backups"

    def nothing(done, total):
        pass

    def make():
        Folder.open(data, 2).close()
        (root / "made").touch()

    def back_up():
        for at in range(3):
            with Backups(into) as backups:
                backups.make(read_info(root / "data"), root / "data", 1_795_255_200_000 + at, nothing)
                (root / f"backed-up-{at}").touch()
                backups.keep(1)

    def put_back():
        restore(next((root / "from").glob("*")), data, nothing)
        (root / "restored").touch()

    globals()[sys.argv[2]]()
""")


def perform(layer: Layer, work: str) -> None:
    subprocess.run([sys.executable, "-c", WORK, layer.root, work], env=os.environ | layer.environment, check=True)
    layer.check()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder at rest with messages near and in delay files."""
    data = tmp_path_factory.mktemp("filled") / "data"

    async def fill() -> None:
        async with running(data, 2) as (node, gateway):
            await send(gateway, "t", [now() + 3_600_000] * 50)
            delay_files = now() + 8 * 3_600_000
            await send(gateway, "t", [delay_files] * DELAY_FILE.rows * 4)
            while not all(shard.store.delay_files for shard in node.shards.values()):  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.02)

    asyncio.run(fill())
    return data


def check_made(layer: Layer, image: Path) -> None:
    perform(layer, "make")
    identity = read_info(layer.root / "new" / "data")
    for done in layer.moments(image, MOMENTS):
        folder = Folder.open(image / "new" / "data", 2)
        if "made" in done:
            assert (folder.info.cluster, folder.info.secret) == (identity.cluster, identity.secret)
        folder.close()


def check_backed_up(layer: Layer, filled: Path, image: Path) -> None:
    shutil.copytree(filled, layer.root / "data")
    layer.begin()
    perform(layer, "back_up")
    for done in layer.moments(image, MOMENTS):
        into = image / "backups"
        there = names(into) if into.exists() else []
        assert all(check(into / name, nothing)[1] == [] for name in there)
        assert there or not any(name.startswith("backed-up") for name in done)


def check_restored(layer: Layer, filled: Path, image: Path) -> None:
    made = back_up(filled, layer.root / "from")
    layer.begin()
    perform(layer, "put_back")
    for done in layer.moments(image, MOMENTS):
        data = image / "new" / "data"
        begun = (data / "shards").exists()
        try:
            Folder.open(data, len(made.backup.shards)).close()
        except FolderRefused:
            assert "restored" not in done
            restore(image / "from" / made.path.name, data, nothing)
        else:
            if not begun:  # it is a new folder
                assert "restored" not in done
                continue
        assert wrong(data) == []


def test_a_folder_that_was_made_keeps_its_identity(new_layer: New, tmp_path: Path) -> None:
    check_made(new_layer(), tmp_path / "image")


def test_a_backup_that_is_there_is_whole_and_one_always_is(filled: Path, new_layer: New, tmp_path: Path) -> None:
    check_backed_up(new_layer(), filled, tmp_path / "image")


def test_a_restore_is_refused_or_whole(filled: Path, new_layer: New, tmp_path: Path) -> None:
    check_restored(new_layer(), filled, tmp_path / "image")


@pytest.mark.parametrize("forgets", ["*/id.new", "*/duemq.new", "*/data", "*/new", "*/root"])
def test_each_sync_of_a_new_folder_is_needed(forgets: str, new_layer: New, tmp_path: Path) -> None:
    with pytest.raises(WRONG):
        check_made(new_layer(forgets=forgets), tmp_path / "image")


@pytest.mark.slow
@pytest.mark.parametrize("forgets", _OF_BACKUPS)
def test_each_sync_of_a_backup_is_needed(forgets: str, filled: Path, new_layer: New, tmp_path: Path) -> None:
    with pytest.raises(WRONG):
        check_backed_up(new_layer(forgets=forgets), filled, tmp_path / "image")


@pytest.mark.slow
@pytest.mark.parametrize("forgets", _OF_RESTORES)
def test_each_sync_of_a_restore_is_needed(forgets: str, filled: Path, new_layer: New, tmp_path: Path) -> None:
    with pytest.raises(WRONG):
        check_restored(new_layer(forgets=forgets), filled, tmp_path / "image")
