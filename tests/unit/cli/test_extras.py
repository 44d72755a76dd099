"""What is said where an optional package is missing, and that the core needs none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
