"""Programs from Debian's packages, unpacked into a cache folder: nothing is installed, so no service starts."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from duemq.dev.servers.errors import NotAvailable
from duemq.dev.servers.jars import cache_folder

_FETCH_WITHIN_S = 600.0


def unpacked(packages: Sequence[str]) -> Path:
    """A folder with the files of these packages, fetched if it is not there yet. Raises NotAvailable.

    What they depend on is not looked up: name what the machine may lack. Processes that ask at the same time wait for
    one of them; a folder that is there is complete.
    """
    where = cache_folder().with_name("debian")
    complete = where / hashlib.sha256(" ".join(packages).encode()).hexdigest()[:12]
    if complete.is_dir():
        return complete
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise NotAvailable(f"Debian's package {packages[0]} is needed, and there is no apt-get")
    try:
        where.mkdir(parents=True, exist_ok=True)
        with (where / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not complete.is_dir():
                _fill(complete, packages)
    except OSError as error:
        raise NotAvailable(f"the cache folder {where} cannot be written: {error}") from error
    return complete


def _fill(complete: Path, packages: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory(dir=complete.parent, prefix="fetching-") as name:
        try:
            _run("apt-get", "-q", "download", *packages, folder=name)
        except NotAvailable:
            if os.geteuid() != 0:
                raise
            _run("apt-get", "-q", "update", folder=name)  # the lists of a new machine are empty, or old
            _run("apt-get", "-q", "download", *packages, folder=name)
        root = Path(name) / "root"
        root.mkdir()
        for package in sorted(Path(name).glob("*.deb")):
            _run("dpkg-deb", "-x", str(package), str(root), folder=name)
        root.rename(complete)


def _run(*command: str, folder: str) -> None:
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=_FETCH_WITHIN_S)
    except subprocess.CalledProcessError as error:
        raise NotAvailable(f"{' '.join(command[:4])} failed: {error.stderr.strip()[-500:]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotAvailable(f"{' '.join(command[:4])} failed: {error}") from error
