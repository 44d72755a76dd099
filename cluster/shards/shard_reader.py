"""The interface to the replicas that answer reads, and the values that it uses.

A proxy has no store. Its reader (`proxy/gateway/remote_reader.py`) queries the nodes over HTTP; a node answers by its
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
    """The known state of one message. Times are in epoch ms. `payload` is None if it is no longer kept, or if it is
    null (then `has_null` is true). `attempts`: the recorded failed attempts, and each time the message was
    dead-lettered. `history`: the changes, including a cancel. `name`: the name with its space
    (`model/messages/names.py`); empty if there is none, or if a node of the previous release answered."""

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
        """The state for lists: without payload and history, because these could amount to a gigabyte per page."""
        return replace(self, payload=None, has_null=False, history=UNCHANGED)


class NamedMessage(NamedTuple):
    """A message with a name: its state without the payload, and its fingerprint."""

    fingerprint: bytes
    state: MessageState


@dataclass(frozen=True, slots=True)
class Query:
    """A filter for messages. `due_from` is inclusive, `due_to` exclusive (epoch ms); `cursor` comes from the last page.

    `name_prefix`: how the text of the name begins, in the spaces that `caller` may read (`Grant.namespace`; empty: the
    space of all callers). `status` None: any status. `shard`: search only this shard. `newest`: return the messages
    that were scheduled last first; this needs a key or label, and an indexed topic. Otherwise messages are in the order
    of their due times.
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
    """The result of a search in one shard: keys with states, and the key up to which the shard was searched (None: to
    the end).

    With `newest`, the keys are places in the index (`storage/message_index/runs.py`), also in byte order.
    """

    messages: list[tuple[bytes, MessageState]]
    looked: bytes | None


class ShardReader(Protocol):
    """Reads any shard. Each call may raise Unavailable if no replica of the shard can currently answer.

    With `offset`, the answer reflects at least all commands up to this offset; without it, at least all commands that
    were accepted before the call.
    """

    async def state(self, shard: int, first_key: bytes, offset: int) -> MessageState | None:
        """The message with this first key; None if it is unknown or forgotten."""
        ...

    async def messages_by_name(
        self, shard: int, names: Sequence[bytes], offset: int | None = None
    ) -> list[NamedMessage | None]:
        """The messages with these names; None if a name is unused or its message is forgotten."""
        ...

    async def when_ended(self, shard: int, first_keys: Sequence[bytes], offset: int) -> list[int]:
        """When each message was delivered, cancelled or dead-lettered (epoch ms); 0 if it is pending, or if it is
        forgotten."""
        ...

    async def topics(self, shard: int, first_keys: Sequence[bytes], offset: int) -> list[str | None]:
        """The topic of each message; None if it is unknown or forgotten. It keeps no payloads in memory."""
        ...

    async def topic_count(self, shard: int, topic: str) -> TopicCount | None:
        """The number of messages pending for a topic; None while the shard is still counting them."""
        ...

    async def holder(self, shard: int, name: bytes) -> bytes | None:
        """The first key of the message with this name; None if there is none."""
        ...

    async def import_record(self, shard: int, command_offset: int, offset: int) -> ImportRecord | None:
        """The record of the import whose command is at `command_offset`."""
        ...

    async def import_of(self, shard: int, sha256: str, offset: int) -> ImportRecord | None:
        """The record of the import of the file with this content."""
        ...

    async def imports(
        self, shard: int, state: str | None, below: str = "", limit: int | None = None, after: int | None = None
    ) -> tuple[int, list[ImportRecord]]:
        """The number of known imports in this state (None: any state) whose paths begin with `below`, and the first
        `limit` of these imports (None: all). Does not wait.

        `after`: return the page after this offset (-1: the first page). Then the search ends early, and the number is
        meaningless.
        """
        ...

    async def imported_ids(self, shard: int, command_offset: int, first: int, most: int) -> bytes | None:
        """The ids of rows in the file of the import command at `command_offset`. See `Gateway.imported_ids`."""
        ...

    async def search(self, query: Query, after: Mapping[int, bytes]) -> Mapping[int, SearchPart]:
        """The matches in each shard in `after`, above the key given for that shard. See `Reads.find`."""
        ...
