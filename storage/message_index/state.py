"""What a store's index covers: its topics, and how far it is built for messages that are older than the index."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import StrEnum

import orjson

from duemq.model.errors import CorruptStore


class BuildStage(StrEnum):
    ROWS = "rows"
    ENDINGS = "endings"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class IndexState:
    """`entry`, `applied`, `since`: the ledger entry after which the index was switched on, with its applied offset and
    its time (ms). Cycles index the messages placed after that entry, a build indexes the earlier ones. `after`: rows or
    endings up to this key are indexed."""

    topics: tuple[str, ...]
    entry: int
    applied: int
    since: int
    stage: BuildStage
    after: bytes

    def encode(self) -> bytes:
        return orjson.dumps(asdict(self) | {"after": self.after.hex()})

    @staticmethod
    def decode(raw: bytes) -> IndexState:
        """Raises CorruptStore."""
        try:
            document = orjson.loads(raw)
            return IndexState(
                tuple(map(str, document["topics"])), int(document["entry"]), int(document["applied"]),
                int(document["since"]), BuildStage(document["stage"]), bytes.fromhex(document["after"]),
            )  # fmt: skip
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptStore(f"not the state of an index: {raw[:200]!r}") from error

    def at(self, stage: BuildStage, after: bytes) -> IndexState:
        """The state once the index is built this far."""
        return replace(self, stage=stage, after=after)
