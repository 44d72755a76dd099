"""Real servers: one for all tests that leave it as it was, and fresh ones for those that do not."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.server import Server


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
