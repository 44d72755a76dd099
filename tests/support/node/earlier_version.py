"""The server of an earlier commit, to run beside today's."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

SAMPLES: Final = Path(__file__).parents[2] / "samples" / "versions"
COMMIT: Final = "b9f0e228"


def unpack(into: Path) -> dict[str, str]:
    """Put that commit's code below `into`, once. Returns the environment variables that make a process run it."""
    folder = into / COMMIT
    if not folder.exists():
        with tarfile.open(SAMPLES / f"{COMMIT}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
    variables = {"PYTHONPATH": str(folder / "src")}
    command = [sys.executable, "-P", "-c", "import duemq.delay.node as node; print(node.__file__)"]
    path = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=True).stdout
    assert path.startswith(str(folder)), path
    return variables
