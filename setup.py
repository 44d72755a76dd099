"""The build is described by pyproject.toml. This refuses a checkout in which links have become text files."""

from pathlib import Path

from setuptools import setup

_PACKAGE = Path(__file__).parent / "src" / "duemq"

if not (_PACKAGE / "cli").is_dir():
    raise SystemExit(
        "duemq cannot be installed from this checkout, for it lacks symbolic links (src/duemq/cli is no folder): clone "
        "it again with `git clone -c core.symlinks=true`, on Windows in developer mode."
    )
setup()
