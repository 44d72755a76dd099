"""Programs in Go, built from their modules into a cache folder."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.destinations.cache import cached, run


def built(package: str, version: str) -> Path:
    """The program, built if it is not there yet: a minute or two. Raises NotAvailable."""

    def fill(folder: Path) -> None:
        environment = {**os.environ, "GOBIN": str(folder)}
        run("go", "install", "-ldflags=-s -w", f"{package}@{version}", folder=folder, environment=environment)

    (program,) = cached("go", f"{package}@{version}", fill).iterdir()
    return program
