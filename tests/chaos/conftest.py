"""One cluster at a time, kept from scenario to scenario while they pass and need the same shape.

CHAOS_SEED, CHAOS_ROUNDS (kills in a row) and CHAOS_OUT (a file for the figures) come from the environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.chaos.cluster import ChaosCluster, start_cluster, start_what_is_down
from tests.chaos.figures import Figures
from tests.chaos.shape import Shape
from tests.chaos.world import World

USUAL = Shape()
SEED = int(os.environ.get("CHAOS_SEED", "1"))
_figures = pytest.StashKey[Figures]()
_failed = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_figures] = Figures()
    config.addinivalue_line("markers", "chaos: breaks a whole cluster under load (make chaos)")
    config.addinivalue_line("markers", "smoke: the short selection of chaos for every test run")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[_failed] = item.stash.get(_failed, False) or report.failed
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    figures = config.stash[_figures]
    if lines := figures.table():
        terminalreporter.section("pauses of a shard's deliveries")
        terminalreporter.write("\n".join(lines) + "\n")
    if out := os.environ.get("CHAOS_OUT"):
        figures.write(Path(out))


@dataclass
class Stand:
    """The cluster that runs now."""

    folder: Path
    shape: Shape | None = None
    running: ExitStack = field(default_factory=ExitStack)
    cluster: ChaosCluster | None = None
    made: int = 0

    def take(self, shape: Shape) -> ChaosCluster:
        if self.cluster is None or self.shape != shape:
            self.close()
            self.made += 1
            self.cluster = self.running.enter_context(start_cluster(self.folder / str(self.made), shape))
            self.shape = shape
        else:
            start_what_is_down(self.cluster)
        return self.cluster

    def close(self) -> None:
        self.running.close()
        self.cluster = None


@pytest.fixture(scope="session")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    stand = Stand(tmp_path_factory.mktemp("chaos"))
    yield stand
    stand.close()


@pytest.fixture
def world(request: pytest.FixtureRequest, stand: Stand) -> Iterator[Callable[..., World]]:
    """Makes the world of a test: `world(Shape(...))`."""
    figures = request.config.stash[_figures]
    name = "".join(letter if letter.isalnum() else "." for letter in request.node.name)
    yield lambda shape=USUAL: World(stand.take(shape), shape, figures, name, SEED)
    if request.node.stash.get(_failed, False):
        stand.close()  # what is left may be broken in a way that would fail the next scenario, too
