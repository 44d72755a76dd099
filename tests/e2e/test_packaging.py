"""The three distributions: their folders reach the wheels through links, which can be lost in silence, and the wheels
install beside one another into one package."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.server import Server, environment
from tests.support.house.distributions import (
    FOLDERS,
    copy_of_checkout,
    environment_of,
    install,
    run,
    site_packages,
)
from tests.support.house.tree import PACKAGES, ROOT

LINKS = ROOT / "src" / "duemq"
OTHERS = {"duemq-dev": {"bench", "dev"}, "duemq-spark": {"pipeline"}}


def test_every_package_folder_has_its_links() -> None:
    packages = {package.name for package in PACKAGES}
    links = {path.name for path in LINKS.iterdir() if path.is_symlink()}
    assert packages == links
    for name in links:
        assert os.readlink(LINKS / name) == f"../../{name}"
        assert (LINKS / name).resolve() == ROOT / name
    assert {path.name for path in LINKS.iterdir()} - links - {"__pycache__"} == {"__init__.py", "py.typed"}
    for distribution, names in OTHERS.items():
        folder = ROOT / FOLDERS[distribution]
        linked = {path.name: path.resolve() for path in (folder / "src" / "duemq").iterdir()}
        assert linked == {name: ROOT / name for name in names}
        assert (folder / "version.py").resolve() == LINKS / "__init__.py"
        assert (folder / "LICENSE").resolve() == ROOT / "LICENSE"


def test_an_image_gets_every_package_folder_of_a_server() -> None:
    taken = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    assert taken & {package.name for package in PACKAGES} == {package.name for package in PACKAGES}.difference(
        *OTHERS.values()
    )
    assert {"src", "setup.py"} <= taken


@pytest.mark.parametrize("distribution", FOLDERS)
def test_a_checkout_without_links_is_refused_in_one_sentence(distribution: str, tmp_path: Path) -> None:
    copy = copy_of_checkout(tmp_path)
    for link in copy.rglob("*"):
        if link.is_symlink():  # as `git clone -c core.symlinks=false` writes it
            target = os.readlink(link)
            link.unlink()
            link.write_text(target)
    for how in ([], ["--editable"]):
        install = [sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--no-index"]
        done = subprocess.run(
            [*install, "--target", tmp_path / "there", *how, copy / FOLDERS[distribution]],
            env=environment(), capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 1
        sentence = f"{distribution} cannot be installed from this checkout, for it lacks symbolic links"
        assert sentence in done.stdout + done.stderr, done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel of `duemq` alone; other packages it takes from this one."""
    return environment_of([wheels["duemq"]], tmp_path_factory.mktemp("alone") / "venv")


@pytest.mark.slow
def test_no_two_wheels_have_a_file_in_common_and_each_has_all_of_its_folders(wheels: dict[str, Path]) -> None:
    names = {name: set(zipfile.ZipFile(wheel).namelist()) for name, wheel in wheels.items()}
    in_package = {name: {path for path in files if path.startswith("duemq/")} for name, files in names.items()}
    assert sum(map(len, names.values())) == len(set().union(*names.values()))
    of_server = {package.name for package in PACKAGES}.difference(*OTHERS.values())
    for name, folders in {"duemq": of_server, **OTHERS}.items():
        assert {path.split("/")[1] for path in in_package[name]} - {"__init__.py", "py.typed"} == folders
        code = {
            f"duemq/{path.relative_to(ROOT)}"
            for folder in folders
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert code - in_package[name] == set()


@pytest.mark.slow
def test_the_wheel_alone_serves_and_imports_nothing_of_the_others(
    installed: Path, new_server: Callable[..., Server]
) -> None:
    server = new_server()
    server.command = [installed / "bin" / "duemq"]
    server.start()
    id_ = server.send("t", payload="from the wheel", deliver_after=50)
    records = server.call("GET", "/v1/topics/t/records?wait=60s").json()["records"]
    assert [(record["headers"]["duemq-id"], record["payload"]) for record in records] == [(id_, "from the wheel")]
    assert server.stop() == 0, server.log
    command = [installed / "bin" / "python", ROOT / "tests" / "support" / "house" / "import_all.py"]
    imported = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert imported.returncode == 0, imported.stderr
    assert imported.stdout.split()[0].startswith(str(installed))


@pytest.mark.slow
def test_the_other_wheels_join_it_and_leave_it_whole(installed: Path, wheels: dict[str, Path]) -> None:
    before = {path: path.read_bytes() for path in (site_packages(installed) / "duemq").rglob("*.py")}
    install(installed, [wheels["duemq-dev"], wheels["duemq-spark"]])
    for command in (["bench", "--help"], ["demo", "--help"], ["dev-cluster", "--help"], ["spark", "--help"]):
        done = subprocess.run(
            [installed / "bin" / "duemq", *command], env=environment(), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    run("-m", "pip", "--python", installed, "uninstall", "--quiet", "--yes", "duemq-dev", "duemq-spark")
    assert {path: path.read_bytes() for path in (site_packages(installed) / "duemq").rglob("*.py")} == before
