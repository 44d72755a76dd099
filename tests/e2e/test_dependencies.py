"""The wheels with the lowest and the newest versions that they allow, and each example with just the packages
that its first lines name."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.server import Server, environment
from tests.support.house.tree import ROOT
from tests.support.house.uv_environment import Resolution, make_environment
from tests.support.patience import PROCESS_S

pytestmark = pytest.mark.slow

EXAMPLES = sorted(set((ROOT / "examples").glob("*.py")) - {ROOT / "examples" / "pending_rows.py"})  # others import it
IMPORT_ALL = ROOT / "tests" / "support" / "house" / "import_all.py"


@pytest.mark.parametrize("resolution", ["lowest-direct", "highest"])
def test_every_module_and_a_server_run_with_the_versions_that_are_allowed(
    resolution: Resolution, wheels: dict[str, Path], new_server: Callable[..., Server], tmp_path: Path
) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys() - {"dev"}
    requirements = [
        requirement("duemq", wheels, *sorted(extras)),
        requirement("duemq-dev", wheels, "bench"),
        requirement("duemq-spark", wheels, "connect"),
    ]
    programs = make_environment(tmp_path / "venv", requirements, resolution)
    imported = run([programs / "python", "-P", IMPORT_ALL])
    assert imported.returncode == 0, imported.stderr
    for command in ([], ["send"], ["bench"], ["spark"], ["dev-cluster"], ["destination"]):
        helped = run([programs / "duemq", *command, "--help"])
        assert helped.returncode == 0, helped.stderr
    sends_a_message(programs, new_server())


def test_the_command_line_alone_runs_with_the_lowest_versions(wheels: dict[str, Path], tmp_path: Path) -> None:
    programs = make_environment(tmp_path / "venv", [requirement("duemq", wheels)], "lowest-direct")
    for command in ([], ["send"], ["destination", "ls"], ["job", "ls"], ["import"]):
        helped = run([programs / "duemq", *command, "--help"])
        assert helped.returncode == 0, helped.stderr
    for absent_command in ("bench", "demo", "dev-cluster", "spark"):
        absent = run([programs / "duemq", absent_command])
        assert absent.returncode == 2 and "is not installed: pip install duemq-" in absent.stderr, absent.stderr
        assert absent.stderr.count("\n") == 1
    doctor = run([programs / "duemq", "doctor"])
    assert "Traceback" not in doctor.stderr, doctor.stderr


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_with_just_the_packages_that_it_names(
    example: Path, wheels: dict[str, Path], new_server: Callable[..., Server], tmp_path: Path
) -> None:
    named = re.search(r"pip install ([^#\n]*)", example.read_text())
    words = [word.strip("'") for word in named[1].split()] if named else []  # some need Python only
    requirements = [
        f"{word} @ {wheels[word.partition('[')[0]].as_uri()}" if word.startswith("duemq") else word for word in words
    ]
    if "duemq-spark" in words:
        requirements.append(requirement("duemq", wheels))
    programs = make_environment(tmp_path / "venv", requirements)
    if example.name != "order_timeouts.py":  # the others need brokers; docs/guides/consumers.md and others run them
        code = f"import runpy, sys; sys.path.insert(0, {str(example.parent)!r}); runpy.run_path({str(example)!r})"
        imported = run([programs / "python", "-P", "-c", code])
        assert imported.returncode == 0, imported.stderr
        return
    with new_server() as server:
        server.start()
        variables = environment() | {"DUEMQ_URL": server.url}
        done = subprocess.run(
            [programs / "python", example], env=variables, capture_output=True, text=True, timeout=PROCESS_S
        )
        assert (done.returncode, done.stderr) == (0, "")


def requirement(name: str, wheels: dict[str, Path], *extras: str) -> str:
    return f"{name}[{','.join(extras)}] @ {wheels[name].as_uri()}" if extras else f"{name} @ {wheels[name].as_uri()}"


def sends_a_message(programs: Path, server: Server) -> None:
    server.command = [programs / "duemq"]
    server.start()
    sent = run([programs / "duemq", "send", "t", "hello", "--after", "50ms", "--url", server.url])
    assert sent.returncode == 0, sent.stderr
    records = server.call("GET", "/v1/topics/t/records?wait=60s").json()["records"]
    assert [record["payload"] for record in records] == ["hello"]
    assert server.stop() == 0, server.log


def run(command: list[object]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), env=environment(), capture_output=True, text=True, timeout=PROCESS_S)
