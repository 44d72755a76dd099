"""The port to the replicas that answer reads, and the values that pass through it.

A proxy has no store: its reader (`proxy/gateway/remote_reader.py`) asks the nodes over HTTP, which answer with a
`LocalReader` (`delay/reads/local_reader.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol

from duemq.model.messages.record import Headers
from duemq.model.messages.row_notes import UNCHANGED, Attempt, ChangeHistory
from duemq.storage.shard.records import ImportRecord
from duemq.storage.shard.topic_counts import TopicCount

Status = Literal["scheduled", "delivered", "cancelled", "dead"]


@dataclass(frozen=True, slots=True)
class MessageState:
    """All that is known of one message. Times in epoch ms; `payload` is None once it is no longer held, and if it is
    null (then `has_null`). `attempts`: that failed, and its deaths, if they are noted. `history`: the changes, a cancel
    included. `name`: with its space (`model/messages/names.py`); empty for none, and from a node of the last
    release."""

    id: str
    status: Status
    topic: str
    due: int
    key: bytes | None = None
    labels: tuple[str, ...] = ()
    headers: Headers = ()
    attempt: int = 0
    expires: int = 0
    payload: bytes | None = None
    has_null: bool = False
    delivered_at: int = 0
    cancelled_at: int = 0
    dead_at: int = 0
    reason: str = ""
    redrives: int = 0
    attempts: tuple[Attempt, ...] = ()
    history: ChangeHistory = UNCHANGED
    name: bytes = b""

    def head(self) -> MessageState:
        """The state as lists have it: without payload and history, of which a page could have a gigabyte."""
        return replace(self, payload=None, has_null=False, history=UNCHANGED)


class NamedMessage(NamedTuple):
    """The message that has a name, without its payload, and the fingerprint it was sent with."""

    fingerprint: bytes
    state: MessageState


@dataclass(frozen=True, slots=True)
class Query:
    """A filter over messages. `due_from` inclusive, `due_to` exclusive (epoch ms); `cursor` from the last page.

    `name_prefix`: of the text of a name in the spaces that `caller` reads (`Grant.namespace`; empty: that of all).
    `status` None: any. `shard`: of this one only. `newest`: those that were placed last come first; for that, key or
    label has to be given, and the topic to be indexed. Else they come in the order of their due times.
    """

    topic: str | None = None
    status: Status | None = "scheduled"
    key: str | None = None
    label: str | None = None
    due_from: int | None = None
    due_to: int | None = None
    limit: int = 100
    cursor: str | None = None
    shard: int | None = None
    newest: bool = False
    topic_prefix: str | None = None
    name_prefix: str | None = None
    caller: str = ""


class SearchPart(NamedTuple):
    """What a search of one shard found: keys with states, and up to where it looked (None: to the end).

    Of one with `newest`, the keys are places (`storage/message_index/runs.py`): byte order is that of the answer, too.
    """

    messages: list[tuple[bytes, MessageState]]
    looked: bytes | None


class ShardReader(Protocol):
    """Reads of any shard. Each call may raise Unavailable: no replica of the shard can answer now.

    With `offset`, the answer is as of a moment when the commands up to this one were applied; without it, as of one
    when all were that had been accepted before the call.
    """

    async def state(self, shard: int, first_key: bytes, offset: int) -> MessageState | None:
        """The message that was first placed under this key; None if it is unknown, or forgotten."""
        ...

    async def messages_by_name(
        self, shard: int, names: Sequence[bytes], offset: int | None = None
    ) -> list[NamedMessage | None]:
        """The messages that hold these names; None for one that nothing holds, or what is forgotten."""
        ...

    async def when_ended(self, shard: int, first_keys: Sequence[bytes], offset: int) -> list[int]:
        """When each message was delivered, cancelled or given up (ms); 0 if it was not, or that is forgotten."""
        ...

    async def topics(self, shard: int, first_keys: Sequence[bytes], offset: int) -> list[str | None]:
        """The topic of each message; None for one that is unknown, or forgotten. No payload is kept meanwhile."""
        ...

    async def topic_count(self, shard: int, topic: str) -> TopicCount | None:
        """How many messages are pending for a topic; None while they are being counted."""
        ...

    async def holder(self, shard: int, name: bytes) -> bytes | None:
        """The first key of the message that holds this name."""
        ...

    async def import_record(self, shard: int, command_offset: int, offset: int) -> ImportRecord | None:
        """What became of the file that the command at `command_offset` named."""
        ...

    async def import_of(self, shard: int, sha256: str, offset: int) -> ImportRecord | None:
        """What became of the file of this content."""
        ...

    async def imports(
        self, shard: int, state: str | None, below: str = "", limit: int | None = None, after: int | None = None
    ) -> tuple[int, list[ImportRecord]]:
        """How many are not forgotten, are in this state (None: any), and have a path that begins with `below`; and the
        first `limit` of them (None: all). Waits for nothing.

        `after`: the page after this offset (-1: the first), which ends the search; then the count means nothing."""
        ...

    async def imported_ids(self, shard: int, command_offset: int, first: int, most: int) -> bytes | None:
        """The ids of rows of the file that the command at `command_offset` named. See `Gateway.imported_ids`."""
        ...

    async def search(self, query: Query, after: Mapping[int, bytes]) -> Mapping[int, SearchPart]:
        """What matches in each of these shards, above the key that is given for it. See `Reads.find`."""
        ...
