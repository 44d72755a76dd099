"""The layer itself: whoever forgets a sync loses data every time, whoever forgets none loses nothing."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.power.layer import Layer

New = Callable[..., Layer]

# Does what it is told, `fsync` as `sync`, and is killed.
WRITER = textwrap.dedent("""
    import os, shutil, signal, subprocess, sys
    from pathlib import Path

    def sync(path):
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)

    def write(path, content, *, at=None, flags=os.O_CREAT):
        handle = os.open(path, os.O_WRONLY | flags)
        os.write(handle, content) if at is None else os.pwrite(handle, content, at)
        os.close(handle)

    os.chdir(sys.argv[1])
    exec(sys.argv[2])
    os.kill(os.getpid(), signal.SIGKILL)
""")


def run(layer: Layer, work: str) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-c", WRITER, layer.root, work], env=layer.environment, stderr=subprocess.PIPE, text=True
    )
    assert done.returncode == -9, done.stderr


def content(folder: Path) -> dict[str, bytes | None]:
    """All files, and None for folders."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def after(layer: Layer, work: str) -> dict[str, bytes | None]:
    run(layer, work)
    layer.check()
    layer.cut()
    return content(layer.root)


def prepared(layer: Layer, work: str) -> Layer:
    """With what this made durable."""
    run(layer, work)
    layer.begin()
    return layer


WRITTEN = "write('a', b'new')"
FORGETFUL = {
    "nothing is synced": (f"{WRITTEN}", {}),
    "the file is not": (f"{WRITTEN}; sync('.')", {"a": b""}),
    "its folder is not": (f"{WRITTEN}; sync('a')", {}),
    "nothing is forgotten": (f"{WRITTEN}; sync('a'); sync('.')", {"a": b"new"}),
    "the folder of the folder is not": ("os.mkdir('f'); write('f/a', b'new'); sync('f/a'); sync('f')", {}),
    "all three are": ("os.mkdir('f'); write('f/a', b'new'); sync('f/a'); sync('f'); sync('.')",
                      {"f": None, "f/a": b"new"}),
    "more is written after the sync": (f"{WRITTEN}; sync('a'); sync('.'); write('a', b'er', at=3)", {"a": b"new"}),
}  # fmt: skip


BY_THE_KERNEL = """
import select
from duemq.bus.embedded.sync.aio import Aio
aio, handle = Aio(), os.open('a', os.O_RDONLY)
aio.start(handle)
select.select([aio.ends], [], [])
"""


def test_an_asynchronous_sync_counts_once_the_program_knows_its_end(new_layer: New) -> None:
    written = f"{WRITTEN}; sync('.')\n{BY_THE_KERNEL}"
    assert after(new_layer("unknown"), written) == {"a": b""}
    assert after(new_layer("known"), f"{written}assert aio.take_result()") == {"a": b"new"}


@pytest.mark.parametrize("case", FORGETFUL)
def test_a_new_file_needs_a_sync_of_its_own_and_of_each_new_folder(case: str, new_layer: New) -> None:
    work, left = FORGETFUL[case]
    assert after(new_layer(), work) == left


REPLACING = {
    "renamed": ("write('b', b'new'); sync('b'); os.rename('b', 'a')", b"old"),
    "renamed and synced": ("write('b', b'new'); sync('b'); os.rename('b', 'a'); sync('.')", b"new"),
    "renamed before its sync": ("write('b', b'new'); os.rename('b', 'a'); sync('.')", b""),
    "overwritten": ("write('a', b'new')", b"old"),
    "overwritten and synced": ("write('a', b'new'); sync('a')", b"new"),
    "written anew": ("write('a', b'longer than', flags=os.O_TRUNC)", b"old"),
    "written anew and synced": ("write('a', b'longer than', flags=os.O_TRUNC); sync('a')", b"longer than"),
    "grown": ("write('a', b'er', flags=os.O_APPEND)", b"old"),
    "cut": ("os.truncate('a', 1); write('a', b'x', at=5)", b"old"),
    "cut and synced": ("os.truncate('a', 1); sync('a')", b"o"),
    "removed": ("os.unlink('a')", b"old"),
    "removed and made again": ("os.unlink('a'); write('a', b'new'); sync('a')", b"old"),
    "removed, and written to": ("f = os.open('a', os.O_WRONLY); os.unlink('a'); os.write(f, b'new')", b"old"),
    "copied over": ("Path('b').write_bytes(b'new'); shutil.copyfile('b', 'a')", b"old"),
    "copied over by the kernel": (
        "f = os.open('b', os.O_RDWR | os.O_CREAT); os.write(f, b'new'); g = os.open('a', os.O_RDWR);"
        "os.copy_file_range(f, g, 3, 0)", b"old"),
    "written by a child": ("subprocess.run([sys.executable, '-c', 'open(\"a\", \"w\").write(\"x\")'])", b"old"),
}  # fmt: skip


