"""Prometheus' own checker, fetched from Debian if the machine has none."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_FETCH = "apt-get -q download prometheus && dpkg-deb -x prometheus_*.deb unpacked && rm prometheus_*.deb"


@pytest.fixture(scope="session")
def promtool(pytestconfig: pytest.Config) -> Path:
    """Its path. Skips the test if it cannot be had; fails it in CI."""
    if found := shutil.which("promtool"):
        return Path(found)
    cache = pytestconfig.cache
    assert cache is not None
    folder = Path(cache.mkdir("promtool"))
    program = folder / "unpacked" / "usr" / "bin" / "promtool"
    if not program.exists():
        fetched = subprocess.run(["sh", "-c", _FETCH], cwd=folder, capture_output=True, text=True)
        if fetched.returncode != 0:
            why = f"there is no promtool, and none can be fetched: {fetched.stderr}"
            if os.environ.get("CI"):
                pytest.fail(why, pytrace=False)
            pytest.skip(why)
    return program
