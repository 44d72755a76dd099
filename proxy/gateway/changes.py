"""Makes changes: appends the commands for cancels, moves, deliver-nows and redrives to the log, and reads their
outcomes from the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat

from duemq.bus.base import AppendResults, Batches
from duemq.cluster.backend import Backend
from duemq.cluster.shards.progress import Progress, TimedAnswer
from duemq.cluster.shards.shard_reader import MessageState, NamedMessage
from duemq.cluster.topics.internal_topics import BUFFER
from duemq.model.errors import OutcomeUnknown, Unavailable
from duemq.model.log.ledger import Answer
from duemq.model.messages.message import CANCEL, Terms, change_frame
from duemq.model.messages.names import of_client
from duemq.model.messages.plain import change_by_name
from duemq.model.topics.rules import CONSUMER
from duemq.proxy.gateway.base import ChangeOutcome
from duemq.proxy.gateway.message_resolver import Address, MessageResolver, NamedAddress, Target

_NAMES_TOGETHER = 1_000  # names in one lookup
_WITH_TIME = 16  # for up to this many changes, end times are looked up
_ENDED = frozenset((Answer.DELIVERED, Answer.CANCELLED_BEFORE, Answer.DEAD))


@dataclass(slots=True)
class _Item:
    """One change in a call. `offset`: the offset of its command, -1 if it has none. `message`: the message that it
    applies to, once known."""

    ref: str
    target: Target
    due: int
    offset: int = -1
    answered: TimedAnswer | None = None
    message: Address | None = None
    ended_at: int = 0

    @property
    def is_known(self) -> bool:
        """Whether the shard has answered and has found the message."""
        return self.answered is not None and self.answered.answer is not Answer.UNKNOWN

    @property
    def has_ended(self) -> bool:
        """Whether the message was found, and had ended before this change."""
        return self.message is not None and self.answered is not None and self.answered.answer in _ENDED

    def frame(self, kind: int, terms: Terms | None, by: str) -> bytes:
        if self.message is None:
            return change_by_name(kind, self.ref, self.due, by)
        return change_frame(kind, self.message.first_key, self.due, terms, by)

    def outcome(self, kind: int) -> ChangeOutcome:
        if self.target is None:
            return ChangeOutcome(self.ref, Answer.UNKNOWN)
        if isinstance(self.target, MessageState):
            return ChangeOutcome(self.target.id, Answer.DELIVERED, self.target.delivered_at)
        id_ = self.ref if self.message is None else self.message.id
        if self.answered is None:
            return ChangeOutcome(id_, None)
        cancelled_at = self.answered.at if self.answered.answer is Answer.OK and kind == CANCEL else 0
        return ChangeOutcome(id_, self.answered.answer, cancelled_at or self.ended_at)


class MessageChanges:
    """Makes the changes of each call. `append` makes commands durable; `answer_s`: how long to wait for a shard's
    answer."""

    def __init__(
        self,
        backend: Backend,
        addresses: MessageResolver,
        append: Callable[[Batches], Awaitable[AppendResults]],
        answer_s: float,
    ) -> None:
        self._backend, self._addresses, self._append, self._answer_s = backend, addresses, append, answer_s
        self._names = NameLookups(backend)

    async def make(
        self,
        kind: int,
        refs: Sequence[str],
        due: int | Sequence[int] = 0,
        *,
        times: bool = False,
        terms: Terms | None = None,
        by: str = "",
    ) -> list[ChangeOutcome]:
        """See `Gateway.change`."""
        dues = repeat(due) if isinstance(due, int) else due
        targets = await self._targets(refs, by_name=terms is None)
        items = [_Item(*one) for one in zip(refs, targets, dues, strict=False)]
        by_shard: dict[int, list[_Item]] = {}
        for item in items:
            if isinstance(item.target, Address):
                item.message = item.target
            elif not isinstance(item.target, NamedAddress):
                continue
            by_shard.setdefault(item.target.shard, []).append(item)
        if by_shard:
            batches = {
                (BUFFER, shard): [item.frame(kind, terms, by) for item in some] for shard, some in by_shard.items()
            }
            await self._decide(by_shard, batches)
            with_times = times or len(refs) <= _WITH_TIME
            for shard, some in by_shard.items():
                # The entry of an older master, or of a cycle with very many changes, does not identify the messages.
                if untold := [item for item in some if item.message is None and item.is_known]:
                    await self._find_holders(shard, untold, some[-1].offset)
                if with_times and (ended := [item for item in some if item.has_ended]):
                    await self._find_end_times(shard, ended)
        return [item.outcome(kind) for item in items]

    async def _targets(self, refs: Sequence[str], *, by_name: bool) -> list[Target]:
        """The target of each change. `by_name`: a command may go to the shard of a name, which looks up the message
        itself."""
        targets: list[Target] = []
        unresolved: list[int] = []
        for ref in refs:
            address = self._addresses.of(ref)
            # Any other name is malformed to an older node, whose replica would stop at the command.
            if isinstance(address, Address) or (
                isinstance(address, NamedAddress) and by_name and CONSUMER.fullmatch(ref)
            ):
                targets.append(address)
            else:
                unresolved.append(len(targets))
                targets.append(None)
        if unresolved:
            try:
                looked_up = await self._addresses.find_each([refs[at] for at in unresolved])
            except OutcomeUnknown as error:  # a failed lookup has changed nothing
                raise Unavailable(error.detail) from error
            for at, one in zip(unresolved, looked_up, strict=True):
                targets[at] = one
        return targets

    async def _decide(self, by_shard: Mapping[int, Sequence[_Item]], batches: Batches) -> None:
        """Append the commands, and wait for the shards' answers."""
        progress_of = {shard: self._backend.progress(shard) for shard in by_shard}
        for progress in progress_of.values():
            progress.check()
        results = await self._append(batches)
        waits = []
        for shard, some in by_shard.items():
            result = results[BUFFER, shard]
            for place, item in enumerate(some):
                item.offset = result.offset(place)
            waits.append(applied_in_time(progress_of[shard], some[-1].offset, self._answer_s))
        if len(waits) == 1:
            await waits[0]
        else:
            await asyncio.gather(*waits)
        for shard, some in by_shard.items():
            for item in some:
                answered = item.answered = progress_of[shard].answer(item.offset)
                if item.message is None and answered is not None and answered.first_key is not None:
                    item.message = self._addresses.of_key(shard, answered.first_key)

    async def _find_holders(self, shard: int, items: Sequence[_Item], offset: int) -> None:
        """Find the messages with the names of these changes, once the command at `offset` is applied.

        The messages are only needed for the answers: if a lookup fails, an answer has the name instead of the id.
        """
        names = [of_client(item.ref) for item in items]
        try:
            messages = await self._names.messages(shard, names, offset)
        except (Unavailable, OutcomeUnknown):
            return
        for item, name in zip(items, names, strict=True):
            if (holder := messages.get(name)) is not None:
                address = self._addresses.of(holder.state.id)
                item.message = address if isinstance(address, Address) else None

    async def _find_end_times(self, shard: int, items: Sequence[_Item]) -> None:
        first_keys = [item.message.first_key for item in items if item.message is not None]
        try:
            end_times = await self._backend.reader.when_ended(shard, first_keys, items[-1].offset)
        except Unavailable:
            return  # the answers are known, and some of the changes may have been made
        for item, at in zip(items, end_times, strict=True):
            item.ended_at = at