@pytest.mark.parametrize("case", REPLACING)
def test_what_was_durable_is_there_until_a_sync_says_otherwise(case: str, new_layer: New) -> None:
    layer = prepared(new_layer(), "write('a', b'old')")
    work, left = REPLACING[case]
    assert after(layer, work)["a"] == left


def test_removed_and_synced_is_gone(new_layer: New) -> None:
    layer = prepared(new_layer(), "os.mkdir('f'); write('f/a', b'old'); os.link('f/a', 'f/b')")
    assert after(layer, "shutil.rmtree('f')") == {"f": None, "f/a": b"old", "f/b": b"old"}
    assert after(layer, "os.unlink('f/a'); sync('f')") == {"f": None, "f/b": b"old"}
    assert after(layer, "os.rename('f', 'g')") == {"f": None, "f/b": b"old"}
    assert after(layer, "shutil.rmtree('f'); sync('.')") == {}


def test_a_sync_counts_when_it_returns_and_from_when_it_began(new_layer: New) -> None:
    work = """
import threading
write('a', b'one'); sync('.')
syncing = threading.Thread(target=sync, args=['a'], daemon=True)
syncing.start()
while b'SYNC' not in b''.join(()) and os.stat(os.environ['POWER_STATE'] + '/trace').st_size <= size(): pass
write('a', b'two', at=3)
"""
    size = "def size(): return SIZE\n"
    slow = new_layer("slow", sync_us=200_000)
    run(slow, "write('a', b'one'); sync('.')")
    notes = (slow.state / "trace").stat().st_size
    slow = new_layer("slower", sync_us=200_000)
    assert after(slow, size.replace("SIZE", str(notes)) + work) == {"a": b""}
    later = new_layer("later", sync_us=200_000)
    assert after(later, size.replace("SIZE", str(notes)) + work + "syncing.join()") == {"a": b"one"}


def test_what_chance_leaves_is_whole_where_it_was_synced_and_anything_elsewhere(new_layer: New) -> None:
    work = """
write('a', b'a' * 5_000); sync('a'); sync('.')
write('a', b'b' * 20_000, at=5_000)
write('b', b'c' * 9_000)
os.rename('b', 'c')
"""
    layer = new_layer()
    run(layer, work)
    seen: set[tuple[Any, ...]] = set()
    for seed in range(60):
        into = layer.root.with_name(f"image-{seed}")
        layer.image(into, chance=Random(seed))
        left = content(into)
        a = left.pop("a") or b""
        assert a[:5_000] == b"a" * 5_000 and set(a[5_000:]) <= {0, ord("b")}
        assert left.keys() <= {"b"} or left.keys() == {"c"}
        assert all(set(c or b"") <= {0, ord("c")} for c in left.values())
        seen.add((len(a), b"\0" in a, *left))
    assert len(seen) > 10
    assert {len(a) for a in seen} == {2, 3}
    assert any(hole for _, hole, *_ in seen) and not all(hole for _, hole, *_ in seen)


def test_every_moment_of_a_run_can_be_looked_at(new_layer: New) -> None:
    layer = new_layer()
    run(layer, "write('b', b'new'); sync('b'); os.rename('b', 'a'); sync('.'); write('a', b'X'); os.unlink('a')")
    found = []
    for number in range(len(layer.notes()) + 1):
        layer.image(layer.root.with_name(f"at-{number}"), number)
        found.append(content(layer.root.with_name(f"at-{number}")).get("a"))
    assert found == [None] * 7 + [b"new"] * 3


def test_what_goes_past_the_layer_is_noticed(new_layer: New) -> None:
    layer = new_layer()
    run(layer, "subprocess.run([sys.executable, '-c', 'open(\"a\", \"w\")'], env={})")
    with pytest.raises(AssertionError, match="a"):
        layer.check()
    for work in ("import mmap; write('m', b'x' * 9); f = os.open('m', os.O_RDWR); mmap.mmap(f, 9)",
                 "os.symlink('a', 'b')", "os.open('s', os.O_CREAT | os.O_WRONLY | os.O_SYNC)"):  # fmt: skip
        with pytest.raises(AssertionError, match="is not modelled"):
            run(layer, work)
