"""The jars of Kafka and ZooKeeper: fetched once into a cache folder, and checked against the list in jars.txt.

Maven fetches them if it is installed, because it is configured with the machine's mirrors. Otherwise the package jgo
does, which needs neither Maven nor Java.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from duemq.dev.servers.errors import NotAvailable

_PINNED = Path(__file__).with_name("jars.txt")
_FETCH_WITHIN_S = 600.0

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>duemq</groupId><artifactId>servers</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = """
    <dependency>
      <groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>"""


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of jars.txt."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


def pinned(listed: Path = _PINNED) -> tuple[Jar, ...]:
    """All jars in a list, which are those that the servers need."""
    lines = (line for line in listed.read_text().splitlines() if not line.startswith("#"))
    return tuple(Jar(*line.replace(":", " ").split()) for line in lines)


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "duemq" / "jars"


@cache
def jars(cache_in: Path | None = None, listed: Path = _PINNED) -> Path:
    """A folder with all pinned jars, which are fetched if they are missing (about 45 MB). Raises NotAvailable.

    One process fetches them, and concurrent processes wait for it. The folder's name is derived from the list, so a new
    list gets a new folder; an existing folder is complete.
    """
    where = cache_in or cache_folder()
    complete = where / hashlib.sha256(listed.read_bytes()).hexdigest()[:12]
    if complete.is_dir():
        return complete
    try:
        where.mkdir(parents=True, exist_ok=True)
        with (where / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not complete.is_dir():
                _fill(complete, pinned(listed))
    except OSError as error:
        raise NotAvailable(f"the cache folder {where} cannot be written: {error}") from error
    return complete


def _fill(complete: Path, pinned_jars: tuple[Jar, ...]) -> None:
    failures: list[str] = []
    for fetch in (_by_maven, _by_jgo):
        with tempfile.TemporaryDirectory(dir=complete.parent, prefix="fetching-") as name:
            folder = Path(name) / "jars"
            folder.mkdir()
            try:
                fetch(folder, pinned_jars)
                _check(folder, pinned_jars)
            except NotAvailable as error:
                failures.append(str(error))
                continue
            folder.rename(complete)
            return
    raise NotAvailable(
        f"{len(pinned_jars)} jars ({pinned_jars[0].file_name}, ...) cannot be fetched: " + "; ".join(failures)
    )


def _check(folder: Path, pinned_jars: tuple[Jar, ...]) -> None:
    """Raise NotAvailable unless each jar exists and is the pinned one."""
    for jar in pinned_jars:
        try:
            sha256 = hashlib.sha256((folder / jar.file_name).read_bytes()).hexdigest()
        except OSError as error:
            raise NotAvailable(f"{jar.file_name} is missing") from error
        if sha256 != jar.sha256:
            raise NotAvailable(f"{jar.file_name} is not the pinned one: its SHA-256 is {sha256}")


def _by_maven(folder: Path, pinned_jars: tuple[Jar, ...]) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise NotAvailable("there is no mvn")
    pom = folder.parent / "pom.xml"
    dependencies = (
        _DEPENDENCY.format(group=jar.group, artifact=jar.artifact, version=jar.version) for jar in pinned_jars
    )
    pom.write_text(_POM.format(dependencies="".join(dependencies)))
    command = [maven, "-B", "-q", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_WITHIN_S, check=True)
    except subprocess.CalledProcessError as error:
        raise NotAvailable(f"mvn failed: {(error.stdout + error.stderr).strip()[:500]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotAvailable(f"mvn failed: {error}") from error


def _by_jgo(folder: Path, pinned_jars: tuple[Jar, ...]) -> None:
    try:
        from jgo.maven import MavenContext
    except ImportError as error:
        raise NotAvailable("there is no jgo (`pip install jgo`)") from error
    repository = MavenContext(repo_cache=folder.parent / "repository", timeout=60)

    def fetch(jar: Jar) -> None:
        source: Path = repository.project(jar.group, jar.artifact).at_version(jar.version).artifact().resolve()
        shutil.copyfile(source, folder / jar.file_name)

    try:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(fetch, pinned_jars))
    except Exception as error:  # any error of its HTTP client: the user is shown the reason
        raise NotAvailable(f"jgo failed: {error}") from error
