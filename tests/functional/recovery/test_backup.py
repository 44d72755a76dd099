"""Backups of a folder at rest: whole each, sharing what did not change, across a crash at every step."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from duemq.cluster.shards.shard_reader import Query
from duemq.model.errors import CorruptStore, DiskFull, FolderRefused, Unavailable
from duemq.model.messages.message import CANCEL
from duemq.storage.backup.backup import Backup, names, read_backup
from duemq.storage.backup.backups import PARTIAL, Backups, name_of
from duemq.storage.data_folder import Folder, read_info
from tests.support.node.backup_world import (
    NOW,
    Crash,
    CrashAt,
    back_up,
    delivered,
    flip,
    intact,
    nothing,
    now,
    running,
    send,
)

HOUR = 3_600_000


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder at rest with messages of every outcome, some of them in a delay file."""
    path = tmp_path_factory.mktemp("filled") / "data"

    async def fill() -> None:
        async with running(path) as (node, gateway):
            delay_files = await send(gateway, "t", [now() + 4 * HOUR + n for n in range(60)])
            while not node.shards[0].store.delay_files.names():  # noqa: ASYNC110  nobody tells of it
                await asyncio.sleep(0.02)
            await gateway.change(CANCEL, delay_files[:5])
            await send(gateway, "t", [now() + HOUR + n for n in range(10)])
            await send(gateway, "t", [now() + n for n in range(10)])
            await delivered(node, "t", 10)

    asyncio.run(fill())
    return path


@pytest.fixture
def data(filled: Path, tmp_path: Path) -> Path:
    return shutil.copytree(filled, tmp_path / "data")


def go_on(data: Path) -> None:
    """Let the folder change: another flush, another log."""

    async def work() -> None:
        async with running(data) as (_, gateway):
            await send(gateway, "t", [now() + HOUR + n for n in range(10)])
            await gateway.find(Query())  # sees what was sent

    asyncio.run(work())


def test_a_backup_holds_the_folder_and_only_its_owner_may_read_it(data: Path, tmp_path: Path) -> None:
    made = back_up(data, tmp_path / "into")
    assert made.path == tmp_path / "into" / "20261121T100000.000Z"
    backup = intact(made.path)
    assert backup == made.backup and (backup.made_at, backup.cluster) == (NOW, read_info(data).cluster)
    kept = {str(path.relative_to(data)) for path in data.rglob("*") if path.is_file() and path.name[:3] != "LOG"}
    left_out = {name for name in kept if name == "lock" or name.endswith("/LOCK")}
    assert {file.name for file in backup.files} == kept - left_out
    for name in kept - left_out:
        assert (made.path / name).read_bytes() == (data / name).read_bytes()
    (shard,) = backup.shards
    assert (shard.shard, shard.pending, shard.applied) == (0, 65, 85)
    assert made.path.stat().st_mode & 0o077 == 0
    assert (made.path / "id.key").stat().st_mode & 0o077 == 0
    with pytest.raises(FolderRefused, match="duemq restore"):
        Folder.open(made.path)
    intact(made.path)


def test_what_did_not_change_is_shared_and_each_backup_is_whole(data: Path, tmp_path: Path) -> None:
    into = tmp_path / "into"
    first = back_up(data, into)
    again = back_up(data, into)
    assert again.path.name == "20261121T100000.001Z"  # the same time: the next free name
    assert again.linked_bytes == again.backup.total_bytes == first.backup.total_bytes
    go_on(data)
    changed = back_up(data, into, NOW + 1_000)
    assert 0 < changed.linked_bytes < changed.backup.total_bytes
    before = {file.name: file for file in again.backup.files}
    for file in changed.backup.files:
        path = changed.path / file.name
        shared = path.exists() and path.samefile(first.path / file.name) if file.name in before else False
        assert shared == (file.name in before and before[file.name].sha256 == file.sha256), file.name
    (delay_file,) = [file.name for file in changed.backup.files if file.name.endswith(".parquet")]
    assert (changed.path / delay_file).samefile(first.path / delay_file)
    assert [intact(into / name) for name in names(into)] == [first.backup, again.backup, changed.backup]
    shutil.rmtree(first.path)
    shutil.rmtree(again.path)
    assert intact(changed.path) == changed.backup