async def applied_in_time(progress: Progress, offset: int, answer_s: float) -> bool:
    """Wait until a shard has applied a command; False if it has not in time. The command is already in the log, so it
    can no longer be refused, and an unavailable shard is not an error here."""
    try:
        return await progress.wait_until_applied(offset, answer_s)
    except Unavailable:
        return False


@dataclass
class _Group:
    """Names to look up together, once the command at `offset` is applied."""

    names: dict[bytes, None] = field(default_factory=dict)
    offset: int = -1


class NameLookups:
    """Looks up names, with one lookup at a time per shard. Names that arrive during a lookup share the next one.

    Names are batched because a lookup in a cluster is a request to a node, which costs more than the names in it.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._groups: dict[int, tuple[_Group, asyncio.Task[dict[bytes, NamedMessage]]]] = {}  # not sent yet, by shard
        self._turns: dict[int, asyncio.Lock] = {}

    async def messages(self, shard: int, names: Sequence[bytes], offset: int) -> dict[bytes, NamedMessage]:
        """The messages of a shard that have these names once the command at `offset` is applied; there may be others in
        the result.

        Raises Unavailable or OutcomeUnknown if no node can answer.
        """
        if shard not in self._groups:
            group = _Group()
            self._groups[shard] = group, asyncio.create_task(self._look_up(shard, group), name=f"names {shard}")
        group, task = self._groups[shard]
        group.names.update(dict.fromkeys(names))
        group.offset = max(group.offset, offset)
        return await asyncio.shield(task)  # other callers wait for the task, too

    async def _look_up(self, shard: int, group: _Group) -> dict[bytes, NamedMessage]:
        async with self._turns.setdefault(shard, asyncio.Lock()):
            del self._groups[shard]  # later names go into the next group
            names = list(group.names)
            messages: dict[bytes, NamedMessage] = {}
            for start in range(0, len(names), _NAMES_TOGETHER):
                some = names[start : start + _NAMES_TOGETHER]
                answers = await self._backend.reader.messages_by_name(shard, some, group.offset)
                messages |= {name: one for name, one in zip(some, answers, strict=True) if one is not None}
            return messages
