"""Builds the three distributions: `make dist` puts them into dist/."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from tests.support.house.tree import ROOT

FOLDERS = {"duemq": ".", "duemq-dev": "packages/duemq-dev", "duemq-spark": "packages/duemq-spark"}

_ENVIRONMENT = os.environ | {"PYTHONSAFEPATH": "1"}  # a folder of the checkout is called `wheel`


def copy_of_checkout(folder: Path) -> Path:
    """A copy of this checkout, for a build leaves files in it."""
    left_out = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "tests", "docs")
    return shutil.copytree(ROOT, folder / "checkout", symlinks=True, ignore=left_out)


def build(checkout: Path, into: Path) -> None:
    """Build a source distribution of each, and a wheel from that. Checks the metadata of all."""
    for path in FOLDERS.values():
        run("-m", "build", "--no-isolation", "--outdir", into, checkout / path)
    run("-m", "twine", "check", "--strict", *sorted(into.iterdir()))


def environment_of(wheels: list[Path], into: Path) -> Path:
    """A Python environment with these wheels, at `into`. Other packages are taken from this one, but for those that are
    installed as editable."""
    run("-m", "venv", "--without-pip", into)
    install(into, wheels)
    (site_packages(into) / "needed.pth").write_text(sysconfig.get_path("purelib"))
    return into


def install(into: Path, wheels: list[Path]) -> None:
    run("-m", "pip", "--python", into, "install", "--quiet", "--no-deps", "--no-index", *wheels)


def site_packages(environment: Path) -> Path:
    return Path(sysconfig.get_path("purelib", vars={"base": str(environment), "platbase": str(environment)}))


def run(*arguments: object) -> None:
    """Run this Python, and fail with its output."""
    done = subprocess.run([sys.executable, *map(str, arguments)], env=_ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        build(copy_of_checkout(Path(folder)), ROOT / "dist")


if __name__ == "__main__":
    main()