def test_an_untouched_file_is_not_read_again_but_one_that_was_is(data: Path, tmp_path: Path) -> None:
    """Where the disk has damaged what was written long ago, the backup goes on with what it has."""
    first = back_up(data, tmp_path / "into")
    (delay_file,) = data.rglob("*.parquet")
    stat = delay_file.stat()
    flip(delay_file)
    touched = back_up(data, tmp_path / "into")
    name = str(delay_file.relative_to(data))
    assert not (touched.path / name).samefile(first.path / name)
    shutil.rmtree(touched.path)
    os.utime(delay_file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    untouched = back_up(data, tmp_path / "into")
    assert (untouched.path / name).samefile(first.path / name)
    intact(untouched.path)


def steps_of(data: Path, into: Path) -> int:
    fault = CrashAt(-1)
    with Backups(into, fault) as backups:
        backups.make(read_info(data), data, NOW, nothing)
    assert set(fault.steps) == {"begun", "file", "copied", "durable", "described", "in_place"}
    return len(fault.steps)


@pytest.mark.parametrize("others", [0, 1])
def test_a_crash_at_any_step_leaves_whole_backups_and_is_made_good(data: Path, tmp_path: Path, others: int) -> None:
    """`others`: backups that were there before, of an earlier state."""
    base = tmp_path / "base"
    for _ in range(others):
        back_up(data, base)
        go_on(data)
    for number in range(steps_of(data, tmp_path / "dry")):
        into = tmp_path / f"into-{number}"
        if others:
            shutil.copytree(base, into)
        fault = CrashAt(number)
        with Backups(into, fault) as backups, pytest.raises(Crash):
            backups.make(read_info(data), data, NOW + 1_000, nothing)
        held = names(into)
        assert len(held) == others + (fault.steps[-1] == "in_place"), fault.steps
        if number % 3 == 0:
            go_on(data)  # what the next one finds in the partial one is of another state
        made = back_up(data, into, NOW + 2_000)
        assert {path.name for path in into.iterdir()} == {*held, made.path.name}
        assert [intact(into / name).made_at for name in names(into)][-1] == NOW + 2_000
        if others:
            assert intact(into / held[0]).made_at == NOW
        shutil.rmtree(into)


def test_the_next_attempt_uses_what_was_copied(data: Path, tmp_path: Path) -> None:
    into = tmp_path / "into"
    with Backups(into, lambda step: None) as backups:
        pass
    fault = CrashAt(steps_of(data, tmp_path / "dry") - 4)  # all files are there
    with Backups(into, fault) as backups, pytest.raises(Crash):
        backups.make(read_info(data), data, NOW, nothing)
    assert fault.steps[-1] == "copied"
    copied = {path.stat().st_ino for path in (into / PARTIAL).rglob("*") if path.is_file()}
    flip(next((into / PARTIAL).rglob("*.parquet")))  # but never what is not the same
    made = back_up(data, into)
    intact(made.path)
    kept = {path.stat().st_ino for path in made.path.rglob("*") if path.is_file()} & copied
    assert len(kept) >= len(copied) - 1


def test_a_full_disk_is_told_and_made_good(data: Path, tmp_path: Path) -> None:
    into = tmp_path / "into"
    full = OSError(errno.ENOSPC, "No space left on device")
    for number in range(1, steps_of(data, tmp_path / "dry") - 1):
        with Backups(into, CrashAt(number, full)) as backups, pytest.raises(DiskFull, match=r"in .*\.partial"):
            backups.make(read_info(data), data, NOW, nothing)
        assert names(into) == []
    assert intact(back_up(data, into).path)


def test_a_source_that_vanishes_is_told(data: Path, tmp_path: Path) -> None:
    at_rest = shutil.copytree(data, tmp_path / "snapshots")

    def server_stops(step: str) -> None:
        if step == "file":
            shutil.rmtree(at_rest, ignore_errors=True)

    with Backups(tmp_path / "into", server_stops) as backups, pytest.raises(Unavailable, match="server was stopped"):
        backups.make(read_info(data), at_rest, NOW, nothing)
    assert names(tmp_path / "into") == []


def test_the_oldest_go_and_one_that_is_half_gone_is_no_backup(data: Path, tmp_path: Path) -> None:
    into = tmp_path / "into"
    made = [back_up(data, into, NOW - n * 3_600_000).path.name for n in range(5)]  # by a clock that goes back
    assert made == sorted(made)
    with Backups(into) as backups:
        assert backups.keep(7) == []
        assert backups.keep(4) == made[:1]
    fault = CrashAt(1)
    with Backups(into, fault) as backups, pytest.raises(Crash):
        backups.keep(1)
    assert names(into) == made[3:]
    with Backups(into) as backups:
        assert backups.keep(1) == made[3:4]
    assert [path.name for path in into.iterdir()] == made[4:]
    intact(into / made[4])


def test_one_at_a_time_and_of_one_cluster(data: Path, tmp_path: Path) -> None:
    into = tmp_path / "into"
    with Backups(into), pytest.raises(FolderRefused, match="is running"):
        Backups(into)
    back_up(data, into)
    Folder.open(tmp_path / "other").close()
    with pytest.raises(FolderRefused, match="choose another folder"):
        back_up(tmp_path / "other", into)


def test_a_damaged_backup_is_no_help_and_no_hindrance(data: Path, tmp_path: Path) -> None:
    into = tmp_path / "into"
    first, second = back_up(data, into, NOW), back_up(data, into, NOW + 1)
    flip(second.path / "backup.json")
    (delay_file,) = (second.path).rglob("*.parquet")
    third = back_up(data, into, NOW + 2)
    assert third.linked_files == len(first.backup.files)
    assert (third.path / "id.key").samefile(first.path / "id.key")
    delay_file = third.path / delay_file.relative_to(second.path)
    content = delay_file.read_bytes()
    delay_file.unlink()  # somebody has removed a part of the newest
    assert intact(back_up(data, tmp_path / "into", NOW + 3).path).total_bytes == first.backup.total_bytes
    (into / name_of(NOW + 3) / delay_file.relative_to(third.path)).unlink()
    (into / name_of(NOW + 3) / delay_file.relative_to(third.path)).write_bytes(content[:-1])
    whole = intact(back_up(data, into, NOW + 4).path)
    assert len(whole.files) == len(first.backup.files)


def test_names_are_in_the_order_of_time() -> None:
    times = [0, 1, 999, 1_000, NOW, NOW + 86_400_000 * 400]
    assert sorted(map(name_of, times)) == list(map(name_of, times))


@pytest.mark.parametrize("at", range(0, 4000, 97))
def test_a_bit_in_the_list_of_files_is_found(data: Path, tmp_path: Path, at: int) -> None:
    path = back_up(data, tmp_path / "into").path
    flip(path / "backup.json", at)
    with pytest.raises((CorruptStore, FolderRefused), match=r"backup\.json"):
        read_backup(path)


def test_a_list_with_names_that_lead_elsewhere_is_refused(data: Path, tmp_path: Path) -> None:
    backup = back_up(data, tmp_path / "into").backup
    for name in ("../id.key", "/etc/passwd", "bus/../../x", "", ".", "bus//x", "bus/.x", "bus/"):
        files = (replace(backup.files[0], name=name),)
        with pytest.raises(CorruptStore):
            Backup.decode(replace(backup, files=files).encode(), tmp_path)
