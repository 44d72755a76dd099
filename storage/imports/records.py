"""The files a shard was asked to adopt, as its store keeps them: wanted, adopted or refused.

They follow from the logs alone, so that every replica has the same; only the files themselves are each replica's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Protocol

import orjson

from duemq.model.adoption import Adopt
from duemq.model.errors import CorruptStore
from duemq.model.ledger import Adopted
from duemq.storage.delay_files.sealed_file import About
from duemq.storage.shard.keyspace import ADOPTION, CONTENT, U64

WANTED, ADOPTED, REFUSED = "wanted", "adopted", "refused"


@dataclass(frozen=True, slots=True)
class Adoption:
    """What became of a command at `offset`, as of the cycle at `at` ms. `reason`: why it was refused."""

    offset: int
    adopt: Adopt
    state: str
    at: int
    reason: str = ""

    def settled(self, said: Adopted, at: int) -> Adoption:
        return replace(self, state=REFUSED if said.reason else ADOPTED, at=at, reason=said.reason)

    @property
    def row(self) -> tuple[bytes, bytes]:
        """Key and value in the store."""
        said = asdict(self)
        return ADOPTION + U64.pack(said.pop("offset")), orjson.dumps(said)

    @property
    def content(self) -> tuple[bytes, bytes]:
        """Key and value of the entry that finds it by its content; there as long as it is not refused."""
        return CONTENT + bytes.fromhex(self.adopt.sha256), U64.pack(self.offset)

    @staticmethod
    def decode(key: bytes, raw: bytes) -> Adoption:
        """Raises CorruptStore."""
        try:
            said = orjson.loads(raw)
            return Adoption(U64.unpack(key)[0], Adopt(**said.pop("adopt")), **said)
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptStore(f"not an adoption: {raw[:200]!r}") from error


class _Rows(Protocol):
    def each(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]: ...
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]: ...


class Adoptions:
    """Those of one store. `wanted`: what is neither adopted nor refused yet, by offset, in the order of the log."""

    def __init__(self, store: _Rows) -> None:
        self._store = store
        self.wanted: dict[int, Adoption] = {one.offset: one for one in self.all() if one.state == WANTED}

    def all(self) -> Iterator[Adoption]:
        for key, raw in self._store.each(ADOPTION):
            yield Adoption.decode(key, raw)

    def part(self, after: int, most: int) -> list[Adoption]:
        """The next `most` of all behind the one at the offset `after`."""
        rows = self._store.each(ADOPTION, U64.pack(after + 1))
        return [Adoption.decode(key, raw) for key, raw in islice(rows, most)]

    def get(self, offset: int) -> Adoption | None:
        key = U64.pack(offset)
        (raw,) = self._store.get_many([ADOPTION + key])
        return None if raw is None else Adoption.decode(key, raw)

    def contents(self, sums: Sequence[str]) -> list[int | None]:
        """The offsets of the commands that brought these contents (sha256 in hex)."""
        found = self._store.get_many([CONTENT + bytes.fromhex(one) for one in sums])
        return [None if raw is None else U64.unpack(raw)[0] for raw in found]

    def changes(self, wanted: dict[int, Adopt], settled: Sequence[Adopted], at: int) -> Changes:
        """What a cycle committed at `at` ms does: files newly wanted, and files adopted or refused."""
        new = [Adoption(offset, adopt, WANTED, at) for offset, adopt in wanted.items()]
        ended = [self.wanted[said.offset].settled(said, at) for said in settled]
        puts = [row for one in new for row in (one.row, one.content)] + [one.row for one in ended]
        return Changes(new, ended, puts, [one.content[0] for one in ended if one.state == REFUSED])

    def note(self, changes: Changes) -> None:
        """They are in the store."""
        for one in changes.new:
            self.wanted[one.offset] = one
        for one in changes.ended:
            del self.wanted[one.offset]


@dataclass(frozen=True, slots=True)
class Here:
    """A file that was taken in: it is in the shard's folder, durable and sound. `checksum`: the sum of its keys."""

    about: About
    checksum: int
    path: Path


@dataclass(frozen=True, slots=True)
class Changes:
    """What a cycle does to the adoptions of a store. Puts and deletes carry their prefixes."""

    new: Sequence[Adoption]
    ended: Sequence[Adoption]
    puts: list[tuple[bytes, bytes]]
    deletes: list[bytes]
