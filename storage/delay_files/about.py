"""Metadata of delay files, importable without pyarrow.

pyarrow takes 100 ms to load, and a process without delay files does not need it. So the modules that read and write
delay files are imported only when a file is opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import orjson

from duemq.model.errors import CorruptStore

FORMAT = 1

Part = tuple[Sequence[bytes], Sequence[bytes]]
"""Keys and rows, in the order of the keys."""


class BadPage(ValueError):
    """A page of keys is damaged, or has a form that `column_chunks.py` cannot read."""


@dataclass(frozen=True, slots=True)
class About:
    """The metadata of a delay file. `window`: its start, ms. Keys in hex. `content`: the BLAKE2b checksum of keys and
    rows.

    In an imported file, `offset` is the offset of the command that imported it (storage/delay_files/imported_file.py),
    and `content` is the SHA-256 of the file. In a sealed file, `offset` is None.
    """

    shard: int
    window: int
    rows: int
    first: str
    last: str
    content: str
    format: int = FORMAT
    offset: int | None = None

    def encode(self) -> bytes:
        return orjson.dumps(asdict(self))

    @staticmethod
    def decode(raw: bytes) -> About:
        """Raises CorruptStore."""
        try:
            return About(**orjson.loads(raw))
        except (ValueError, TypeError) as error:
            raise CorruptStore(f"not the metadata of a delay file: {raw[:200]!r}") from error
