"""What is said if an optional package or distribution is missing, and that the SDK and its command line need none."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import duemq
from duemq.cli.app import _DISTRIBUTIONS, _REQUIREMENTS

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("package", ["celery", "dramatiq"])
def test_a_missing_package_names_the_extra(package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; import duemq.client; import duemq.client.{package}"
    answer = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert answer.returncode == 1
    assert f"pip install 'duemq[{package}]'" in answer.stderr.splitlines()[-1]


@pytest.mark.parametrize("example", ["celery_app.py", "dramatiq_app.py"])
def test_an_example_can_be_imported(example: str) -> None:
    code = f"import runpy; runpy.run_path({str(ROOT / 'examples' / example)!r}, run_name='example')"
    answer = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


_ABSENT = "import sys; sys.modules |= dict.fromkeys({packages!r})\n"


def _without_the_server(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code where no package of the extra `server` is installed."""
    packages = [name for name, requirement in _REQUIREMENTS.items() if requirement == "duemq[server]"]
    code = _ABSENT.format(packages=packages) + code
    return subprocess.run([sys.executable, "-P", "-c", code, *arguments], capture_output=True, text=True)


def test_the_sdk_needs_no_package_of_the_server() -> None:
    answer = _without_the_server("import duemq.client; print(duemq.client.Client)")
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("command", [["--help"], ["send", "--help"], ["ls", "--help"], ["import", "--help"]])
def test_the_command_line_needs_no_package_of_the_server(command: list[str]) -> None:
    answer = _without_the_server("from duemq.cli.main import main; main()", *command)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("command", [["serve"], ["node"], ["proxy"], ["verify", "--data", "."]])
def test_a_command_that_needs_the_server_names_the_extra(command: list[str]) -> None:
    answer = _without_the_server("from duemq.cli.main import main; main()", *command)
    assert answer.returncode == 1
    assert "pip install 'duemq[server]'" in answer.stderr, answer.stderr


def test_a_command_that_needs_servers_for_trying_names_the_extra(tmp_path: Path) -> None:
    code = _ABSENT.format(packages=["psutil"]) + "from duemq.cli.main import main; main()"
    command = [sys.executable, "-P", "-c", code, "dev-cluster", "up", "--data", str(tmp_path)]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 1
    assert "pip install 'duemq-dev[cluster]'" in answer.stderr, answer.stderr


@pytest.mark.parametrize(
    ("module", "package"), [("consumer", "aiokafka"), ("lag", "aiokafka"), ("idempotency", "rocksdict")]
)
def test_a_part_of_the_sdk_that_needs_kafka_names_the_extra(module: str, package: str) -> None:
    answer = _import(f"duemq.client.{module}", [package])
    said = f"duemq.client.{module} needs {package}, which is not installed: pip install 'duemq[consumer]'"
    assert answer.stderr.splitlines()[-1] == f"ModuleNotFoundError: {said}"


def test_the_extra_of_the_consumer_is_enough_for_its_parts_of_the_sdk() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    brought = {_package(line) for line in extras["consumer"]}
    absent = [name for name in _REQUIREMENTS if name not in brought]
    answer = _import("duemq.client.consumer, duemq.client.lag, duemq.client.idempotency", absent)
    assert answer.returncode == 0, answer.stderr


def test_the_adapters_of_celery_and_dramatiq_need_no_package_of_a_consumer_or_a_server() -> None:
    answer = _import("duemq.client.celery, duemq.client.dramatiq", list(_REQUIREMENTS))
    assert answer.returncode == 0, answer.stderr


def test_a_job_of_spark_names_the_distribution() -> None:
    packages = [path.parent.name for path in (ROOT / "pipeline").glob("*/__init__.py")]
    of_spark = {name for name in packages if any("pyspark" in path.read_text() for path in _python_of(name))}
    assert {"audit", "bulk_schedule", "send", "spark_source"} <= of_spark
    for name in of_spark - {"cli", "files", "report", "logs"}:  # no page tells to import these
        first = (ROOT / "pipeline" / name / "__init__.py").read_text()
        assert "import duemq.pipeline.needs_spark" in first, name
    answer = _import("duemq.pipeline.bulk_schedule.job", ["pyspark"])
    assert "duemq.pipeline needs pyspark, which is not installed: pip install 'duemq-spark'" in answer.stderr


