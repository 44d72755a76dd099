"""Namespaces of Linux, for tests of a pod without Kubernetes."""

from __future__ import annotations

import os
import subprocess

import pytest


def need_namespaces() -> None:
    """Skip the test if none can be made; fail it in CI."""
    try:
        subprocess.run(
            ["unshare", "--fork", "--pid", "--mount", "--mount-proc", "true"], check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
