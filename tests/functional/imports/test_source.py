"""What somebody puts in the place of a file that is being handed over: at no moment is anything else read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from duemq.model.errors import BadDelayFile
from duemq.storage.imports.source import SourceFile

SECRET = b"of somebody else"


class ImportFolder:
    """A folder that files are imported from, with one file in a subfolder; `other` lies outside of it."""

    def __init__(self, root: Path) -> None:
        self.allowed, self.other = root / "allowed", root / "other"
        self.folder = self.allowed / "day"
        self.folder.mkdir(parents=True)
        self.other.mkdir()
        self.file = self.folder / "a.parquet"
        self.file.write_bytes(b"whole")
        (self.other / "a.parquet").write_bytes(SECRET)

    def link_file(self) -> None:
        self.file.unlink()
        self.file.symlink_to(self.other / "a.parquet")

    def link_folder(self) -> None:
        shutil.rmtree(self.folder)
        self.folder.symlink_to(self.other)

    def make_pipe(self) -> None:
        self.file.unlink()
        os.mkfifo(self.file)

    def make_folder(self) -> None:
        self.file.unlink()
        self.file.mkdir()

    def remove(self) -> None:
        self.file.unlink()


@pytest.fixture
def folder(tmp_path: Path) -> ImportFolder:
    return ImportFolder(tmp_path.resolve())


SWAPS: list[Callable[[ImportFolder], None]] = [
    ImportFolder.link_file, ImportFolder.link_folder, ImportFolder.make_pipe, ImportFolder.make_folder,
    ImportFolder.remove,
]  # fmt: skip


@pytest.mark.parametrize("swap", SWAPS, ids=lambda swap: swap.__name__)
def test_swapped_before_it_is_looked_at(folder: ImportFolder, swap: Callable[[ImportFolder], None]) -> None:
    swap(folder)
    with pytest.raises(BadDelayFile), SourceFile.open(folder.file, [folder.allowed]):
        pass


@pytest.mark.parametrize("swap", SWAPS, ids=lambda swap: swap.__name__)
def test_swapped_between_the_look_and_the_opening(
    folder: ImportFolder, swap: Callable[[ImportFolder], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def after_swap(*args: Any, **named: Any) -> int:
        monkeypatch.setattr(os, "open", opened)
        swap(folder)
        return opened(*args, **named)

    monkeypatch.setattr(os, "open", after_swap)
    with pytest.raises(BadDelayFile), SourceFile.open(folder.file, [folder.allowed]):
        pass
    assert os.open is opened, "the swap took folder"


@pytest.mark.parametrize("swap", SWAPS, ids=lambda swap: swap.__name__)
def test_swapped_while_it_is_open(folder: ImportFolder, swap: Callable[[ImportFolder], None]) -> None:
    """What was opened is what is read, linked and taken in."""
    with SourceFile.open(folder.file, [folder.allowed]) as source:
        kept = folder.allowed / "kept"
        source.link(kept)
        swap(folder)
        assert source.path.read_bytes() == b"whole"
    assert kept.read_bytes() == b"whole"


def test_a_link_within_the_allowed_folders_is_followed(folder: ImportFolder) -> None:
    link = folder.allowed / "latest.parquet"
    link.symlink_to(folder.file)
    with SourceFile.open(link, [folder.allowed]) as source:
        assert source.name == "latest.parquet" and source.path.read_bytes() == b"whole"
