"""What is said where an optional package is missing, and that the SDK and its command line need none."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from duemq.cli.app import _EXTRAS

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
    packages = [name for name in _EXTRAS if _EXTRAS[name] == "server"]
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


def test_lag_needs_the_extra_of_the_consumer_alone() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    brought = {re.match(r"[a-z0-9-]+", line)[0].replace("-", "_") for line in extras["consumer"]}  # type: ignore[index]
    code = "from duemq.cli.main import main; main()"
    lag = ("lag", "group", "--kafka", "127.0.0.1:9")
    answer = _without_the_server(code, *lag)
    assert answer.returncode == 1 and "pip install 'duemq[consumer]'" in answer.stderr, answer.stderr
    absent = [name for name in _EXTRAS if name not in brought | {"numpy"}]
    command = [sys.executable, "-P", "-c", _ABSENT.format(packages=absent) + code, *lag]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 8 and "no Kafka broker answers" in answer.stderr, answer.stderr


def test_the_packages_of_the_server_are_those_of_pyproject() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    lines = [line for line in (*extras["server"], *extras["consumer"]) if line != "duemq[consumer]"]
    named = {re.match(r"[a-z0-9-]+", line)[0].replace("-", "_") for line in lines}  # type: ignore[index]
    # typer brings pydantic, so that it is always there.
    assert named - {"pydantic"} == {name for name, extra in _EXTRAS.items() if extra == "server"}
