"""The data folder: one process at a time, and nothing that duemq did not make."""

from pathlib import Path

import orjson
import pytest

from duemq.model.errors import FolderRefused
from duemq.storage.folder import VERSION, Folder, read_info


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


def test_secrets_are_for_their_owner_only(tmp_path: Path) -> None:
    Folder.open(tmp_path).close()
    assert (tmp_path / "id.key").stat().st_mode & 0o077 == 0


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
        ({"version": VERSION + 1}, "newer duemq"),
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
