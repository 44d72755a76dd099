"""What the manifests of checkpoints, backups and bulk jobs have in common: a format, and a list of files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file below the folder of its manifest. `size` in bytes, `sha256` in hex."""

    name: str
    size: int
    sha256: str


def check_files(files: Sequence[ListedFile], safe_name: re.Pattern[str]) -> None:
    """Raises ValueError for an unsafe or duplicate name, a negative size, or a malformed checksum."""
    for file in files:
        if not safe_name.fullmatch(file.name) or file.size < 0 or not _SHA256.fullmatch(file.sha256):
            raise ValueError(f"file {file.name!r}")
    if len({file.name for file in files}) < len(files):
        raise ValueError("a file is listed twice")


def other_format(manifest: object, actual: object, expected: int) -> str:
    """The sentence about a manifest whose format this version cannot read."""
    return f"{manifest} has format {actual}, this duemq reads format {expected}"
