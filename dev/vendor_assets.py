"""Fetches the console's third-party assets from the npm registry, and records their versions next to them.

    python -m duemq.dev.vendor_assets

They are stored in the repository: neither a build nor a browser loads anything from elsewhere. To update a package,
change `PACKAGES` and run this again.
"""

from __future__ import annotations

import base64
import json
import subprocess
import tarfile
import tempfile
from hashlib import sha256, sha512
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parents[1] / "proxy" / "console" / "assets"
MANIFEST = FOLDER / "manifest.json"


class Package(NamedTuple):
    """`files`: the files to take from the package, with their names here."""

    name: str
    version: str
    files: dict[str, str]


PACKAGES = (
    Package("htmx.org", "2.0.11", {"dist/htmx.min.js": "htmx.min.js", "LICENSE": "htmx.LICENSE.txt"}),
    Package(
        "uplot", "1.6.32",
        {
            "dist/uPlot.iife.min.js": "uplot.min.js", "dist/uPlot.min.css": "uplot.min.css",
            "LICENSE": "uplot.LICENSE.txt",
        },
    ),
)  # fmt: skip


def vendor(package: Package, into: Path) -> dict[str, Any]:
    """Copy a package's files, checked against the registry's hash, and return their description."""
    with tempfile.TemporaryDirectory() as scratch:
        command = ["npm", "pack", "--json", "--ignore-scripts", f"{package.name}@{package.version}"]
        (packed,) = json.loads(subprocess.run(command, cwd=scratch, check=True, capture_output=True).stdout)
        archive = Path(scratch) / packed["filename"]
        integrity = "sha512-" + base64.b64encode(sha512(archive.read_bytes()).digest()).decode()
        if integrity != packed["integrity"]:
            raise SystemExit(f"{package.name}: the archive does not match the registry's hash")
        hashes = {}
        with tarfile.open(archive) as content:
            about = json.loads(_member(content, "package.json"))
            for source, name in package.files.items():
                data = _member(content, source)
                (into / name).write_bytes(data)
                hashes[name] = sha256(data).hexdigest()
    return {
        "name": package.name, "version": package.version, "licence": about["license"], "integrity": integrity,
        "sha256": hashes,
    }  # fmt: skip


def _member(content: tarfile.TarFile, name: str) -> bytes:
    member = content.extractfile(f"package/{name}")
    assert member is not None
    return member.read()


def main() -> None:
    described = [vendor(package, FOLDER) for package in PACKAGES]
    MANIFEST.write_text(json.dumps({"packages": described}, indent=2) + "\n")


if __name__ == "__main__":
    main()
