"""A backup put in place: every byte checked, across a crash at every step, and never half of it in use."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from duemq.cluster.shards.shard_reader import Query
from duemq.model.errors import CorruptStore, DiskFull, FolderRefused
from duemq.storage.backup.backup import Progress, check
from duemq.storage.backup.restore import restore
from duemq.storage.data_folder import LOG_ID, Folder, log_id_of, take_lock
from tests.support.node.backup_world import (
    NOW,
    Crash,
    CrashAt,
    back_up,
    delivered,
    files,
    flip,
    intact,
    nothing,
    now,
    running,
    send,
    wrong,
)

HOUR = 3_600_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[str]]:
    """Two backups, before and after more was sent, and the ids of what is pending in the first one."""
    data, into = tmp_path_factory.mktemp("made") / "data", tmp_path_factory.mktemp("made") / "into"
    pending: list[str] = []

    async def first() -> None:
        async with running(data, 2) as (node, gateway):
            pending.extend(await send(gateway, "t", [now() + 4 * HOUR + n for n in range(60)]))
            while not any(shard.store.delay_files.names() for shard in node.shards.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            pending.extend(await send(gateway, "t", [now() + HOUR + n for n in range(5)]))
            await send(gateway, "t", [now() + n for n in range(10)])
            await delivered(node, "t", 10)

    async def more() -> None:
        async with running(data, 2) as (_, gateway):
            await send(gateway, "t", [now() + HOUR + n for n in range(10)])
            await gateway.find(Query())

    asyncio.run(first())
    log_id_of(data / "bus")
    one = back_up(data, into, NOW).path
    asyncio.run(more())
    two = back_up(data, into, NOW + 1).path
    shutil.rmtree(data)  # another machine
    return one, two, pending


@pytest.fixture
def backup(made: tuple[Path, Path, list[str]], tmp_path: Path) -> Path:
    """One that may be damaged."""
    return shutil.copytree(made[0], tmp_path / made[0].name)


def test_a_restored_folder_is_sound_and_goes_on(made: tuple[Path, Path, list[str]], tmp_path: Path) -> None:
    one, _, pending = made
    data = tmp_path / "elsewhere" / "data"
    assert restore(one, data, nothing) == intact(one)
    assert {path.name for path in data.iterdir()} == {"bus", "shards", "duemq.json", "id.key", "lock"}
    assert not (data / "bus" / LOG_ID).exists(), "it goes on otherwise than what was backed up"
    assert (data / "id.key").stat().st_mode & 0o077 == 0
    assert wrong(data) == []

    async def go_on() -> None:
        async with running(data, 2) as (node, gateway):
            found = (await gateway.find(Query(limit=1000))).messages
            assert {state.id for state in found} == set(pending)
            await send(gateway, "t", [now()])
            await delivered(node, "t", 11)

    asyncio.run(go_on())
    assert wrong(data) == []
    intact(one)  # nothing of it was written to


def steps_of(path: Path, data: Path) -> int:
    fault = CrashAt(-1)
    restore(path, data, nothing, fault)
    assert set(fault.steps) == {"begun", "file", "durable", "named", "in_place"}
    return len(fault.steps)


def test_a_crash_at_any_step_leaves_nothing_to_start_on_and_is_made_good(
    made: tuple[Path, Path, list[str]], tmp_path: Path
) -> None:
    one, two, _ = made
    for number in range(steps_of(one, tmp_path / "dry")):
        data = tmp_path / f"data-{number}"
        fault = CrashAt(number)
        with pytest.raises(Crash):
            restore(one, data, nothing, fault)
        if fault.steps[-1] == "in_place":
            Folder.open(data).close()
            continue
        with pytest.raises(FolderRefused, match="interrupted"):
            Folder.open(data)
        then = (one, two)[number % 2]  # the same one, or another
        restore(then, data, nothing)
        assert files(data) == {file.name for file in intact(then).files} | {"lock", "bus/restored"}
        for file in intact(then).files:
            assert (data / file.name).read_bytes() == (then / file.name).read_bytes()
        assert wrong(data) == []


def test_a_restore_that_goes_on_keeps_what_is_right(made: tuple[Path, Path, list[str]], tmp_path: Path) -> None:
    one, data = made[0], tmp_path / "data"
    fault = CrashAt(steps_of(one, tmp_path / "dry") - 3)
    with pytest.raises(Crash):
        restore(one, data, nothing, fault)
    assert fault.steps[-1] == "durable"
    copied = {path: path.stat().st_ino for path in data.rglob("*") if path.is_file()}
    cut = next(data.rglob("*.parquet"))
    cut.write_bytes(cut.read_bytes()[:100])
    restore(one, data, nothing)
    kept = [path for path, inode in copied.items() if path.exists() and path.stat().st_ino == inode]
    assert len(kept) >= len(copied) - 2  # all but that file, and restore.json
    assert wrong(data) == []


def test_a_full_disk_is_told_and_made_good(made: tuple[Path, Path, list[str]], tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    for number in range(0, steps_of(made[0], tmp_path / "dry") - 1, 4):
        with pytest.raises(DiskFull):
            restore(made[0], tmp_path / "data", nothing, CrashAt(number, full))
    restore(made[0], tmp_path / "data", nothing)
    assert wrong(tmp_path / "data") == []


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [flip, _cut, Path.unlink])
@pytest.mark.parametrize(
    "pattern",
    ["shards/*/*.sst", "shards/*/far/*/*.parquet", "bus/*.sst", "bus/CURRENT", "shards/*/MANIFEST-*", "id.key",
     "duemq.json"],
)  # fmt: skip
def test_damage_is_refused_and_named(
    backup: Path, tmp_path: Path, pattern: str, damage: Callable[[Path], None]
) -> None:
    file = next(backup.glob(pattern))
    damage(file)
    data = tmp_path / "data"
    with pytest.raises(CorruptStore, match=file.name):
        restore(backup, data, nothing)
    with pytest.raises(FolderRefused):
        Folder.open(data)
    _, found = check(backup, nothing)
    assert len(found) == 1 and str(file) in found[0]


def test_all_that_is_damaged_is_listed(backup: Path) -> None:
    files = [backup / "id.key", next(backup.glob("bus/*.sst"))]
    for file in files:
        flip(file)
    assert len(check(backup, nothing)[1]) == 2


def test_a_state_that_is_not_the_listed_one_is_refused(backup: Path, tmp_path: Path) -> None:
    listed = intact(backup)
    other = replace(listed, shards=(replace(listed.shards[0], entry=listed.shards[0].entry + 1), *listed.shards[1:]))
    (backup / "backup.json").write_bytes(other.encode())
    with pytest.raises(CorruptStore, match="ledger entry"):
        restore(backup, tmp_path / "data", nothing)
    with pytest.raises(FolderRefused, match="interrupted"):
        Folder.open(tmp_path / "data")


def test_nothing_is_overwritten(made: tuple[Path, Path, list[str]], tmp_path: Path) -> None:
    one = made[0]
    data = tmp_path / "data"
    folder = Folder.open(data)
    with pytest.raises(FolderRefused, match="not empty"):
        restore(one, data, nothing)
    folder.close()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.txt").write_text("mine")
    with pytest.raises(FolderRefused, match="not empty"):
        restore(one, tmp_path / "thesis", nothing)
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["thesis.txt"]
    (tmp_path / "empty").mkdir()
    restore(one, tmp_path / "empty", nothing)


def test_a_server_that_was_quicker_keeps_the_folder(
    made: tuple[Path, Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def later(path: Path) -> int:
        Folder.open(path).close()
        return take_lock(path)

    monkeypatch.setattr("duemq.storage.backup.restore.take_lock", later)
    with pytest.raises(FolderRefused, match="not empty"):
        restore(made[0], tmp_path / "data", nothing)
    Folder.open(tmp_path / "data").close()


def test_two_restores_into_one_folder_do_not_meet(made: tuple[Path, Path, list[str]], tmp_path: Path) -> None:
    data = tmp_path / "data"
    met: list[BaseException] = []

    def another(done: int, total: int) -> None:
        if not met:
            with pytest.raises(FolderRefused, match="in use") as refused:
                restore(made[0], data, nothing)
            met.append(refused.value)

    progress: Progress = another
    restore(made[0], data, progress)
    assert met and wrong(data) == []


def test_what_is_no_backup_is_refused_and_the_newest_is_named(
    made: tuple[Path, Path, list[str]], tmp_path: Path
) -> None:
    one, two, _ = made
    with pytest.raises(FolderRefused, match=str(two)):
        restore(one.parent, tmp_path / "data", nothing)
    for path in (tmp_path, tmp_path / "nowhere", one / "id.key"):
        with pytest.raises(FolderRefused, match="not a complete backup"):
            restore(path, tmp_path / "data", nothing)
    assert not (tmp_path / "data").exists()


def test_progress_ends_where_it_should(made: tuple[Path, Path, list[str]], tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    backup = restore(made[0], tmp_path / "data", lambda done, total: told.append((done, total)))
    assert told[-1] == (backup.total_bytes, backup.total_bytes)
    assert max(done for done, _ in told) == backup.total_bytes
