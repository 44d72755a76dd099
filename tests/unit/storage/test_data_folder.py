"""The data folder: one process at a time, and nothing that duemq did not make."""

import asyncio
import json
import os
import stat
from pathlib import Path

import orjson
import pytest

from duemq.model.errors import FolderRefused
from duemq.model.topics.cluster_identity import ClusterIdentity
from duemq.storage.data_folder import VERSION, WITH_PREFIX, Folder, disk_bytes, log_id_of, read_info


def test_a_new_folder_is_made_once_and_keeps_its_secrets(tmp_path: Path) -> None:
    first = Folder.open(tmp_path / "a" / "b", 5)
    first.close()
    again = Folder.open(tmp_path / "a" / "b")
    assert again.info == first.info == read_info(tmp_path / "a" / "b")
    assert (again.info.shards, len(again.info.secret)) == (5, 32)
    again.close()
    other = Folder.open(tmp_path / "c")
    assert other.info.secret != first.info.secret and other.info.cluster != first.info.cluster
    other.close()


def test_a_log_keeps_its_id_and_no_other_has_it(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first = log_id_of(tmp_path / "a")
    assert log_id_of(tmp_path / "a") == first != log_id_of(tmp_path / "b")


def test_secrets_are_for_their_owner_only(tmp_path: Path) -> None:
    Folder.open(tmp_path).close()
    assert (tmp_path / "id.key").stat().st_mode & 0o077 == 0


def test_a_new_folder_is_for_its_owner_only(tmp_path: Path) -> None:
    Folder.open(tmp_path / "a" / "data").close()
    assert mode(tmp_path / "a" / "data") == 0o700


@pytest.mark.parametrize(("before", "after"), [(0o755, 0o700), (0o777, 0o700), (0o750, 0o750), (0o770, 0o770)])
def test_a_folder_that_all_may_enter_is_closed_and_a_group_keeps_its_right(
    before: int, after: int, tmp_path: Path
) -> None:
    tmp_path.chmod(before)
    Folder.open(tmp_path).close()
    assert mode(tmp_path) == after


def test_a_folder_of_somebody_else_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    Folder.open(tmp_path).close()
    assert mode(tmp_path) == 0o777


@pytest.mark.parametrize("call", ["listdir", "open"])
def test_a_folder_that_is_closed_to_us_is_refused(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(path: object, *_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    Folder.open(tmp_path).close()
    monkeypatch.setattr(os, call, closed)
    with pytest.raises(FolderRefused, match=f"data folder {tmp_path}: Permission denied; run this as its owner, or"):
        Folder.open(tmp_path)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_in_use_names_its_holder_until_it_is_closed(tmp_path: Path) -> None:
    held = Folder.open(tmp_path)
    with pytest.raises(FolderRefused, match=r"in use by process \d+"):
        Folder.open(tmp_path)
    held.close()
    held.close()
    Folder.open(tmp_path).close()


def test_a_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(FolderRefused, match=r"not duemq's"):
        Folder.open(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_another_number_of_shards_is_refused(tmp_path: Path) -> None:
    Folder.open(tmp_path, 3).close()
    with pytest.raises(FolderRefused, match="has 3 shards, the configuration says 4"):
        Folder.open(tmp_path, 4)
    Folder.open(tmp_path, 3).close()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": WITH_PREFIX + 1}, "newer duemq"),
        ({"version": VERSION - 1}, "CHANGELOG"),
        ({"version": "1"}, "another program"),
        ({"format": "other"}, "another program"),
        ({"shards": None}, "names no shards"),
    ],
)
def test_another_format_is_refused_with_advice(change: dict[str, object], words: str, tmp_path: Path) -> None:
    Folder.open(tmp_path).close()
    meta = tmp_path / "duemq.json"
    meta.write_bytes(orjson.dumps(orjson.loads(meta.read_bytes()) | change))
    with pytest.raises(FolderRefused, match=words):
        Folder.open(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}"])
def test_a_torn_description_is_refused(content: bytes, tmp_path: Path) -> None:
    Folder.open(tmp_path).close()
    (tmp_path / "duemq.json").write_bytes(content)
    with pytest.raises(FolderRefused, match="cannot be read"):
        Folder.open(tmp_path)


def test_a_folder_without_its_secret_is_refused(tmp_path: Path) -> None:
    Folder.open(tmp_path).close()
    (tmp_path / "id.key").unlink()
    with pytest.raises(FolderRefused, match="missing"):
        Folder.open(tmp_path)


def test_a_folder_whose_making_was_cut_short_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, left = Path.rename, [1]

    def rename_once(self: Path, target: Path) -> Path:
        if not left:
            raise OSError("cut short")
        left.pop()
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename_once)
        with pytest.raises(Exception, match="data folder"):
            Folder.open(tmp_path)
    Folder.open(tmp_path).close()


CLUSTER = ClusterIdentity("c1", 4, b"s" * 32)


def test_a_folder_of_a_cluster_takes_its_identity_and_keeps_it(tmp_path: Path) -> None:
    for _ in range(2):
        folder = Folder.open(tmp_path, identity=CLUSTER)
        assert (folder.info.cluster, folder.info.shards, folder.info.secret) == ("c1", 4, b"s" * 32)
        folder.close()


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (ClusterIdentity("c2", 4, b"s" * 32), "belongs to cluster c1"),
        (ClusterIdentity("c1", 5, b"s" * 32), "its cluster has 5"),
        (ClusterIdentity("c1", 4, b"t" * 32), "not the secret"),
    ],
)
def test_a_folder_of_another_cluster_is_refused(other: ClusterIdentity, words: str, tmp_path: Path) -> None:
    Folder.open(tmp_path, identity=CLUSTER).close()
    with pytest.raises(FolderRefused, match=words):
        Folder.open(tmp_path, identity=other)
    Folder.open(tmp_path, 4, CLUSTER).close()


