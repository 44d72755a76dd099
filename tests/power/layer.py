"""A folder on a disk that forgets what was not synced, for the processes that get its `environment`."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tests.power.model import Disk, Inode, Name, left_of, undone
from tests.power.trace import Kind, Note, read_trace

SOURCE = Path(__file__).with_name("layer.c")
_OWN_LOG = "LOG"  # RocksDB writes it through a FILE, which the layer does not see; nobody reads it


def build(into: Path) -> Path:
    """Compile the layer. Raises OSError where there is no compiler."""
    library = into / "layer.so"
    command = [
        "gcc",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
        "-o",
        library,
        SOURCE,
        "-ldl",
        "-pthread",
    ]
    subprocess.run(list(map(str, command)), check=True)
    return library


class Layer:
    """`root` is the folder, which is there and empty at first; what is above it never forgets.

    `sync_us`: how long a sync takes. `forgets`: a pattern of paths whose syncs do nothing, for mutants.
    """

    def __init__(self, library: Path, folder: Path, sync_us: int = 0, forgets: str = "") -> None:
        self.root, self.state = (folder / "root").resolve(), (folder / "state").resolve()
        self._library, self._sync_us, self._forgets = library, sync_us, forgets
        self.root.mkdir(parents=True, exist_ok=True)
        self.begin()

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self._library),
            "POWER_ROOT": str(self.root),
            "POWER_STATE": str(self.state),
            "POWER_SYNC_US": str(self._sync_us),
            "POWER_FORGETS": self._forgets,
        }

    def begin(self) -> None:
        """What is in the folder now is durable. Nobody may use it."""
        shutil.rmtree(self.state, ignore_errors=True)
        (self.state / "stash").mkdir(parents=True)
        self._names, self._folders = dict(self._scan()), {Inode(self.root.stat().st_ino)}
        self._folders |= {Inode(path.stat().st_ino) for path in self.root.rglob("*") if path.is_dir()}
        self._root = Inode(self.root.stat().st_ino)

    def _scan(self) -> Iterator[tuple[Name, Inode]]:
        for folder, folders, files in os.walk(self.root):
            inode = Inode(os.stat(folder).st_ino)
            for name in folders + files:
                path = Path(folder, name)
                if path.is_dir() or path.is_file():
                    yield (inode, name), Inode(path.stat().st_ino)

    def wait(self) -> None:
        """Until all processes that used the folder have ended."""
        if (alive := self.state / "alive").exists():
            with alive.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)

    def notes(self) -> list[Note]:
        trace = self.state / "trace"
        return list(read_trace(trace)) if trace.exists() else []

    def cut(self, chance: Random | None = None) -> None:
        """Give the folder the content that it has after a power cut. All that use it must have been killed."""
        self.wait()
        disk = self._disk(self.notes(), None)
        after = self.root.with_name("after")
        self._image(disk, after, chance, link=True)
        shutil.rmtree(self.root)
        after.rename(self.root)
        self.begin()

    def image(self, into: Path, until: int | None = None, chance: Random | None = None) -> None:
        """Copy what a power cut after so many notes would have left into a new folder. Nobody may use this one."""
        self._image(self._disk(self.notes(), until), into, chance, link=False)

    def moments(self, image: Path, count: int) -> Iterator[set[str]]:
        """What cuts at so many moments of the run, and twice at its end, leave in `image`: the files made by then.

        Every other cut leaves a part of what was not synced.
        """
        notes, chance = self.notes(), Random(5)
        chosen = sorted(chance.randrange(len(notes)) for _ in range(count))
        for number, until in enumerate([*chosen, len(notes), len(notes)]):
            self.image(image, until, Random(number) if number % 2 else None)
            yield {note.name for note in notes[:until] if note.kind is Kind.CREATE}
            shutil.rmtree(image)

    def _disk(self, notes: list[Note], until: int | None) -> Disk:
        disk = Disk(dict(self._names), set(self._folders))
        disk.replay(notes, until)
        return disk

    def _image(self, disk: Disk, into: Path, chance: Random | None, *, link: bool) -> None:
        disk.survivors(chance)
        contents = self._contents()
        into.mkdir()
        for name, inode in disk.tree(self._root):
            path = into / name
            if inode in disk.folders:
                path.mkdir()
                continue
            source = contents[inode.number]
            writes, later = disk.writes.get(inode, []), disk.later.get(inode, [])
            if link and not writes and not later:
                os.link(source, path)
                continue
            path.write_bytes(left_of(bytes(undone(source.read_bytes(), later)), writes, chance))
            path.chmod(source.stat().st_mode & 0o777)

    def _contents(self) -> dict[int, Path]:
        """Where the content of each file is, by inode."""
        found = {int(path.name): path for path in (self.state / "stash").iterdir()}
        for folder, _, files in os.walk(self.root):
            for name in files:
                path = Path(folder, name)
                if path.is_file():
                    found[path.stat().st_ino] = path
        return found

    def check(self) -> None:
        """All that was done to the folder was noted: with every change durable it is what it is."""
        disk = self._disk(self.notes(), None)
        disk.settle(disk.changes)
        noted = dict(disk.tree(self._root))
        there = {
            str(path.relative_to(self.root)): path for path in self.root.rglob("*") if path.is_dir() or path.is_file()
        }
        assert noted.keys() == there.keys(), noted.keys() ^ there.keys()
        for name, inode in noted.items():
            path = there[name]
            assert path.stat().st_ino == inode.number, name
            if path.is_file() and not path.name.startswith(_OWN_LOG):
                assert disk.sizes.get(inode, path.stat().st_size) == path.stat().st_size, name
