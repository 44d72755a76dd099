"""What a consumer says in the metadata of a committed offset: how far it has pulled.

The committed offset is that of the first message that is not done; from the two, anybody can tell how many are in hand.
"""

from __future__ import annotations

import re

_PULL = re.compile(r"duemq pull=(\d{1,18})")


def metadata_of(pull: int) -> str:
    """The metadata of a commit. `pull`: the offset of the next message to be fetched."""
    return f"duemq pull={pull}"


def pull_in(metadata: str | None) -> int | None:
    """The pull offset in a commit's metadata; None where it is no consumer of ours that wrote it."""
    found = _PULL.fullmatch(metadata or "")
    return None if found is None else int(found[1])