def test_a_configuration_that_contradicts_the_cluster_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    with pytest.raises(FolderRefused, match="Set shards = 4"):
        Folder.open(tmp_path / "new", 3, CLUSTER)
    assert not (tmp_path / "new").exists()


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    folder = Folder.open(tmp_path, identity=CLUSTER)
    assert "sss" not in f"{CLUSTER!r} {folder.info!r}"
    folder.close()


def test_opening_a_folder_ends_what_a_crash_cut_short(tmp_path: Path) -> None:
    Folder.open(tmp_path).close()
    shards, snapshots = tmp_path / "shards", tmp_path / "snapshots"
    for folder in (snapshots / "001-ab", shards / "001.old", shards / "001.ready", shards / "002.partial" / "files"):
        folder.mkdir(parents=True)
        (folder / "in").write_text(folder.name)
    Folder.open(tmp_path).close()
    assert not snapshots.exists()
    assert sorted(path.name for path in shards.iterdir()) == ["001", "002.partial"]
    assert (shards / "001" / "in").read_text() == "001.ready"


def test_files_that_a_snapshot_shares_are_counted_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    alone = disk_bytes(tmp_path)
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    assert disk_bytes(tmp_path) == alone > 0


def test_a_folder_keeps_the_prefix_and_the_topics_of_its_cluster(tmp_path: Path) -> None:
    for name, prefix, version in (("a", "duemq.", VERSION), ("b", "duemq.staging.", WITH_PREFIX)):
        folder = Folder.open(tmp_path / name, prefix=prefix)
        assert folder.info.topic_ids == {}
        asyncio.run(folder.keep_topic_ids({"duemq.buffer": "b1"}, {}))
        folder.close()
        assert json.loads((tmp_path / name / "duemq.json").read_bytes())["version"] == version
        info = read_info(tmp_path / name)
        assert (info.prefix, info.topic_ids) == (prefix, {"duemq.buffer": "b1"})
        Folder.open(tmp_path / name).close()
