"""Checks for a usable Java before Spark starts, whose own message is hard to read."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from duemq.pipeline.errors import SparkUnavailable

OLDEST = 17  # what Spark 4 is built for
_VERSION = re.compile(r'version "(\d+)')
_WITHIN_S = 30.0


def check_java() -> Path:
    """The Java that Spark will start: in `JAVA_HOME`, else `java` on PATH. Raises SparkUnavailable."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if program is None:
        raise SparkUnavailable(
            f"Spark needs a Java of version {OLDEST} or newer, and there is none on PATH or in JAVA_HOME: install a JDK"
        )
    if (version := _version(program)) < OLDEST:
        of = "JAVA_HOME" if home else "PATH"
        what = f"is Java {version}" if version else "does not run"
        raise SparkUnavailable(f"Spark needs Java {OLDEST} or newer; {program} (of {of}) {what}")
    return Path(program)


def _version(program: str) -> int:
    """The major version of a Java; 0 if it does not run."""
    try:
        result = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=_WITHIN_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    version = _VERSION.search(result.stderr)
    return int(version[1]) if version else 0
