"""Programs from Debian's packages, unpacked into a cache folder: nothing is installed, so no service starts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from duemq.dev.servers.errors import NotAvailable
from tests.support.destinations.cache import cached, run


def unpacked(packages: Sequence[str]) -> Path:
    """A folder with the files of these packages, fetched if missing. Raises NotAvailable.

    Dependencies are not resolved: name those that the machine may lack.
    """

    def fill(folder: Path) -> None:
        try:
            run("apt-get", "-q", "download", *packages, folder=folder.parent)
        except NotAvailable:
            if os.geteuid() != 0:
                raise
            run("apt-get", "-q", "update", folder=folder)  # the lists of a new machine are empty, or old
            run("apt-get", "-q", "download", *packages, folder=folder.parent)
        for package in sorted(folder.parent.glob("*.deb")):
            run("dpkg-deb", "-x", str(package), str(folder), folder=folder)

    return cached("debian", " ".join(packages), fill)
