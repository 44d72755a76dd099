"""The build is described by pyproject.toml. This adds the version, and the dependency on duemq of the same version."""

from pathlib import Path
from runpy import run_path

from setuptools import setup

_HERE = Path(__file__).parent

if not (_HERE / "src/duemq/bench").is_dir():
    raise SystemExit(
        "duemq-dev cannot be installed from this checkout, for it lacks symbolic links: clone it again with "
        "`git clone -c core.symlinks=true`, on Windows in developer mode."
    )
_VERSION = run_path(str(_HERE / "version.py"))["__version__"]
setup(version=_VERSION, install_requires=[f"duemq[server]=={_VERSION}"])
