"""The server of an earlier version, to run beside today's: the last release, and the last commit before releases."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

from tests.support.house.tree import ROOT

SAMPLES: Final = ROOT / "tests" / "samples" / "versions"
COMMIT: Final = "b9f0e228"


def last_release() -> list[str]:
    """The tag of the release before this commit, if git knows one: it does not in a copy without `.git`."""
    command = ["git", "-C", str(ROOT), "describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD^"]
    return subprocess.run(command, capture_output=True, text=True).stdout.split()


def unpack(into: Path, version: str = COMMIT) -> dict[str, str]:
    """Put that version's code below `into`, once. Returns the environment variables that make a process run it."""
    folder = into / version
    if not folder.exists():
        archive = SAMPLES / f"{version}.tar.xz"
        if not archive.exists():
            archive = into / f"{version}.tar"
            subprocess.run(["git", "-C", str(ROOT), "archive", "--output", archive, version], check=True)
        with tarfile.open(archive) as opened:
            opened.extractall(folder, filter="data")
    variables = {"PYTHONPATH": str(folder / "src")}
    command = [sys.executable, "-P", "-c", "import duemq.delay.node as node; print(node.__file__)"]
    path = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=True).stdout
    assert path.startswith(str(folder)), path
    return variables
