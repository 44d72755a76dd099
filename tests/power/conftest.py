"""The layer, built where there is a compiler for it."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.power.layer import Layer, build


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Skips the test where the layer cannot be built; fails it in CI."""
    if platform.system() != "Linux" or shutil.which("gcc") is None:
        if os.environ.get("CI"):
            pytest.fail("the layer needs Linux and gcc", pytrace=False)
        pytest.skip("the layer needs Linux and gcc")
    return build(tmp_path_factory.mktemp("layer"))


@pytest.fixture
def new_layer(library: Path, tmp_path: Path) -> Callable[..., Layer]:
    """Makes a layer of this test."""

    def new(name: str = "disk", sync_us: int = 0, forgets: str = "") -> Layer:
        return Layer(library, tmp_path / name, sync_us, forgets)

    return new
