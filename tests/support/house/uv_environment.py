"""Environments with chosen versions of what a wheel needs, made by uv."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

from tests.e2e.server import environment

Resolution = Literal["lowest-direct", "highest"]


def make_environment(folder: Path, requirements: list[str], resolution: Resolution = "highest") -> Path:
    """Make one with these requirements, whose own dependencies have the lowest or highest versions they allow. Returns
    its folder of programs."""
    _run_uv("venv", "--quiet", "--python", sys.executable, folder)
    python = folder / "bin" / "python"
    if requirements:
        _run_uv("pip", "install", "--quiet", "--python", python, "--resolution", resolution, *requirements)
    return folder / "bin"


def _run_uv(*arguments: object) -> None:
    variables = environment()
    if certificates := os.environ.get("PIP_CERT"):  # uv does not read the settings of pip
        variables["SSL_CERT_FILE"] = certificates
    done = subprocess.run(
        [sys.executable, "-m", "uv", *map(str, arguments)], env=variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
