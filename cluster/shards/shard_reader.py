"""The interface to the replicas that answer reads, and its values.

A proxy has no store: its reader (`proxy/gateway/remote_reader.py`) queries the nodes over HTTP, which answer with a
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
    """The known state of one message. Times in epoch ms; `payload` is None if it is no longer kept, or null (then
    `has_null`). `attempts`: the recorded failed ones, and deaths. `history`: the changes, including a cancel. `name`:
    with its space (`model/messages/names.py`); empty for none, and from a node of the last release."""

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
        """The state for lists: without payload and history, which could be a gigabyte per page."""
        return replace(self, payload=None, has_null=False, history=UNCHANGED)


class NamedMessage(NamedTuple):
    """A named message without its payload, and its fingerprint."""

    fingerprint: bytes
    state: MessageState


@dataclass(frozen=True, slots=True)
class Query:
    """A filter over messages. `due_from` inclusive, `due_to` exclusive (epoch ms); `cursor` from the last page.

    `name_prefix`: of the text of a name in the spaces that `caller` reads (`Grant.namespace`; empty: that of all).
    `status` None: any. `shard`: of this one only. `newest`: the last placed come first; this needs a key or label, and
    an indexed topic. Otherwise the order is by due time.
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
    """The result of searching one shard: keys with states, and how far it searched (None: to the end).

    With `newest`, the keys are places (`storage/message_index/runs.py`), also in byte order.
    """

    messages: list[tuple[bytes, MessageState]]
    looked: bytes | None


class ShardReader(Protocol):
    """Reads of any shard. Each call may raise Unavailable: no replica of the shard can answer now.

    With `offset`, the answer reflects at least the commands up to this one; without it, all commands accepted before
    the call.
    """

    async def state(self, shard: int, first_key: bytes, offset: int) -> MessageState | None:
        """The message with this first key; None if it is unknown or forgotten."""
        ...

    async def messages_by_name(
        self, shard: int, names: Sequence[bytes], offset: int | None = None
    ) -> list[NamedMessage | None]:
        """The messages with these names; None for an unused name, or a forgotten message."""
        ...

    async def when_ended(self, shard: int, first_keys: Sequence[bytes], offset: int) -> list[int]:
        """When each message was delivered, cancelled or given up (ms); 0 if it was not, or if it is forgotten."""
        ...

    async def topics(self, shard: int, first_keys: Sequence[bytes], offset: int) -> list[str | None]:
        """The topic of each message; None if it is unknown or forgotten. Keeps no payloads in memory."""
        ...

    async def topic_count(self, shard: int, topic: str) -> TopicCount | None:
        """The number of messages pending for a topic; None while they are being counted."""
        ...

    async def holder(self, shard: int, name: bytes) -> bytes | None:
        """The first key of the message with this name."""
        ...

    async def import_record(self, shard: int, command_offset: int, offset: int) -> ImportRecord | None:
        """The outcome of the file in the command at `command_offset`."""
        ...

    async def import_of(self, shard: int, sha256: str, offset: int) -> ImportRecord | None:
        """The outcome of the file with this content."""
        ...

    async def imports(
        self, shard: int, state: str | None, below: str = "", limit: int | None = None, after: int | None = None
    ) -> tuple[int, list[ImportRecord]]:
        """The number of known imports in this state (None: any) whose path begins with `below`, and the first `limit`
        of them (None: all). Does not wait.

        `after`: the page after this offset (-1: the first), which ends the search early; then the count is
        meaningless."""
        ...

    async def imported_ids(self, shard: int, command_offset: int, first: int, most: int) -> bytes | None:
        """The ids of rows of the file in the command at `command_offset`. See `Gateway.imported_ids`."""
        ...

    async def search(self, query: Query, after: Mapping[int, bytes]) -> Mapping[int, SearchPart]:
        """The matches in each of these shards above its given key. See `Reads.find`."""
        ...
