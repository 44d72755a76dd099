"""The installed wheel is complete: the folders of the checkout reach it through links, which can be lost in silence."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.server import Server, environment

ROOT = Path(__file__).parents[2]
LINKS = ROOT / "src" / "duemq"


def test_every_package_folder_has_its_link() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    links = {path.name for path in LINKS.iterdir() if path.is_symlink()}
    assert packages == links
    for name in links:
        assert os.readlink(LINKS / name) == f"../../{name}"
        assert (LINKS / name).resolve() == ROOT / name
    assert {path.name for path in LINKS.iterdir()} - links - {"__pycache__"} == {"__init__.py", "py.typed"}


def test_an_image_gets_every_package_folder() -> None:
    taken = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} <= taken
    assert {"src", "setup.py"} <= taken, "src/pyspark_duemq is no link, and Spark looks for it"


def test_a_checkout_without_links_is_refused_in_one_sentence(tmp_path: Path) -> None:
    copy = checkout(tmp_path)
    for link in (copy / "src" / "duemq").iterdir():
        if link.is_symlink():  # as `git clone -c core.symlinks=false` writes it
            target = os.readlink(link)
            link.unlink()
            link.write_text(target)
    for how in ([], ["--editable"]):
        install = [sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--no-index"]
        done = subprocess.run(
            [*install, "--target", tmp_path / "there", *how, copy], env=environment(), capture_output=True, text=True
        )
        assert done.returncode == 1
        sentence = "duemq cannot be installed from this checkout, for it lacks symbolic links"
        assert sentence in done.stdout + done.stderr, done.stdout + done.stderr


@pytest.mark.slow
def test_the_built_wheel_serves(tmp_path: Path, new_server: Callable[..., Server]) -> None:
    made, fresh = tmp_path / "made", tmp_path / "fresh"
    python(ROOT, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", made, checkout(tmp_path))
    (wheel,) = made.glob("duemq-*.whl")
    python(tmp_path, "-m", "venv", "--without-pip", fresh)
    python(tmp_path, "-m", "pip", "--python", fresh, "install", "--quiet", "--no-deps", "--no-index", wheel)
    # What duemq needs it takes from here; links of editable installs in there are not followed.
    site = sysconfig.get_path("purelib", vars={"base": str(fresh), "platbase": str(fresh)})
    (Path(site) / "needed.pth").write_text(sysconfig.get_path("purelib"))

    server = new_server()
    server.command = [fresh / "bin" / "duemq"]
    server.start()
    id_ = server.send("t", payload="from the wheel", deliver_after=50)
    records = server.call("GET", "/v1/topics/t/records?wait=60s").json()["records"]
    assert [(record["headers"]["duemq-id"], record["payload"]) for record in records] == [(id_, "from the wheel")]
    assert server.stop() == 0, server.log
    where = subprocess.check_output(
        [fresh / "bin" / "python", "-c", "import duemq.cli.wiring.single_process as it; print(it.__file__)"],
        env=environment(),
        text=True,
    )
    assert Path(where.strip()).is_relative_to(fresh)


def checkout(folder: Path) -> Path:
    """A copy of this one, for a build leaves files behind."""
    left_out = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "tests", "docs")
    return shutil.copytree(ROOT, folder / "checkout", symlinks=True, ignore=left_out)


def python(folder: Path, *arguments: object) -> None:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=folder, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
