"""Builds the three distributions: `make dist` puts them into dist/."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.house.tree import ROOT

FOLDERS = {"duemq": ".", "duemq-dev": "packages/duemq-dev", "duemq-spark": "packages/duemq-spark"}


def copy_of_checkout(folder: Path) -> Path:
    """A copy of this checkout, for a build leaves files in it."""
    left_out = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "tests", "docs")
    return shutil.copytree(ROOT, folder / "checkout", symlinks=True, ignore=left_out)


def build(checkout: Path, into: Path) -> None:
    """Build a source distribution of each, and a wheel from that. Checks the metadata of all."""
    environment = os.environ | {"PYTHONSAFEPATH": "1"}  # a folder of the checkout is called `wheel`
    for path in FOLDERS.values():
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", into, checkout / path]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *sorted(into.iterdir())], env=environment, check=True
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        build(copy_of_checkout(Path(folder)), ROOT / "dist")


if __name__ == "__main__":
    main()