def test_each_example_says_first_which_extra_it_needs() -> None:
    extra_of = {"consumer": "consumer", "lag": "consumer", "idempotency": "consumer"}
    for path in (ROOT / "examples").glob("*.py"):
        text = path.read_text()
        for part in set(re.findall(r"duemq\.client\.(\w+) import", text)) - {"deferred"}:  # that is part of the base
            assert f"pip install 'duemq[{extra_of.get(part, part)}]'" in text.partition('"""\n\n')[0], path.name


def _import(modules: str, absent: list[str]) -> subprocess.CompletedProcess[str]:
    code = _ABSENT.format(packages=absent) + f"import {modules}"
    return subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)


def _python_of(package: str) -> list[Path]:
    return list((ROOT / "pipeline" / package).rglob("*.py"))


def _package(line: str) -> str:
    found = re.match(r"[a-z0-9-]+", line)
    assert found
    return found[0].replace("-", "_")


def test_lag_needs_the_extra_of_the_consumer_alone() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    brought = {re.match(r"[a-z0-9-]+", line)[0].replace("-", "_") for line in extras["consumer"]}  # type: ignore[index]
    code = "from duemq.cli.main import main; main()"
    lag = ("lag", "group", "--kafka", "127.0.0.1:9")
    answer = _without_the_server(code, *lag)
    assert answer.returncode == 1 and "pip install 'duemq[consumer]'" in answer.stderr, answer.stderr
    absent = [name for name in _REQUIREMENTS if name not in brought | {"numpy"}]
    command = [sys.executable, "-P", "-c", _ABSENT.format(packages=absent) + code, *lag]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 8 and "no Kafka broker answers" in answer.stderr, answer.stderr


def test_the_packages_of_the_server_are_those_of_pyproject() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    lines = [line for line in (*extras["server"], *extras["consumer"]) if line != "duemq[consumer]"]
    named = {_package(line) for line in lines}
    assert named == {name for name, requirement in _REQUIREMENTS.items() if requirement == "duemq[server]"}


@pytest.mark.parametrize("command", [["bench", "all", "--quick"], ["dev-cluster", "up"], ["demo"], ["spark", "--help"]])
def test_a_command_of_a_distribution_that_is_not_installed_names_it_in_one_line(command: list[str]) -> None:
    absent = "import importlib.metadata as it; it.entry_points = lambda **_: it.EntryPoints()"
    other_version = "import duemq; duemq.__version__ = '9.9.9'"
    for version, state in ((duemq.__version__, absent), ("9.9.9", other_version)):
        code = f"{state}\nfrom duemq.cli.main import main; main()"
        answer = subprocess.run([sys.executable, "-P", "-c", code, *command], capture_output=True, text=True)
        package = _DISTRIBUTIONS[command[0]]
        said = f"this command is in {package} {version}, which is not installed: pip install {package}=={version}"
        assert (answer.returncode, answer.stderr) == (2, f"duemq: {said}\n")


def test_each_command_of_another_distribution_is_an_entry_point_of_it() -> None:
    brought = {
        name: path.parent.name
        for path in ROOT.glob("packages/*/pyproject.toml")
        for name in tomllib.loads(path.read_text())["project"]["entry-points"]["duemq.commands"]
    }
    assert brought == _DISTRIBUTIONS


def test_a_benchmark_of_spark_names_the_distribution() -> None:
    code = (
        "import importlib.metadata as it; real = it.entry_points\n"
        "it.entry_points = lambda **group: [point for point in real(**group) if point.name != 'spark']\n"
        "from duemq.bench.command_far import app; app.command('spark')(lambda: __import__('duemq.pipeline.errors'))\n"
        "from duemq.cli.main import main; main()"
    )
    command = [sys.executable, "-P", "-c", _ABSENT.format(packages=["duemq.pipeline"]) + code, "bench", "spark"]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 1
    assert "needs duemq.pipeline, which is not installed: pip install 'duemq-spark'" in answer.stderr, answer.stderr


@pytest.mark.parametrize("page", ["guides/consumers", "guides/idempotency", "operate/lag"])
def test_the_page_of_a_part_of_the_sdk_names_its_extra_first(page: str) -> None:
    assert "`duemq[consumer]`" in (ROOT / "docs" / f"{page}.md").read_text().partition("```")[0]
