"""Programs that are fetched or built once, and kept in the cache folder of the user."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from duemq.dev.servers.errors import NotAvailable
from duemq.dev.servers.jars import cache_folder

_WITHIN_S = 900.0


def cached(kind: str, what: str, fill: Callable[[Path], None]) -> Path:
    """A folder with `what`, into which `fill` put it, now or long ago. Raises NotAvailable, as `fill` does.

    Processes that ask at the same time wait for one of them; a folder that is there is complete.
    """
    where = cache_folder().with_name(kind)
    complete = where / hashlib.sha256(what.encode()).hexdigest()[:12]
    if complete.is_dir():
        return complete
    try:
        where.mkdir(parents=True, exist_ok=True)
        with (where / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not complete.is_dir():
                with tempfile.TemporaryDirectory(dir=where, prefix="fetching-") as name:
                    folder = Path(name) / "complete"
                    folder.mkdir()
                    fill(folder)
                    folder.rename(complete)
    except OSError as error:
        raise NotAvailable(f"the cache folder {where} cannot be written: {error}") from error
    return complete


def run(*command: str, folder: Path, environment: Mapping[str, str] | None = None) -> None:
    """Raises NotAvailable with the end of its error output."""
    said = " ".join(command[:4])
    try:
        subprocess.run(
            command, cwd=folder, env=environment, check=True, capture_output=True, text=True, timeout=_WITHIN_S
        )
    except subprocess.CalledProcessError as error:
        raise NotAvailable(f"`{said}` failed: {error.stderr.strip()[-500:]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotAvailable(f"`{said}` failed: {error}") from error
