"""The interface between the HTTP API and the shards, and its value types. Nothing here depends on HTTP.

`CommandGateway` (`proxy/gateway/gateway.py`) is the only implementation, for single-process and cluster mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from duemq.bus.base import Bus
from duemq.cluster.figures import Figures, SealedWindow
from duemq.cluster.shards.shard_reader import MessageState, Query, Status
from duemq.model.errors import Rejected
from duemq.model.log.ledger import Answer
from duemq.model.messages.import_command import ImportCommand
from duemq.model.messages.message import Draft, Terms
from duemq.model.messages.names import Name
from duemq.model.readiness import Readiness
from duemq.storage.shard.records import ImportRecord
from duemq.storage.shard.topic_counts import TopicCount


class Receipt(NamedTuple):
    """The answer for a message that is durably accepted. `due`: epoch ms.

    `known`: the name or idempotency key was used before, and `id` is the first message's id; `conflict`: it was used
    with other content, and nothing was accepted. `id` is empty if the caller may not see the message with that name.
    """

    id: str
    status: Status
    topic: str
    due: int
    known: bool = False
    conflict: bool = False


class ChangeOutcome(NamedTuple):
    """The answer to a cancel, move, deliver now or redrive of one message.

    `answer`: None if the shard did not answer in time; `at`: when the message was cancelled or delivered, epoch ms,
    else 0.
    `id` is the message's id if the target was found, else the target as given.
    """

    id: str
    answer: Answer | None
    at: int = 0


class OwnTopic(NamedTuple):
    """The id and topic of a message."""

    id: str
    topic: str


class ImportStatus(NamedTuple):
    """The state of a file's import. `import_record`: None while the state is unknown. `known`: the same content was
    submitted before, by the command in `import_record`."""

    id: str
    shard: int
    import_record: ImportRecord | None
    known: bool = False


class MessagePage(NamedTuple):
    """Messages in the order of their due times, without payloads; `cursor` is None after the last page.

    A page may have fewer than `limit` messages, even none, and still have a cursor: a search examines a bounded number
    of messages per call, so that it never delays deliveries.
    """

    messages: list[MessageState]
    cursor: str | None


class Gateway(Protocol):
    """Access to all shards. Every call may raise Unavailable (503: nothing was accepted, nothing was changed).

    Writing calls may raise OutcomeUnknown (504); reading calls never do.
    """

    @property
    def bus(self) -> Bus:
        """The log, for reading topics and their records."""
        ...

    async def send(self, drafts: Sequence[Draft]) -> list[Receipt | Rejected]:
        """Accept messages, in order. They are durable when the call returns.

        A draft that its topic would refuse is answered with a RejectedNow (`unknown_topic`, `payload_too_large`). On
        the embedded bus, either all other drafts are accepted or none. On a shared log a call that raises
        OutcomeUnknown may have been carried out in part. A named draft is answered after its shard has decided whether
        the name is new: with Rejected `outcome_unknown` if the decision is not known in time, and with `unavailable` if
        the draft was not accepted.
        """
        ...

    async def named(self, names: Sequence[tuple[Name, bytes]]) -> list[Receipt | None]:
        """For each name, the receipt of the message that has it; None for a new name. `names`: pairs of a name and the
        fingerprint of the content to compare.

        Sees every message accepted before the call. Raises OutcomeUnknown if no node can answer.
        """
        ...

    async def change(
        self,
        kind: int,
        refs: Sequence[str],
        due: int | Sequence[int] = 0,
        *,
        times: bool = False,
        terms: Terms | None = None,
        by: str = "",
    ) -> list[ChangeOutcome]:
        """Cancel, move, deliver now, redrive or purge. `kind`: one of those in `model/messages/message.py`. `due`: the
        new due time of a move, one for all targets or one for each. `terms`: only for redrive and purge.

        Returns one outcome per target, in order; a target is an id or a client-chosen name. `by`: the caller
        (`model/callers/caller.py`), for the history of the messages; the history identifies a job by its tag instead.
        The outcomes have `at` only with `times`, or if there are at most 16 targets.
        """
        ...

    async def import_file(self, import_command: ImportCommand) -> ImportStatus:
        """Request the import of a file. The request is durable when the call returns; then each replica reads the
        file."""
        ...

    async def import_files(self, import_commands: Sequence[ImportCommand]) -> list[ImportStatus]:
        """Request the import of a batch of files: either all commands are in the log when the call returns, or none is.

        Returns one answer per file, in order. If the call raises Unavailable, either the whole batch was carried out or
        none of it.
        """
        ...

    async def imports(
        self, state: str | None = None, below: str = "", limit: int | None = None, after: str | None = None
    ) -> tuple[int, list[ImportStatus]]:
        """The number of pending, imported or rejected files (`state`, None = all) whose path begins with `below`, not
        counting purged ones, and the first `limit` of them (None = all), by shard, oldest first.

        With `after`, an id or "": the next `limit` files after that id, and how many these are. Raises Rejected."""
        ...

    async def import_record(self, id_: str) -> ImportStatus | None:
        """The state of one import; None for an unknown id."""
        ...

    async def imported_ids(self, id_: str, first: int, most: int) -> bytes | None:
        """The ids (32 characters each) of up to `most` rows of an imported file, from row `first` on; None for an
        unknown import. Raises Rejected `no_ids` if the import was refused or its file is no longer kept."""
        ...

    async def state(self, ref: str, caller: str = "") -> MessageState | None:
        """The message with this id or name, or None if it is unknown. Sees every message accepted before the call.

        `caller`: the caller whose names are searched first (`Grant.namespace`); empty: only the names shared by all
        callers are searched.
        """
        ...

    async def topics_of(self, refs: Sequence[str], caller: str = "") -> dict[str, OwnTopic]:
        """The ids and topics of the messages with these ids or names, by ref; unknown messages are left out. See
        `state`: this call costs a fraction of it, and keeps no payloads in memory."""
        ...

    async def find(self, query: Query) -> MessagePage:
        """A page of the messages that match a query. Raises Rejected `bad_cursor`."""
        ...

    async def pending(self, topic: str) -> TopicCount | None:
        """The number of messages pending for a topic, including all that were accepted before the call; None while a
        shard cannot count them."""
        ...

    def topic_lateness(self, topic: str) -> dict[str, Any]:
        """Count and lateness (ms: p50, p99, max) of a topic's deliveries since the start of this process."""
        ...

    def trouble(self, topic: str) -> str | None:
        """A topic's problem, in a sentence; None if none is known."""
        ...

    def troubles(self) -> dict[str, str]:
        """Up to 16 topics that refuse messages, each with a sentence."""
        ...

    def cluster(self) -> dict[str, Any]:
        """Nodes, shards, masters, cursors and lag, as JSON-able values. See `cluster/shards/view.py`."""
        ...

    async def figures(self) -> Sequence[Figures]:
        """The figures of the nodes; nodes that do not answer are left out."""
        ...

    async def sealed_windows(self, first: int, most: int) -> Sequence[SealedWindow]:
        """The windows with delay files that begin at `first` (epoch ms) or later, earliest first."""
        ...

    async def drain(self, name: str) -> None:
        """Make a node hand over its shards. Raises Rejected `unknown_node`, or `not_supported` on a single node."""
        ...

    async def resume(self, name: str) -> None:
        """Let a drained node take shards again. Raises the same errors as `drain`."""
        ...

    def why_not_ready(self) -> str | None:
        """None if messages are accepted and delivered, else the reason in a sentence."""
        ...

    def readiness(self) -> Readiness:
        """Whether messages are accepted and delivered, also by shard, in words that may be public."""
        ...

    def stuck(self) -> Mapping[int, float]:
        """The stuck shards of this process, and how long (s) each has been stuck."""
        ...
