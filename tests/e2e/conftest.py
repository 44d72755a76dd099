"""Real servers: one for all tests that leave it as it was, and fresh ones for those that do not."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import duemq
from tests.e2e.server import Server
from tests.support.house.distributions import FOLDERS, build, copy_of_checkout


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("shared") / "data") as server:
        yield server.start()
        assert server.stop() == 0, server.log


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Makes servers, not yet started, on a folder that they share; what runs at the end is killed."""
    with ExitStack() as stack:
        yield lambda *options: stack.enter_context(Server(tmp_path / "data", *options))


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel of each distribution, built from its source distribution."""
    folder = tmp_path_factory.mktemp("distributions")
    build(copy_of_checkout(folder), folder / "dist")
    made = {name: f"{name.replace('-', '_')}-{duemq.__version__}" for name in FOLDERS}
    assert {path.name for path in (folder / "dist").iterdir()} == {
        f"{stem}{end}" for stem in made.values() for end in (".tar.gz", "-py3-none-any.whl")
    }
    return {name: folder / "dist" / f"{stem}-py3-none-any.whl" for name, stem in made.items()}


_LONGEST_S = 900


@pytest.fixture
def not_for_ever() -> Iterator[None]:
    """A test that waits in code which is not ours, without a limit of its own, fails after a quarter of an hour."""

    def fail(*_: object) -> None:
        raise TimeoutError(f"this test took longer than {_LONGEST_S} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(_LONGEST_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
