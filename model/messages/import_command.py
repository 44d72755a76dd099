"""The command to import a file of many messages.

The writer of such a file (docs/guides/delay-files.md) appends one record for the file to a partition of the buffer
topic. The record's only duemq header is `duemq-import`, a JSON object with the fields of `ImportCommand`:

    {"path": "/shared/orders.parquet", "sha256": "5d1c…", "size": 81234567, "window": 1795264200000, "rows": 1000000}

All messages have the record's offset in their keys: row `i` of the file has the key `due_ms | offset | i`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from duemq.model.errors import Rejected
from duemq.model.messages.record import pack_record
from duemq.model.timing import LAST_MS, WINDOW_MS, shown

HEADER = "duemq-import"
FORMER_HEADER = "duemq-adopt"  # in logs of format 1; it is still read
MAX_ROWS = 2**31 - 1  # a key has 32 bits for the row
MAX_FILES = 20_000  # in one batch: a year has 17,520 windows
REASON_CHARACTERS = 300
_PATH_BYTES = 4_096
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # isprintable differs between Python versions, so replicas would differ
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ImportCommand:
    """A file to import. `window`: the start of its window in ms; `size` in bytes; `sha256` in hex.

    `link`: the file may be linked instead of copied, because it will not change any more.
    """

    path: str
    sha256: str
    size: int
    window: int
    rows: int
    link: bool = False

    def encode(self) -> bytes:
        return orjson.dumps(asdict(self))

    @staticmethod
    def decode(raw: bytes) -> ImportCommand:
        """Raises Rejected `bad_json`, and the errors that `of` raises."""
        try:
            document = orjson.loads(raw)
        except ValueError as error:
            raise Rejected("bad_json", f"{HEADER} is not JSON: {error}", HEADER) from error
        if type(document) is not dict:
            raise Rejected("bad_json", f"{HEADER} must be a JSON object", HEADER)
        return ImportCommand.of(document)

    @staticmethod
    def of(document: Mapping[str, Any]) -> ImportCommand:
        """The command in a JSON object. Raises Rejected `bad_field` or `unknown_field` with the field."""
        for name in ("path", "sha256", "size", "window", "rows"):
            if name not in document:
                raise Rejected("bad_field", f"{name} is missing", name)
        import_command = ImportCommand(
            document["path"],
            document["sha256"],
            document["size"],
            document["window"],
            document["rows"],
            document.get("link", False),
        )
        import_command._check()
        if unknown := sorted(document.keys() - asdict(import_command).keys()):
            raise Rejected("unknown_field", f"{shown(unknown[0])} is not a field of a file to import", unknown[0][:80])
        return import_command

    def _check(self) -> None:
        if type(self.path) is not str or not 0 < len(self.path.encode(errors="replace")) <= _PATH_BYTES:
            raise Rejected("bad_field", f"path must be a text of 1 to {_PATH_BYTES} bytes", "path")
        if _CONTROL.search(self.path):
            raise Rejected("bad_field", f"path must have no control characters, not {shown(self.path)}", "path")
        if type(self.sha256) is not str or not _SHA256.fullmatch(self.sha256):
            raise Rejected("bad_field", f"sha256 must be 64 characters of 0-9 a-f, not {shown(self.sha256)}", "sha256")
        for name, value, most in (("size", self.size, 1 << 48), ("rows", self.rows, MAX_ROWS)):
            if type(value) is not int or not 1 <= value <= most:
                raise Rejected("bad_field", f"{name} must be a whole number from 1 to {most}, not {shown(value)}", name)
        window = self.window
        if type(window) is not int or window % WINDOW_MS or not 0 <= window <= LAST_MS - WINDOW_MS:
            rule = f"window must be the start of a 30-minute UTC window, a multiple of {WINDOW_MS} ms"
            raise Rejected("bad_field", f"{rule}, not {shown(window)}", "window")
        if type(self.link) is not bool:
            raise Rejected("bad_field", f"link must be true or false, not {shown(self.link)}", "link")


def cut(reason: str) -> str:
    """A reason for the ledger, cut to a bounded length, however long the names in it are."""
    return reason if len(reason) <= REASON_CHARACTERS else f"{reason[: REASON_CHARACTERS - 3]}..."


def shard_of_content(sha256: str, shards: int) -> int:
    """The shard that imports a file. It is the same for the same content, so that a file is imported only once."""
    return int(sha256[:8], 16) % shards


def import_frame(import_command: ImportCommand) -> bytes:
    """The frame of the command to import a file."""
    return pack_record(None, ((HEADER, import_command.encode()),), b"")
