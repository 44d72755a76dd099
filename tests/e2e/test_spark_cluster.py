"""The built wheel on a standalone Spark of a master and two workers, by spark-submit (docs/pipeline.md)."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

import duemq
from tests.e2e.test_packaging import ROOT, checkout, python
from tests.real_servers import need_servers
from tests.spark_cluster import SparkCluster, environment_of, packed, submit

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel."""
    folder = tmp_path_factory.mktemp("spark-wheel")
    python(ROOT, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, checkout(folder))
    (wheel,) = folder.glob("duemq-*.whl")
    return environment_of(wheel, folder / "made", Path(sysconfig.get_path("purelib")))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    need_servers()
    with SparkCluster(tmp_path_factory.mktemp("spark-cluster"), workers=2) as cluster:
        yield cluster


def test_both_workers_have_the_wheel(cluster: SparkCluster, made: Path) -> None:
    done = submit(cluster.url, made, packed(made), "check", "--no-kafka", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert said["master"] == cluster.url
    assert [worker["duemq"] for worker in said["workers"]] == [duemq.__version__] * 2


def test_executors_without_duemq_are_told(cluster: SparkCluster, made: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    python(tmp_path, "-m", "venv", "--without-pip", bare)
    done = submit(cluster.url, made, packed(bare), "check", "--no-kafka")
    assert done.returncode == 1
    assert (
        "duemq: the executors cannot run duemq: ModuleNotFoundError: No module named" in done.stdout
    )  # where spark-submit puts stderr, too
