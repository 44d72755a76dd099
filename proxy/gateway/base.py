"""The port between the HTTP API and the shards, and the values that pass through it. Nothing here knows HTTP.

`CommandGateway` (`proxy/gateway/gateway.py`) is the only implementation; it serves single-process and cluster mode.
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
    """The answer to a schedule, given after it is durable. `due` in epoch ms.

    `known`: the name or idempotency key existed before, and `id` is the first message's; `conflict`: it existed with
    other content, and nothing was accepted. Without an id: the caller may not know of the message that has the name.
    """

    id: str
    status: Status
    topic: str
    due: int
    known: bool = False
    conflict: bool = False


class ChangeOutcome(NamedTuple):
    """The answer to a cancel, move, deliver-now or redrive of one message.

    `answer` is None when it is not known in time; `at`: when the message was cancelled or delivered, epoch ms, 0 when
    that does not apply. `id` is the message's id where the target was found, else the target as it was asked for.
    """

    id: str
    answer: Answer | None
    at: int = 0


class OwnTopic(NamedTuple):
    """The id of a message, and the topic that it is for."""

    id: str
    topic: str


class ImportStatus(NamedTuple):
    """Where the import of a file stands; `import` is None while that is not known. `known`: its content had been
    given before, by the command that `import` speaks of."""

    id: str
    shard: int
    import_record: ImportRecord | None
    known: bool = False


class MessagePage(NamedTuple):
    """Messages in the order of their due times, without payloads; `cursor` is None after the last page.

    A page may hold fewer than `limit` messages, even none, and still have a cursor: a search looks at a bounded number
    of messages per call so that it never holds up deliveries.
    """

    messages: list[MessageState]
    cursor: str | None


class Gateway(Protocol):
    """The access to all shards. Every call may raise Unavailable (503: nothing was accepted, nothing was changed).

    Those that write may raise OutcomeUnknown (504: nobody knows), and those that read never do.
    """

    @property
    def bus(self) -> Bus:
        """The log: topics and their records are read from it."""
        ...

    async def send(self, drafts: Sequence[Draft]) -> list[Receipt | Rejected]:
        """Accept messages, in order. Durable when it returns.

        A draft that its target would not take is answered with the RejectedNow (`unknown_topic`, `payload_too_large`);
        of all others, on the embedded bus, all are accepted or none. On a shared log a call that raises OutcomeUnknown
        may have been carried out in part. A named draft is answered after the shard decided whether the name is new,
        with Rejected `outcome_unknown` where that is not known in time; and with `unavailable` where nothing of it was
        accepted.
        """
        ...

    async def named(self, names: Sequence[tuple[Name, bytes]]) -> list[Receipt | None]:
        """The receipt of the message that has each name, None for a new name; `names` are given with fingerprints.

        Sees every message accepted before the call. Raises OutcomeUnknown where nobody can say.
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
        """Cancel, move (to `due`: one for all, or one for each), deliver now, redrive or purge (kinds of
        `model/messages/message.py`), the last two with `terms`.

        One outcome per target, in order; a target is an id or a client-chosen name. `by`: who asks
        (`model/callers/caller.py`), for the history of the messages; a job is known by its tag. `at` is looked up with
        `times`, and where there are at most 16 of them.
        """
        ...

    async def import_file(self, import_command: ImportCommand) -> ImportStatus:
        """Have a file imported. Durable when it returns; the file itself is looked at then, by each replica."""
        ...

    async def import_files(self, import_commands: Sequence[ImportCommand]) -> list[ImportStatus]:
        """Have files imported that belong together: all their commands are in the log when it returns, or none ever is.

        One answer per file, in order. A call that raises Unavailable may have been carried out: as a whole.
        """
        ...

    async def imports(
        self, state: str | None = None, below: str = "", limit: int | None = None, after: str | None = None
    ) -> tuple[int, list[ImportStatus]]:
        """How many files are pending, imported or rejected (`state`, None = all) and not purged, whose path begins
        with `below`; and the first `limit` of them (None = all), by shard, oldest first.

        With `after`, an id or "", the next `limit` after that id, and how many these are. Raises Rejected."""
        ...

    async def import_record(self, id_: str) -> ImportStatus | None:
        """What became of one file; None where there is no such id."""
        ...

    async def imported_ids(self, id_: str, first: int, most: int) -> bytes | None:
        """The ids (32 characters each) of up to `most` rows of an imported file from row `first` on; None where there
        is no such import. Raises Rejected `no_ids` for one that is refused, or whose file is not kept any more."""
        ...

    async def state(self, ref: str, caller: str = "") -> MessageState | None:
        """The message with this id or name, or None if it is unknown. Sees every message accepted before the call.

        `caller`: whose names are looked in first (`Grant.namespace`); empty: none but those of all.
        """
        ...

    async def topics_of(self, refs: Sequence[str], caller: str = "") -> dict[str, OwnTopic]:
        """The ids and topics of the messages with these ids or names, by ref; those that are unknown are left out.
        See `state`: it costs a fraction, and keeps no payload."""
        ...

    async def find(self, query: Query) -> MessagePage:
        """Raises Rejected `bad_cursor`."""
        ...

    async def pending(self, topic: str) -> TopicCount | None:
        """How many messages are pending for a topic, all accepted before included; None while a shard cannot tell."""
        ...

    def topic_lateness(self, topic: str) -> dict[str, Any]:
        """Count and lateness (ms: p50, p99, max) of a topic's deliveries since the start of this process."""
        ...

    def trouble(self, topic: str) -> str | None:
        """What is wrong with a target, in a sentence; None if nothing is known to be."""
        ...

    def troubles(self) -> dict[str, str]:
        """Targets that refuse messages, up to 16 of them, each with a sentence."""
        ...

    def cluster(self) -> dict[str, Any]:
        """Nodes, shards, masters, cursors and lag, as JSON-able values. See `cluster/shards/view.py`."""
        ...

    async def figures(self) -> Sequence[Figures]:
        """What the nodes measure of themselves; those that do not answer are missing."""
        ...

    async def sealed_windows(self, first: int, most: int) -> Sequence[SealedWindow]:
        """The windows with delay files that begin at `first` (epoch ms) or later, earliest first."""
        ...

    async def drain(self, name: str) -> None:
        """Have a node hand over its shards. Raises Rejected `unknown_node`, or `not_supported` by a single node."""
        ...

    async def resume(self, name: str) -> None:
        """Let a drained node take part again. Raises as `drain` does."""
        ...

    def why_not_ready(self) -> str | None:
        """None when messages are accepted and delivered, else the reason in a sentence."""
        ...

    def readiness(self) -> Readiness:
        """The same in public words, by shard too."""
        ...

    def stuck(self) -> Mapping[int, float]:
        """For how long (s) shards of this process have been stuck."""
        ...
